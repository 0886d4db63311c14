"""Inserts the date, what is remembered and other reminders for the model, each right before its message."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import lru_cache
from typing import Any

from langchain.agents.middleware import AgentMiddleware, ModelRequest, ModelResponse
from langchain_core.messages import AnyMessage, HumanMessage, ToolMessage

from actors.agent.run.attempt import Attempt, ModelHandler
from core.mcp import references
from core.memory.facts import Memory
from core.memory.inject import agent_of, block, refs_of
from core.skills.selection import block as block_of_skill
from core.thread.messages import REFERENCES, REMINDER, SKILL, SPEAKER, speaker_of

FLAGS = {"hide_from_ui": True, "dynamic_context_reminder": True}
KEPT = 1024
OPENING, CLOSING = "<system-reminder>\n", "\n</system-reminder>"

Recall = Callable[[str, str | None], Awaitable[Memory]]
"""Returns the memory of a user and one of the user's agents (None: the default agent)."""


class DynamicContext(AgentMiddleware[Any, Attempt, Any]):
    """Expands reminders, which are fields of the thread's messages, into messages for the model (decision 11).

    The messages hold references into memories. The text is read at each call, so what was forgotten is gone; and only
    that of the run's own agent, where several agents take part in a conversation.
    """

    name = "dynamic_context"

    def __init__(self, recall: Recall | None = None) -> None:
        super().__init__()
        self._recall = recall

    async def awrap_model_call(self, request: ModelRequest[Attempt], handler: ModelHandler) -> ModelResponse[Any]:
        memory = await self._memory(request)
        messages = expanded(request.messages, memory, request.runtime.context.agent)
        return await handler(request if messages is request.messages else request.override(messages=messages))

    async def _memory(self, request: ModelRequest[Attempt]) -> Memory | None:
        """Returns the memory that the messages refer to; None if they do not, or if the prompt gets nothing of it."""
        attempt = request.runtime.context
        if self._recall is None or not attempt.config.memory.injection_enabled:
            return None
        refers = any(_refs(message, attempt.agent) for message in request.messages)
        return await self._recall(attempt.user, attempt.agent) if refers else None


def expanded(messages: list[AnyMessage], memory: Memory | None = None, agent: str | None = None) -> list[AnyMessage]:
    """Returns the conversation with its reminders, and what they tell of an agent's memory; the same list if it has
    none.
    """
    result = messages
    for place in reversed(range(len(messages))):
        message = messages[place]
        if isinstance(message, HumanMessage) and (text := _text(message, memory, agent)):
            result = [*result[:place], _reminder(f"{message.id}__reminder", text), *result[place:]]
        elif isinstance(message, ToolMessage) and SPEAKER in message.additional_kwargs:
            result = [*result[:place], _answered(message), *result[place + 1 :]]
    return result


def _answered(message: ToolMessage) -> ToolMessage:
    """Returns the result of a call whose question a person answered, with who that was."""
    line = f"(Its question was answered by {speaker_of({'additional_kwargs': message.additional_kwargs})}.)"
    content: Any = message.content
    content = f"{content}\n\n{line}" if isinstance(content, str) else [*content, {"type": "text", "text": line}]
    return message.model_copy(update={"content": content})


def _text(message: HumanMessage, memory: Memory | None, agent: str | None) -> str:
    """Returns the reminder of a message, "" if it has none."""
    reminder = message.additional_kwargs.get(REMINDER)
    reminder = reminder if isinstance(reminder, str) else ""
    skill = message.additional_kwargs.get(SKILL)
    called = block_of_skill(skill) if isinstance(skill, dict) else ""
    speaker = speaker_of({"additional_kwargs": message.additional_kwargs})
    wrote = f"The next message was written by {speaker}." if speaker else ""
    for more in filter(None, (wrote, called, references.block(message.additional_kwargs.get(REFERENCES)))):
        reminder = "\n".join(filter(None, (reminder, f"{OPENING}{more}{CLOSING}")))
    remembered = "" if memory is None else block(memory, _refs(message, agent))
    if not remembered:
        return reminder
    if reminder.startswith(OPENING):
        return f"{OPENING}{remembered}\n{reminder.removeprefix(OPENING)}"
    return f"{OPENING}{remembered}{CLOSING}" + (f"\n{reminder}" if reminder else "")


def _refs(message: AnyMessage, agent: str | None) -> list[str]:
    """Returns the refs into the memory of the run's agent. It does not get another agent's."""
    return refs_of(message.additional_kwargs) if agent_of(message.additional_kwargs) == agent else []


@lru_cache(KEPT)
def _reminder(identity: str, text: str) -> HumanMessage:
    """Returns the same object for the same reminder, so that its conversion for the provider is cached."""
    return HumanMessage(text, id=identity, additional_kwargs=dict(FLAGS))

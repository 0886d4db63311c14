"""Inserts the date, what is remembered and other reminders for the model, each right before its message."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import lru_cache
from typing import Any

from langchain.agents.middleware import AgentMiddleware, ModelRequest, ModelResponse
from langchain_core.messages import AnyMessage, HumanMessage, ToolMessage

from actors.agent.run.attempt import Attempt, ModelHandler
from core.mcp import references
from core.memory.facts import Memory
from core.memory.inject import agent_of, block, refs_of
from core.skills.selection import block as block_of_skill
from core.thread.messages import REFERENCES, REMINDER, SKILL, SPEAKER, SPEAKER_MEMORY, speaker_of

FLAGS = {"hide_from_ui": True, "dynamic_context_reminder": True}
KEPT = 1024
OPENING, CLOSING = "<system-reminder>\n", "\n</system-reminder>"

NOTHING = ("", "")
"""No message, and no text."""

Recall = Callable[[str, str | None], Awaitable[Memory]]
"""Returns the memory of a user and one of the user's agents (None: the default agent)."""


class DynamicContext(AgentMiddleware[Any, Attempt, Any]):
    """Expands reminders, which are fields of the thread's messages, into messages for the model (decision 11).

    The messages hold references into memories. The text is read at each call, so what was forgotten is gone; and only
    that of the run's own agent, where several agents take part in a conversation. In a group, the private memory of who
    speaks is read only while the turn is theirs, and they let it in.
    """

    name = "dynamic_context"

    def __init__(self, recall: Recall | None = None) -> None:
        super().__init__()
        self._recall = recall

    async def awrap_model_call(self, request: ModelRequest[Attempt], handler: ModelHandler) -> ModelResponse[Any]:
        memory, private = await self._memory(request), await self._private(request)
        messages = expanded(request.messages, memory, request.runtime.context.agent, private)
        return await handler(request if messages is request.messages else request.override(messages=messages))

    async def _memory(self, request: ModelRequest[Attempt]) -> Memory | None:
        """Returns the memory that the messages refer to; None if they do not, or if the prompt gets nothing of it."""
        attempt = request.runtime.context
        if self._recall is None or not attempt.config.memory.injection_enabled:
            return None
        refers = any(_refs(message, attempt.agent) for message in request.messages)
        return await self._recall(attempt.user, attempt.agent) if refers else None

    async def _private(self, request: ModelRequest[Attempt]) -> tuple[str, str]:
        """Returns the id of the message whose speaker has the turn, and what their private memory tells with it."""
        attempt, message = request.runtime.context, turn_of_speaker(request.messages)
        if self._recall is None or message is None or not attempt.config.memory.injection_enabled:
            return NOTHING
        recorded, refs = message.additional_kwargs, refs_of(message.additional_kwargs, SPEAKER_MEMORY)
        user, agent = recorded[SPEAKER_MEMORY]["user"], recorded[SPEAKER_MEMORY].get("agent")
        if agent != attempt.agent or not (await self._recall(user, None)).in_groups:
            return NOTHING
        text = block(await self._recall(user, agent), refs, speaker_of({"additional_kwargs": recorded}))
        return str(message.id), text


def turn_of_speaker(messages: Sequence[AnyMessage]) -> HumanMessage | None:
    """Returns the last message with private memory of its speaker; None if somebody else has written since, or has
    answered a question.
    """
    later = set[object]()
    for message in reversed(messages):
        extra = message.additional_kwargs
        speaker = extra.get(SPEAKER)
        identity = speaker.get("id") if isinstance(speaker, dict) else None
        if isinstance(message, HumanMessage) and SPEAKER_MEMORY in extra:
            return message if later <= {identity} else None
        if SPEAKER in extra or (isinstance(message, HumanMessage) and not extra.get("hide_from_ui")):
            later.add(identity)
    return None


def expanded(
    messages: list[AnyMessage],
    memory: Memory | None = None,
    agent: str | None = None,
    private: tuple[str, str] = NOTHING,
) -> list[AnyMessage]:
    """Returns the conversation with its reminders, and what they tell of an agent's memory; the same list if it has
    none. `private`: what a message, by its id, tells besides.
    """
    result = messages
    for place in reversed(range(len(messages))):
        message = messages[place]
        more = private[1] if message.id == private[0] else ""
        if isinstance(message, HumanMessage) and (text := _text(message, memory, agent, more)):
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


def _text(message: HumanMessage, memory: Memory | None, agent: str | None, private: str) -> str:
    """Returns the reminder of a message, "" if it has none."""
    reminder = message.additional_kwargs.get(REMINDER)
    reminder = reminder if isinstance(reminder, str) else ""
    skill = message.additional_kwargs.get(SKILL)
    called = block_of_skill(skill) if isinstance(skill, dict) else ""
    speaker = speaker_of({"additional_kwargs": message.additional_kwargs})
    wrote = f"The next message was written by {speaker}." if speaker else ""
    for more in filter(None, (wrote, called, references.block(message.additional_kwargs.get(REFERENCES)))):
        reminder = "\n".join(filter(None, (reminder, f"{OPENING}{more}{CLOSING}")))
    of_user = "" if memory is None else block(memory, _refs(message, agent))
    remembered = "\n".join(filter(None, (of_user, private)))
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

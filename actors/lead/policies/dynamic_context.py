"""Inserts the date, what is remembered and other reminders for the model, each right before its message."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import lru_cache
from typing import Any

from langchain.agents.middleware import AgentMiddleware, ModelRequest, ModelResponse
from langchain_core.messages import AnyMessage, HumanMessage

from actors.lead.loop.attempt import Attempt, ModelHandler
from core.memory.facts import Memory
from core.memory.inject import block, refs_of
from core.skills.selection import block as block_of_skill
from core.thread.messages import MEMORY, REMINDER, SKILL

FLAGS = {"hide_from_ui": True, "dynamic_context_reminder": True}
KEPT = 1024
OPENING, CLOSING = "<system-reminder>\n", "\n</system-reminder>"

Recall = Callable[[str, str | None], Awaitable[Memory]]
"""Returns the memory of a user and one of the user's agents (None: the default agent)."""
Memories = Mapping[str | None, Memory]
"""By agent."""


class DynamicContext(AgentMiddleware[Any, Attempt, Any]):
    """Expands reminders, which are fields of the thread's messages, into messages for the model (decision 11).

    The messages hold references into the memory; its text is read at each call, so what was forgotten is gone.
    """

    name = "dynamic_context"

    def __init__(self, recall: Recall | None = None) -> None:
        super().__init__()
        self._recall = recall

    async def awrap_model_call(self, request: ModelRequest[Attempt], handler: ModelHandler) -> ModelResponse[Any]:
        messages = expanded(request.messages, await self._memories(request))
        return await handler(request if messages is request.messages else request.override(messages=messages))

    async def _memories(self, request: ModelRequest[Attempt]) -> Memories:
        attempt = request.runtime.context
        if self._recall is None or not attempt.config.memory.injection_enabled:
            return {}
        agents = {_agent(message) for message in request.messages if refs_of(message.additional_kwargs)}
        return {agent: await self._recall(attempt.user, agent) for agent in agents}


def expanded(messages: list[AnyMessage], memories: Memories | None = None) -> list[AnyMessage]:
    """Returns the conversation with its reminders; the same list if it has none."""
    result = messages
    for place in reversed(range(len(messages))):
        message = messages[place]
        if isinstance(message, HumanMessage) and (text := _text(message, memories or {})):
            result = [*result[:place], _reminder(f"{message.id}__reminder", text), *result[place:]]
    return result


def _text(message: HumanMessage, memories: Memories) -> str:
    """Returns the reminder of a message, "" if it has none."""
    reminder, refs = message.additional_kwargs.get(REMINDER), refs_of(message.additional_kwargs)
    reminder = reminder if isinstance(reminder, str) else ""
    skill = message.additional_kwargs.get(SKILL)
    if isinstance(skill, dict) and (called := block_of_skill(skill)):
        reminder = "\n".join(filter(None, (reminder, f"{OPENING}{called}{CLOSING}")))
    remembered = _block(memories.get(_agent(message)), refs) if refs else ""
    if not remembered:
        return reminder
    if reminder.startswith(OPENING):
        return f"{OPENING}{remembered}\n{reminder.removeprefix(OPENING)}"
    return f"{OPENING}{remembered}{CLOSING}" + (f"\n{reminder}" if reminder else "")


def _block(memory: Memory | None, refs: Collection[str]) -> str:
    return "" if memory is None else block(memory, refs)


def _agent(message: AnyMessage) -> str | None:
    recorded = message.additional_kwargs.get(MEMORY)
    agent = recorded.get("agent") if isinstance(recorded, Mapping) else None
    return agent if isinstance(agent, str) else None


@lru_cache(KEPT)
def _reminder(identity: str, text: str) -> HumanMessage:
    """Returns the same object for the same reminder, so that its conversion for the provider is cached."""
    return HumanMessage(text, id=identity, additional_kwargs=dict(FLAGS))

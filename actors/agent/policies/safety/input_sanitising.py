"""Neutralises control tags in the text of people and programs, so that it cannot pass for the server's.

Theory of operation
-------------------
The state keeps the original text; only the request to the model changes. A client can write every field of a message,
so flags, names and ids prove nothing about its author: only the log does. A note is a fact of the run and not part of
the conversation; a question is the result of a tool call. Reminders are expanded after this policy (decision 11).
Summaries are sanitised too. The block about uploads begins a person's message. Its first `uploads_block` characters
stay unchanged only if they form a valid block.

An answer to a question stays unchanged if it is one of the question's options, which the model wrote. Free answers are
sanitised.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

from langchain.agents.middleware import AgentMiddleware, ModelRequest, ModelResponse
from langchain_core.messages import AnyMessage, BaseMessage, HumanMessage, ToolMessage

from actors.agent.messages.content import rewritten, text_by_line
from actors.agent.policies.interaction.question_form import is_option
from actors.agent.run.attempt import Attempt, ModelHandler
from core.control import neutralised, suspect
from core.thread.messages import UPLOADS_BLOCK
from core.thread.state import COMPACTED, ThreadState
from core.thread.values import CLARIFICATION

T = TypeVar("T")


class InputSanitising(AgentMiddleware[Any, Attempt, Any]):
    """Sanitises messages of people, and tool messages, which a client can send too; with a cache.

    Real results of tools were sanitised before they were recorded.
    """

    name = "input_sanitising"

    def __init__(self) -> None:
        super().__init__()
        self._harmless = Remembered[BaseMessage | None]()

    async def awrap_model_call(self, request: ModelRequest[Attempt], handler: ModelHandler) -> ModelResponse[Any]:
        changed = self._changed(request.runtime.context, request.messages)
        if changed:
            messages = [changed.get(place, message) for place, message in enumerate(request.messages)]
            request = request.override(messages=messages)
        return await handler(request)

    def _changed(self, attempt: Attempt, messages: Sequence[AnyMessage]) -> dict[int, Any]:
        changed: dict[int, Any] = {}
        for place, message in enumerate(messages):
            plain = isinstance(message.content, str) and not suspect(message.content)
            if plain or not isinstance(message, HumanMessage | ToolMessage):
                continue
            harmless = self._harmless.of(message, partial(_harmless, message))
            if harmless is not None and not _exempt(attempt, messages, place):
                changed[place] = harmless
        return changed


def _exempt(attempt: Attempt, messages: Sequence[AnyMessage], place: int) -> bool:
    message = messages[place]
    if not isinstance(message, HumanMessage):
        return False
    if response := message.additional_kwargs.get("human_input_response"):
        return _is_option(attempt, messages, place, response)
    return is_note(attempt, message)


def is_note(attempt: Attempt, message: BaseMessage) -> bool:
    """Tells whether a message is a current note of a policy; notes are never part of the conversation."""
    notes = attempt.state.runs[attempt.run].notes
    return message.id not in attempt.state.places and any(note.get("id") == message.id for note in notes)


def _is_option(attempt: Attempt, messages: Sequence[AnyMessage], place: int, response: Any) -> bool:
    """Tells whether a message is an option of the question that was open before it."""
    for earlier in reversed(messages[:place]):
        if not isinstance(earlier, ToolMessage):
            return False
        card = earlier.artifact.get("human_input") if isinstance(earlier.artifact, dict) else None
        if str(earlier.id).startswith(CLARIFICATION) and is_option(
            card, response, text_by_line(messages[place].content)
        ):
            return from_call(attempt.state, str(earlier.id))
    return False


def from_call(state: ThreadState, identity: str) -> bool:
    """Tells whether the current version of a message is the result of a tool call."""
    for index in state.chain(state.head):
        commit = state.commits[index]
        messages = commit.patch.get("messages")
        if commit.source == "loop" and commit.node == COMPACTED:
            continue  # a compaction only keeps messages of earlier commits
        if isinstance(messages, list) and any(isinstance(m, dict) and m.get("id") == identity for m in messages):
            return commit.source == "loop" and commit.node == "tools"
    return False


class Remembered(Generic[T]):
    """A cache of values by message object, as long as the objects live."""

    def __init__(self) -> None:
        self._entries: dict[int, tuple[weakref.ref[BaseMessage], T]] = {}

    def of(self, message: BaseMessage, compute: Callable[[], T]) -> T:
        key = id(message)
        entry = self._entries.get(key)
        if entry is not None and entry[0]() is message:
            return entry[1]
        value = compute()
        self._entries[key] = (weakref.ref(message, lambda _: self._entries.pop(key, None)), value)
        return value


def _harmless(message: BaseMessage) -> BaseMessage | None:
    """Returns the message without control tags, None if it has none."""
    content, size = message.content, message.additional_kwargs.get(UPLOADS_BLOCK)
    if isinstance(size, int) and size > 0 and isinstance(message, HumanMessage):
        first = rewritten(content if isinstance(content, str) else content[:1], lambda text: _after(text, size))
        changed = first if isinstance(first, str) else [*first, *rewritten(content[1:], neutralised)]
    else:
        changed = rewritten(content, neutralised)
    return None if changed == content else message.model_copy(update={"content": changed})


def _after(text: str, size: int) -> str:
    """Neutralises a text that begins with the server's block about uploads; a valid block stays."""
    block = text[:size].rstrip()
    inner = block.removeprefix("<uploaded_files>").removesuffix("</uploaded_files>")
    if len(block) - len(inner) != len("<uploaded_files></uploaded_files>") or neutralised(inner) is not inner:
        return neutralised(text)
    return text[:size] + neutralised(text[size:])

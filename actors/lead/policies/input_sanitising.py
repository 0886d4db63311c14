"""What people and programs say is not what the server says: control tags in it are harmless when the model reads it.

Theory of operation
-------------------
The state keeps what was said; only the request to the model is changed. A client can write every field of a message, so
no flag, name or id tells who wrote it: the log does. A note is among the facts of the run and not in the conversation;
a question came out of a tool call. Reminders ride on messages (decision 11), and come after this policy. A summary is
a model's text about what people said: no exception. Of the server's block about uploads, which is part of a person's
message, `uploads_block` tells the length, and only a well-formed block of that length stays as it is.

An answer to a question stays as it is where it is one of the question's options, which are the model's words. In words
of their own people can say anything, here too.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

from langchain.agents.middleware import AgentMiddleware, ModelRequest, ModelResponse
from langchain_core.messages import AnyMessage, BaseMessage, HumanMessage, ToolMessage

from actors.lead.loop.turn import ModelHandler, Turn
from actors.lead.messages.content import rewritten, text_by_line
from actors.lead.policies.question_form import chosen
from core.control import neutralised, suspect
from core.thread.messages import UPLOADS_BLOCK
from core.thread.state import CLARIFICATION, COMPACTED, ThreadState

T = TypeVar("T")


class InputSanitising(AgentMiddleware[Any, Turn, Any]):
    """Of people's messages, and of tool messages: a client can send those too. What tools really gave was sanitised
    before it was recorded. What it remembers is a cache.
    """

    name = "input_sanitising"

    def __init__(self) -> None:
        super().__init__()
        self._harmless = Remembered[BaseMessage | None]()

    async def awrap_model_call(self, request: ModelRequest[Turn], handler: ModelHandler) -> ModelResponse[Any]:
        changed = self._changed(request.runtime.context, request.messages)
        if changed:
            messages = [changed.get(place, message) for place, message in enumerate(request.messages)]
            request = request.override(messages=messages)
        return await handler(request)

    def _changed(self, turn: Turn, messages: Sequence[AnyMessage]) -> dict[int, Any]:
        found: dict[int, Any] = {}
        for place, message in enumerate(messages):
            plain = isinstance(message.content, str) and not suspect(message.content)
            if plain or not isinstance(message, HumanMessage | ToolMessage):
                continue
            harmless = self._harmless.of(message, partial(_harmless, message))
            if harmless is not None and not _exempt(turn, messages, place):
                found[place] = harmless
        return found


def _exempt(turn: Turn, messages: Sequence[AnyMessage], place: int) -> bool:
    message = messages[place]
    if not isinstance(message, HumanMessage):
        return False
    if response := message.additional_kwargs.get("human_input_response"):
        return _is_option(turn, messages, place, response)
    return is_note(turn, message)


def is_note(turn: Turn, message: BaseMessage) -> bool:
    """Whether a message is what a policy has to tell the model now: such are never part of the conversation."""
    notes = turn.state.runs[turn.run].notes
    return message.id not in turn.state.places and any(note.get("id") == message.id for note in notes)


def _is_option(turn: Turn, messages: Sequence[AnyMessage], place: int, response: Any) -> bool:
    """Whether a message is an option of a question that was open when it came."""
    for earlier in reversed(messages[:place]):
        if not isinstance(earlier, ToolMessage):
            return False
        card = earlier.artifact.get("human_input") if isinstance(earlier.artifact, dict) else None
        if str(earlier.id).startswith(CLARIFICATION) and chosen(card, response, text_by_line(messages[place].content)):
            return from_call(turn.state, str(earlier.id))
    return False


def from_call(state: ThreadState, identity: str) -> bool:
    """Whether the message of that id, as it stands in the conversation, came out of a tool call."""
    for index in state.chain(state.head):
        commit = state.commits[index]
        messages = commit.patch.get("messages")
        if commit.source == "loop" and commit.node == COMPACTED:
            continue  # what it kept came before
        if isinstance(messages, list) and any(isinstance(one, dict) and one.get("id") == identity for one in messages):
            return commit.source == "loop" and commit.node == "tools"
    return False


class Remembered(Generic[T]):
    """What is known about message objects, as long as they live."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[BaseMessage], T]] = {}

    def of(self, message: BaseMessage, find: Callable[[], T]) -> T:
        key = id(message)
        known = self._known.get(key)
        if known is not None and known[0]() is message:
            return known[1]
        found = find()
        self._known[key] = (weakref.ref(message, lambda _: self._known.pop(key, None)), found)
        return found


def _harmless(message: BaseMessage) -> BaseMessage | None:
    """The message as the model may see it; None: as it is."""
    content, size = message.content, message.additional_kwargs.get(UPLOADS_BLOCK)
    if isinstance(size, int) and size > 0 and isinstance(message, HumanMessage):
        first = rewritten(content if isinstance(content, str) else content[:1], lambda text: _after(text, size))
        changed = first if isinstance(first, str) else [*first, *rewritten(content[1:], neutralised)]
    else:
        changed = rewritten(content, neutralised)
    return None if changed == content else message.model_copy(update={"content": changed})


def _after(text: str, size: int) -> str:
    """A text that begins with the server's block about uploads: the block stays, if it is one."""
    block = text[:size].rstrip()
    inner = block.removeprefix("<uploaded_files>").removesuffix("</uploaded_files>")
    if len(block) - len(inner) != len("<uploaded_files></uploaded_files>") or neutralised(inner) is not inner:
        return neutralised(text)
    return text[:size] + neutralised(text[size:])

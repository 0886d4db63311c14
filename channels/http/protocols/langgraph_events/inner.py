"""Subagents on a tape: their messages and values in namespaces of their own, `tools:<id of the call>`.

Pure, as the tape is. Answers are facts of the thread; what lies between them is in the subagents' own logs, which the
feed reads before it is needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import takewhile
from typing import NamedTuple

from channels.http.protocols.langgraph_events.blocks import Body, MessageEvent, tool_message
from channels.http.protocols.langgraph_events.wire import Namespace
from channels.http.streams.subagent_logs import Child
from channels.http.streams.tasks import delegation
from core.events import Message, ModelCompleted, SubagentProgressed
from core.runs.previews import Piece, Preview, Reader
from core.thread.entries import Delegation
from core.thread.state import Run, ThreadState


class Speaker(NamedTuple):
    """The run of a subagent, whose previews are followed."""

    id: str
    status: str = "running"


class _Open(NamedTuple):
    """A message that is being made. `before`: what was said of the results of tools that it follows."""

    body: Body
    reader: Reader
    before: list[MessageEvent]


class Inner:
    """The messages that subagents are making."""

    def __init__(self) -> None:
        self._logs: dict[str, Sequence[Message]] = {}
        """Messages of the subagents at work, as far as they were read."""
        self._open: dict[str, _Open] = {}

    def child(self, subagent: str, part: Delegation) -> Child:
        return Child(subagent, partial(self._knows, subagent, part))

    def learn(self, subagent: str, messages: Sequence[Message]) -> None:
        """Takes the messages of a subagent's own log."""
        self._logs[subagent] = messages

    def _knows(self, subagent: str, part: Delegation, message: str) -> bool:
        """Tells if a message is being made, or finished."""
        known = self._open.get(subagent)
        return (known is not None and known.body.message == message) or self._is_finished(subagent, part, message)

    def _is_finished(self, subagent: str, part: Delegation, message: str) -> bool:
        return any(answer.get("id") == message for answer in answers(self._log_of(subagent))[: part.messages])

    def preview(self, part: Delegation, subagent: str, preview: Preview) -> list[MessageEvent]:
        """Returns what is new in a preview of a subagent's run."""
        known = self._open.get(subagent)
        body, reader, _ = known or (Body(preview.message), Reader(), [])
        if body.message != preview.message or self._is_finished(subagent, part, preview.message):
            return []
        piece = reader.take(preview) if preview.offset <= reader.offset else None
        if piece is None:
            return []
        before = [] if known else self._before(subagent, preview.message)
        if known is None:
            self._open[subagent] = _Open(body, reader, before)
        return before + body.feed(Piece(piece.part, piece.text, piece.index, piece.call_id, piece.name))

    def finish(self, subagent: str, message: Message) -> tuple[list[MessageEvent], list[MessageEvent]]:
        """Returns what comes before the end of an answer, and what was not said of it yet."""
        identity = str(message.get("id"))
        known = self._open.pop(subagent, None)
        whole = ModelCompleted(message=message)
        if known is not None and known.body.message == identity:
            return [], known.body.finish(whole)
        void = known.body.abandon() if known else []
        return void + self._before(subagent, identity), Body(identity).finish(whole)

    def drop(self, subagent: str) -> list[MessageEvent]:
        """Returns the end of a message that is not going to be finished, and forgets the log."""
        self._logs.pop(subagent, None)
        known = self._open.pop(subagent, None)
        return known.body.abandon() if known else []

    def unfinished(self) -> Iterable[tuple[str, list[MessageEvent]]]:
        """Yields everything that was said of the messages that are being made, by subagent."""
        return ((subagent, known.before + known.body.said) for subagent, known in self._open.items())

    def messages(self, subagent: str, event: SubagentProgressed) -> list[Message]:
        """Returns the conversation of a subagent up to an answer."""
        identity = event.message.get("id")
        return [*takewhile(lambda known: known.get("id") != identity, self._log_of(subagent)), event.message]

    def _log_of(self, subagent: str) -> Sequence[Message]:
        return self._logs.get(subagent, ())

    def _before(self, subagent: str, answer: str) -> list[MessageEvent]:
        return [event for known in between(self._log_of(subagent), answer) for event in tool_message(known)]


def namespace_of(part: Delegation) -> Namespace:
    return (f"tools:{part.call_id}",)


def working(state: ThreadState) -> Mapping[str, Delegation]:
    """Returns the subagents at work, by id."""
    run = state.active
    return {subagent: part for subagent, part in run.subagents.items() if not part.ended} if run else {}


def answers(log: Iterable[Message]) -> list[Message]:
    return [message for message in log if message.get("type") == "ai"]


def between(log: Sequence[Message], answer: str) -> list[Message]:
    """Returns the results of tools right before an answer, which may not be in the log yet."""
    before = list(takewhile(lambda message: message.get("id") != answer, log))
    return list(takewhile(lambda message: message.get("type") == "tool", reversed(before)))[::-1]


def subagent_of(run: Run | None, call_id: str) -> tuple[str, Delegation] | None:
    return delegation(run, call_id) if run is not None else None

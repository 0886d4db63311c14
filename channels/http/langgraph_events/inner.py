"""Subagents on a tape: their messages and values in namespaces of their own, `tools:<id of the call>`.

Pure, as the tape is. Answers are facts of the thread; what lies between them is in the subagents' own logs, which the
feed reads before it is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import takewhile
from typing import NamedTuple

from channels.http.langgraph_events.blocks import Body, Said, tool_message
from channels.http.langgraph_events.wire import Namespace
from channels.http.tasks import delegation
from core.events import Message, ModelCompleted, SubagentProgressed
from core.thread.past import Delegation
from core.thread.previews import Piece, Preview, Reader
from core.thread.state import Run, ThreadState

LogOf = Callable[[str], Sequence[Message]]
"""Returns the messages of a subagent's log, as far as they were read."""


class Speaker(NamedTuple):
    """The run of a subagent, whose previews are followed."""

    id: str
    status: str = "running"


class Inner:
    """The messages that subagents are making."""

    def __init__(self, log_of: LogOf) -> None:
        self._log_of = log_of
        self._open: dict[str, tuple[Body, Reader]] = {}

    def preview(self, part: Delegation, subagent: str, preview: Preview) -> list[Said]:
        """Returns what is new in a preview of a subagent's run."""
        body, reader = self._open.get(subagent) or (Body(preview.message), Reader())
        finished = answers(self._log_of(subagent))[: part.messages]
        if body.message != preview.message or any(known.get("id") == preview.message for known in finished):
            return []
        piece = reader.take(preview) if preview.offset <= reader.offset else None
        if piece is None:
            return []
        self._open[subagent] = body, reader
        return body.feed(Piece(piece.part, piece.text, piece.index, piece.call_id, piece.name))

    def finish(self, subagent: str, message: Message) -> tuple[list[Said], list[Said]]:
        """Returns what comes before the end of an answer, and what was not said of it yet."""
        identity = str(message.get("id"))
        body, _ = self._open.pop(subagent, (Body(identity), None))
        before = [said for known in between(self._log_of(subagent), identity) for said in tool_message(known)]
        if body.message != identity:
            before += body.abandon()
            body = Body(identity)
        return before, body.finish(ModelCompleted(message=message))

    def drop(self, subagent: str) -> list[Said]:
        """Returns the end of a message that is not going to be finished."""
        body, _ = self._open.pop(subagent, (None, None))
        return body.abandon() if body else []

    def unfinished(self) -> Iterable[tuple[str, list[Said]]]:
        """Yields everything that was said of the messages that are being made, by subagent."""
        return ((subagent, body.said) for subagent, (body, _) in self._open.items())

    def messages(self, subagent: str, event: SubagentProgressed) -> list[Message]:
        """Returns the conversation of a subagent up to an answer."""
        identity = event.message.get("id")
        return [*takewhile(lambda known: known.get("id") != identity, self._log_of(subagent)), event.message]


def namespace_of(part: Delegation) -> Namespace:
    return (f"tools:{part.call_id}",)


def working(state: ThreadState) -> Mapping[str, Delegation]:
    """Returns the subagents at work, by id."""
    run = state.active
    return {subagent: part for subagent, part in run.subagents.items() if not part.ended} if run else {}


def answers(log: Iterable[Message]) -> list[Message]:
    return [message for message in log if message.get("type") == "ai"]


def between(log: Sequence[Message], answer: str) -> list[Message]:
    """Returns the results of tools right before an answer."""
    before = list(takewhile(lambda message: message.get("id") != answer, log))
    if len(before) == len(log):
        return []
    return list(takewhile(lambda message: message.get("type") == "tool", reversed(before)))[::-1]


def subagent_of(run: Run | None, call_id: str) -> tuple[str, Delegation] | None:
    return delegation(run, call_id) if run is not None else None

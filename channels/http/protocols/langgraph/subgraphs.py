"""Subagents as LangGraph's subgraphs: what they show in namespaces of their own, `tools:<id of the call>`.

Pure, as `frames` is. A subagent's answers are facts of its caller's thread. Its previews come from its own run, and
their places are not those of the thread: each subagent has a reader, and the position in each message that is being
made is part of every frame's id.

The results of a subagent's tools are in its own log only (`learn`). They are sent before the first character of the
answer that follows them, and have no ids: a position in that answer says that they were sent.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import NamedTuple

from channels.http.protocols.langgraph import dumps
from channels.http.protocols.langgraph.chunks import chunk, last_chunk, place
from channels.http.protocols.langgraph.modes import Emit, Modes, Slot, announced
from channels.http.streams.subagent_logs import Child, subagent_behind
from core.events import Message, SubagentCompleted, SubagentProgressed, SubagentStarted
from core.runs.follow import Item
from core.runs.previews import Ahead, Piece, Preview, Progress, Reader, line_of, rest_of, tag

Place = tuple[str, int]
"""The tag of a message that is being made, and how many of its characters were sent."""
Sent = tuple[str, bytes]
"""The name and the data of a frame."""


class Voice(NamedTuple):
    """The run of a subagent, whose previews are followed."""

    id: str
    status: str = "running"


@dataclass(slots=True)
class _Subagent:
    """A subagent at work. Its run has its own id."""

    id: str
    call_id: str
    name: str
    messages: list[Message]
    reader: Reader = field(default_factory=Reader)
    after: int = 0
    """The fact of its own log after which the message that is being made began."""
    ahead: Ahead[Preview] = field(default_factory=Ahead)
    log: Sequence[Message] = ()
    """The messages of its own log, as far as they were read."""

    @property
    def namespace(self) -> str:
        return f"tools:{self.call_id}"

    def knows(self, message: str) -> bool:
        """Tells if a message is being made, or finished."""
        return self.reader.message == message or self.is_finished(message)

    def is_finished(self, message: str) -> bool:
        return any(known.get("id") == message for known in self.messages)

    def due(self) -> list[Message]:
        """Takes over what follows the newest known message in its log, up to the next answer."""
        newest = self.messages[-1].get("id")
        after = (n for n, message in enumerate(self.log, 1) if message.get("id") == newest)
        rest = self.log[next(after, len(self.log)) :]
        messages = list(takewhile(lambda message: message.get("type") != "ai", rest))
        self.messages += messages
        return messages


def _child(subagent: _Subagent | None) -> Child | None:
    return None if subagent is None else Child(subagent.id, subagent.knows)


class Subgraphs:
    """The subagents of a run. Feed it their facts in order, and their previews as they come."""

    def __init__(self, thread_id: str, run_id: str, modes: Collection[str]) -> None:
        self._ids = {"run_id": run_id, "thread_id": thread_id}
        self._modes = frozenset(modes)
        self._tuple = "messages-tuple" in modes
        self._open: dict[str, _Subagent] = {}
        """By the id of the call."""
        self._resumed: dict[str, int] = {}
        """Positions in messages that are not being read: the client has them, or another message came first."""

    def speakers(self) -> Iterator[Voice]:
        """Yields the runs whose previews are shown."""
        if self._tuple or "custom" in self._modes:
            yield from (Voice(child.id) for child in self._open.values())

    def places(self) -> tuple[Place, ...]:
        """Returns the positions in all messages that are being made."""
        begun = [(child.reader.tag, child.reader.offset) for child in self._open.values() if child.reader.offset]
        return tuple(sorted([*begun, *self._resumed.items()]))

    def resume(self, places: Iterable[Place]) -> None:
        """Goes on where the client was."""
        self._resumed = dict(places)
        for child in self._open.values():
            child.reader = Reader()

    def behind(self, item: Item) -> str | None:
        """Returns the subagent whose log has to be read before the item."""
        return subagent_behind(item, lambda run: _child(self._of_run(run)), lambda call: _child(self._open.get(call)))

    def learn(self, subagent: str, messages: Sequence[Message]) -> None:
        """Takes the messages of a subagent's own log."""
        if (child := self._of_run(subagent)) is not None:
            child.log = messages

    def preview(self, run_id: str, preview: Preview) -> tuple[list[Sent], Sent | None]:
        """Returns the frames of what is new in a preview of a subagent's run: of what came before it, and its own."""
        child = self._of_run(run_id)
        if child is None or not self._tuple or child.is_finished(preview.message):
            return [], None
        if child.reader.message not in (None, preview.message):
            if preview.after > child.after:
                child.ahead.put(preview)  # the open message comes first, in full; or it was given up, which a fact says
            return [], None
        before = self._open_message(child, preview.message)
        child.after = preview.after
        piece = child.reader.take(preview)
        if piece is None:
            return before, None
        part = Piece(piece.part, piece.text, piece.index, piece.call_id, piece.name)
        frame = chunk(preview.message, part, self._metadata(child, preview.message))
        return before, (f"messages|{child.namespace}", frame)

    def progress(self, run_id: str, progress: Progress) -> list[Sent]:
        """Returns the frames of the output of a subagent's tool."""
        child = self._of_run(run_id)
        shown = Modes.shown(progress, self._modes) if child else []
        return [(f"{event}|{child.namespace}", data) for event, data in shown if child]

    def waiting(self) -> list[tuple[str, Preview]]:
        """Returns the previews that waited for a fact, each with its run. None is left."""
        return [(child.id, preview) for child in self._open.values() for preview in child.ahead.take()]

    def rest(self, event: SubagentProgressed) -> Iterator[tuple[Sent, bool]]:
        """Yields the text of an answer that previews did not bring, and before it what it follows. The position moves
        with each; the second value tells if there is child.
        """
        child, identity = self._open.get(event.call_id), str(event.message.get("id"))
        if child is None or child.is_finished(identity):
            return
        if child.reader.message not in (None, identity):
            self._resumed |= {child.reader.tag: child.reader.offset}
            child.reader = Reader()
        yield from ((sent, False) for sent in self._open_message(child, identity))
        metadata = self._metadata(child, identity)
        for end, piece in rest_of(line_of(event.message, {}), child.reader.offset) if self._tuple else ():
            child.reader.offset = end
            yield (f"messages|{child.namespace}", chunk(identity, piece, metadata)), True

    def fact(self, event: SubagentStarted | SubagentProgressed | SubagentCompleted) -> list[Emit]:
        """Returns the frames of a fact."""
        match event:
            case SubagentStarted():
                prompt = {"type": "human", "id": f"human-{event.subagent}", "content": event.prompt}
                child = _Subagent(event.subagent, event.call_id, event.name, [prompt])
                self._open[event.call_id] = child
                return list(self._values(child))
            case SubagentProgressed():
                known = self._open.get(event.call_id)
                return list(self._progressed(known, event.message)) if known else []
            case SubagentCompleted():
                self._open.pop(event.call_id, None)
                if not self._open:
                    self._resumed = {}
                return []

    def _progressed(self, child: _Subagent, message: Message) -> Iterator[Emit]:
        identity, namespace = str(message.get("id")), child.namespace
        if child.is_finished(identity):
            return
        child.due()
        metadata = self._metadata(child, identity)
        child.messages.append(message)
        child.reader = Reader()
        self._resumed.pop(tag(identity), None)
        if self._tuple:
            yield Slot.MESSAGE, f"messages|{namespace}", last_chunk(message, metadata)
        elif "messages" in self._modes:
            yield Slot.MESSAGE_METADATA, f"messages/metadata|{namespace}", announced(identity, metadata)
            yield Slot.MESSAGE, f"messages/complete|{namespace}", dumps.encode([dumps.raw(message)])
        if "updates" in self._modes:
            update = {"model": {"messages": [dumps.raw(message)]}}
            yield Slot.UPDATES, f"updates|{namespace}", dumps.encode(update)
        yield from self._values(child)

    def _values(self, child: _Subagent) -> Iterator[Emit]:
        if "values" in self._modes:
            yield Slot.VALUES, f"values|{child.namespace}", dumps.encode(dumps.values({"messages": child.messages}))

    def _of_run(self, run_id: str) -> _Subagent | None:
        return next((child for child in self._open.values() if child.id == run_id), None)

    def _open_message(self, child: _Subagent, message: str) -> list[Sent]:
        """Begins to read a message, where the client was. Returns the frames of what comes before it."""
        if child.reader.message is not None:
            return []
        child.reader = Reader(message, self._resumed.pop(tag(message), 0))
        due = child.due()
        return [] if child.reader.offset else [sent for known in due for sent in self._whole(child, known)]

    def _whole(self, child: _Subagent, message: Message) -> Iterator[Sent]:
        if self._tuple:
            metadata = self._metadata(child, str(message.get("id")), "tools")
            yield f"messages|{child.namespace}", place(dumps.encode(dumps.raw(message)), metadata)
        if "updates" in self._modes and message.get("type") == "tool":
            yield f"updates|{child.namespace}", dumps.encode({"tools": {"messages": [dumps.raw(message)]}})

    def _metadata(self, child: _Subagent, message: str, node: str = "model") -> bytes:
        checkpoint = f"{child.namespace}|{node}:{message}"
        return dumps.encode(
            {
                **self._ids,
                "langgraph_node": node,
                "langgraph_step": len(child.messages),
                "langgraph_triggers": [f"branch:to:{node}"],
                "langgraph_path": ["__pregel_pull", node],
                "langgraph_checkpoint_ns": checkpoint,
                "checkpoint_ns": checkpoint,
                "lc_agent_name": child.name,
            }
        )

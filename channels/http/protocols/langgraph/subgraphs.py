"""Subagents as LangGraph's subgraphs: what they show in namespaces of their own, `tools:<id of the call>`.

Pure, as `frames` is, whose business the ids are. The results of a subagent's tools are in its own log only. They are
sent before the first character of the answer that follows them, and have no ids: a position in that answer says that
they were sent.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from channels.http.protocols.langgraph import dumps
from channels.http.protocols.langgraph.chunks import chunk, last_chunk, place
from channels.http.protocols.langgraph.modes import Emit, Modes, Slot, announced
from core.events import Message
from core.runs.moments import Grown, Results, Subagent
from core.runs.previews import Progress

Place = tuple[str, int]
"""The tag of a message that is being made, and how many of its characters were sent."""
Sent = tuple[str, bytes]
"""The name and the data of a frame."""


class Subgraphs:
    """The frames of a run's subagents in the modes that one client asked for."""

    def __init__(self, thread_id: str, run_id: str, modes: Collection[str]) -> None:
        self._ids = {"run_id": run_id, "thread_id": thread_id}
        self._modes = frozenset(modes)
        self.shows_text = "messages-tuple" in modes
        self.shows_previews = self.shows_text or "custom" in modes

    def progress(self, subagent: Subagent, progress: Progress) -> list[Sent]:
        """Returns the frames of the output of a subagent's tool."""
        return [(f"{event}|{_namespace(subagent)}", data) for event, data in Modes.shown(progress, self._modes)]

    def results(self, moment: Results) -> Iterator[Sent]:
        """Yields the frames of what an answer follows, unless a client has a part of the answer."""
        subagent = moment.speaker
        for message in moment.messages if not moment.offset else ():
            if self.shows_text:
                metadata = self._metadata(subagent, str(message.get("id")), len(subagent.messages), "tools")
                yield f"messages|{_namespace(subagent)}", place(dumps.encode(dumps.raw(message)), metadata)
            if "updates" in self._modes and message.get("type") == "tool":
                update = {"tools": {"messages": [dumps.raw(message)]}}
                yield f"updates|{_namespace(subagent)}", dumps.encode(update)

    def grown(self, subagent: Subagent, moment: Grown) -> Iterator[Sent]:
        """Yields the frame of a piece of an answer."""
        if self.shows_text:
            metadata = self._metadata(subagent, moment.message, len(subagent.messages))
            yield f"messages|{_namespace(subagent)}", chunk(moment.message, moment.piece, metadata)

    def finished(self, subagent: Subagent, message: Message) -> Iterator[Emit]:
        """Yields the frames of an answer that is a fact."""
        identity, namespace = str(message.get("id")), _namespace(subagent)
        metadata = self._metadata(subagent, identity, len(subagent.messages) - 1)
        if self.shows_text:
            yield Slot.MESSAGE, f"messages|{namespace}", last_chunk(message, metadata)
        elif "messages" in self._modes:
            yield Slot.MESSAGE_METADATA, f"messages/metadata|{namespace}", announced(identity, metadata)
            yield Slot.MESSAGE, f"messages/complete|{namespace}", dumps.encode([dumps.raw(message)])
        if "updates" in self._modes:
            update = {"model": {"messages": [dumps.raw(message)]}}
            yield Slot.UPDATES, f"updates|{namespace}", dumps.encode(update)
        yield from self.values(subagent)

    def values(self, subagent: Subagent) -> Iterator[Emit]:
        """Yields the frame of a subagent's conversation."""
        if "values" in self._modes:
            values = dumps.encode(dumps.values({"messages": subagent.messages}))
            yield Slot.VALUES, f"values|{_namespace(subagent)}", values

    def _metadata(self, subagent: Subagent, message: str, step: int, node: str = "model") -> bytes:
        checkpoint = f"{_namespace(subagent)}|{node}:{message}"
        return dumps.encode(
            {
                **self._ids,
                "langgraph_node": node,
                "langgraph_step": step,
                "langgraph_triggers": [f"branch:to:{node}"],
                "langgraph_path": ["__pregel_pull", node],
                "langgraph_checkpoint_ns": checkpoint,
                "checkpoint_ns": checkpoint,
                "lc_agent_name": subagent.name,
            }
        )


def _namespace(subagent: Subagent) -> str:
    return f"tools:{subagent.call_id}"

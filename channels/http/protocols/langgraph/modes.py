"""The frames of each `stream_mode` for a fact, and for a piece of a message. Pure; the ids are `frames`' business."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from enum import IntEnum
from typing import Any

from channels.http.protocols.langgraph import dumps, snapshots
from channels.http.protocols.langgraph.callbacks import Callbacks
from channels.http.protocols.langgraph.chunks import Cumulative, chunk, last_chunk, place
from channels.http.protocols.langgraph.run_object import event_json, retry_json
from channels.http.streams.tasks import task_event
from core.events import (
    ContextCompacted,
    Event,
    Json,
    Message,
    MessageAdded,
    ModelCompleted,
    ModelFailed,
    Record,
    RunCancelled,
    RunCompleted,
    RunFailed,
    RunPaused,
    RunRolledBack,
    RunStarted,
    StatePatched,
    SubagentCompleted,
    SubagentProgressed,
    SubagentStarted,
    ThreadTitled,
    ToolCompleted,
    ToolRequested,
)
from core.runs.previews import Piece, Preview, Progress
from core.thread.entries import Before
from core.thread.numbers import number_of
from core.thread.state import COMPACTED, TITLED, Run, ThreadState
from core.thread.values import next_nodes, unanswered
from core.wording import is_for_chats


class Slot(IntEnum):
    """The order of one fact's frames. Part of the frame ids: append-only, and never renumbered."""

    METADATA = 0
    EVENT_END = 1
    MESSAGE_METADATA = 2
    MESSAGE = 3
    CUSTOM = 4
    TASK_RESULT = 5
    DEBUG_TASK_RESULT = 6
    UPDATES = 7
    VALUES = 8
    CHECKPOINT = 9
    DEBUG_CHECKPOINT = 10
    TASK = 11
    DEBUG_TASK = 12
    EVENT_START = 13
    ERROR = 14
    EVENT_CHAIN_END = 15
    END = 16
    ROOT = TASK_RESULT
    """Of a run's start, which ends no task: the checkpoint before the first input."""
    DEBUG_ROOT = DEBUG_TASK_RESULT


Emit = tuple[Slot, str, bytes]


class Modes:
    """The modes one client asked for, and the little that they must remember between facts."""

    def __init__(self, thread_id: str, run_id: str, modes: Collection[str], run: Run | None) -> None:
        self._thread = thread_id
        self._run = run_id
        self._modes = frozenset(modes)
        self._tuple = "messages-tuple" in modes
        self._legacy = Cumulative() if "messages" in modes and not self._tuple else None
        self._events = Callbacks(run_id) if "events" in modes else None
        self._task = run.last_id if run is not None else ""
        """Id of the model's task: that of the fact that led to it."""
        self._place: tuple[str, int, bytes] = ("", 0, b"")
        self.announced = False
        """True if `messages/metadata` of the message that is being made was sent."""

    @property
    def names(self) -> frozenset[str]:
        """The modes that were asked for."""
        return self._modes

    @property
    def shows_text(self) -> bool:
        """Tells whether any of them shows a message while it is being made."""
        return self._tuple or self._legacy is not None or self._events is not None

    def opened(self) -> None:
        """The next message begins."""
        self.announced = False
        if self._legacy:
            self._legacy = Cumulative()

    def overheard(self, preview: Preview) -> None:
        """Any preview, also one whose text was already sent: cumulative modes need it all."""
        if self._legacy:
            self._legacy.take(preview)

    # ── pieces of a message ─────────────────────────────────────────────────────────────────────────────────────────

    def delta(self, message: str, piece: Piece, end: int, state: ThreadState | Before) -> list[tuple[str, bytes]]:
        """A piece of a message that is made on `state`; `end` is the offset after it."""
        emits = []
        if self._events:
            emits.append(("events", self._events.stream(self._task, message, piece, self._of_answer(message, state))))
        if self._legacy and self._legacy.end == end:
            if not self.announced:
                emits.append(("messages/metadata", announced(message, self._of_answer(message, state))))
                self.announced = True
            emits.append(("messages/partial", dumps.encode([self._legacy.message(message)])))
        if self._tuple:
            emits.append(("messages", chunk(message, piece, self._of_answer(message, state))))
        return emits

    def progress(self, progress: Progress) -> list[tuple[str, bytes]]:
        return self.shown(progress, self._modes)

    @staticmethod
    def shown(progress: Progress, modes: Collection[str]) -> list[tuple[str, bytes]]:
        """Returns the frames of a tool's output."""
        if "custom" not in modes:
            return []
        about = {"tool_call_id": progress.call_id, "name": progress.name, "text": progress.text}
        data = {"type": "tool_progress", **about, **({"stage": True} if progress.stage else {})}
        return [("custom", dumps.encode(data))]

    # ── facts ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def fact(
        self, record: Record, before: Before, state: ThreadState, *, quiet: bool = False, void: bool = False
    ) -> list[Emit]:
        """The frames of a fact of the run, or of one that changed the state under it.

        `quiet`: only remember what must be. `void`: the client has text of a message that is not finished.
        """
        event, task = record.event, self._task
        done = not unanswered(state.messages)
        first = isinstance(event, RunStarted) and before.runs[self._run].attempt == 0
        if first or (isinstance(event, ToolCompleted) and done):
            self._task = record.id
        if quiet:
            return []
        emits: Iterator[Emit] = iter(())
        match event:
            case RunStarted() if first:
                emits = self._started(record, before, state)
            case RunStarted() if self.shows_text:
                emits = self._values(record, state)
            case ModelCompleted():
                emits = self._model_completed(record, event, task, before, state)
            case ModelFailed():
                emits = self._model_failed(record, event, state)
            case ToolRequested():
                emits = self._tool_requested(record, event, state)
            case ToolCompleted():
                emits = self._tool_completed(record, event, before, state, done)
            case StatePatched() | MessageAdded():
                emits = self._step(record, state)
            case ContextCompacted():
                emits = self._compacted(record, state)
            case SubagentStarted() | SubagentProgressed() | SubagentCompleted():
                emits = self._delegated(event, state)
            case ThreadTitled():
                emits = self._titled(record, state)
            case RunPaused():
                emits = self._paused(record, event, state, void=void)
            case RunCompleted() | RunFailed() | RunCancelled() | RunRolledBack():
                void = void or (isinstance(event, RunRolledBack) and before.runs[self._run].attempt > 0)
                emits = self._ended(record, event, state, void=void)
            case _ if "custom" in self._modes and is_for_chats(event):
                emits = iter([(Slot.CUSTOM, "custom", dumps.encode(event_json(record)))])
        return list(emits)

    def _started(self, record: Record, before: Before, state: ThreadState) -> Iterator[Emit]:
        if self._events:
            yield Slot.EVENT_END, "events", self._events.chain_start(state)
        committed = len(state.commits) > before.length
        if committed and snapshots.follows_root(state):
            yield from self._root(record, state)
        yield from self._step(record, state, committed=committed)
        yield from self._model_next(record, state)

    def _root(self, record: Record, state: ThreadState) -> Iterator[Emit]:
        if self._modes.isdisjoint(("checkpoints", "debug")):
            return
        payload = snapshots.root_event(record, state)
        if "checkpoints" in self._modes:
            yield Slot.ROOT, "checkpoints", dumps.encode(payload)
        if "debug" in self._modes:
            step = payload["metadata"]["step"]
            yield Slot.DEBUG_ROOT, "debug", self._debug("checkpoint", payload, record, step)

    def _model_next(self, record: Record, state: ThreadState) -> Iterator[Emit]:
        if next_nodes(state.messages) != ["model"]:
            return
        yield from self._task_start(self._task, "model", snapshots.task_input(state), record, state)
        if self._events:
            yield Slot.EVENT_START, "events", self._events.model_start(self._task, state)

    def _model_failed(self, record: Record, event: ModelFailed, state: ThreadState) -> Iterator[Emit]:
        if event.wait_ms is not None and "custom" in self._modes:
            yield Slot.CUSTOM, "custom", dumps.encode(retry_json(event))
        if self.shows_text:
            yield from self._values(record, state)

    def _model_completed(
        self, record: Record, event: ModelCompleted, task: str, before: Before, state: ThreadState
    ) -> Iterator[Emit]:
        message = event.message
        identity = str(message.get("id"))
        metadata = self._of_answer(identity, before)
        if self._events:
            yield Slot.EVENT_END, "events", self._events.model_end(task, message, state)
        if self._tuple:
            yield Slot.MESSAGE, "messages", last_chunk(message, metadata, number_of(state, message))
        elif self._legacy:
            if not self.announced:
                yield Slot.MESSAGE_METADATA, "messages/metadata", announced(identity, metadata)
            yield Slot.MESSAGE, "messages/complete", dumps.encode([dumps.head(message, state)])
        update = {"messages": [dumps.head(message, state)]}
        yield from self._task_end(task, "model", update, None, record, state)
        yield from self._step(record, state)

    def _tool_requested(self, record: Record, event: ToolRequested, state: ThreadState) -> Iterator[Emit]:
        call = next((call for call in unanswered(state.messages) if call["id"] == event.call_id), None)
        args = event.args if event.args is not None else (call or {}).get("args", {})
        call = {"type": "tool_call", "id": event.call_id, "name": event.name, "args": args}
        yield from self._task_start(record.id, "tools", call, record, state)
        if self._events:
            yield Slot.EVENT_START, "events", self._events.tool_start(record.id, event.name, args, state)

    def _tool_completed(
        self, record: Record, event: ToolCompleted, before: Before, state: ThreadState, done: bool
    ) -> Iterator[Emit]:
        message = event.message
        intent = before.runs[self._run].intents.get(event.call_id)
        task = intent.id if intent else event.call_id
        if self._events:
            yield Slot.EVENT_END, "events", self._events.tool_end(task, message, state)
        yield from self._whole(message, "tools", state)
        error = str(message.get("content")) if message.get("status") == "error" else None
        update = {**event.update, "messages": [dumps.head(message, state)]}
        yield from self._task_end(task, "tools", update, error, record, state)
        yield from self._step(record, state, whole=done)
        if done:
            yield from self._model_next(record, state)

    def _whole(self, message: Message, node: str, state: ThreadState) -> Iterator[Emit]:
        """A message that nobody saw being made."""
        identity = str(message.get("id"))
        metadata = self._metadata(identity, _step_of(state, 0), node)
        if self._tuple:
            yield Slot.MESSAGE, "messages", place(dumps.encode(dumps.head(message, state)), metadata)
        elif self._legacy:
            yield Slot.MESSAGE_METADATA, "messages/metadata", announced(identity, metadata)
            yield Slot.MESSAGE, "messages/complete", dumps.encode([dumps.head(message, state)])

    def _compacted(self, record: Record, state: ThreadState) -> Iterator[Emit]:
        """The web page waits for this update, and for what removes all messages to come first (DeerFlow's
        middleware Summarization).
        """
        if "updates" in self._modes:
            update = dumps.numbered_values(state.commits[state.head].patch, state)
            yield Slot.UPDATES, "updates", dumps.encode({COMPACTED: update})
        yield from self._step(record, state)

    def _delegated(self, event: Event, state: ThreadState) -> Iterator[Emit]:
        if "custom" in self._modes and (data := task_event(event, state.runs[self._run])) is not None:
            yield Slot.CUSTOM, "custom", dumps.encode(data)

    def _titled(self, record: Record, state: ThreadState) -> Iterator[Emit]:
        """The web page renames its conversation at this update. Before the run starts there are no values to show."""
        if "updates" in self._modes:
            yield Slot.UPDATES, "updates", dumps.encode({TITLED: {"title": state.values.get("title")}})
        if state.runs[self._run].status in ("running", "success"):
            yield from self._values(record, state)

    def _step(
        self, record: Record, state: ThreadState, *, whole: bool = True, committed: bool = True
    ) -> Iterator[Emit]:
        if whole:
            yield from self._values(record, state)
        if committed and "checkpoints" in self._modes:
            yield Slot.CHECKPOINT, "checkpoints", dumps.encode(snapshots.checkpoint_event(record, state))
        if committed and "debug" in self._modes:
            payload = snapshots.checkpoint_event(record, state)
            yield Slot.DEBUG_CHECKPOINT, "debug", self._debug("checkpoint", payload, record, _step_of(state, 0))

    def _values(self, record: Record, state: ThreadState) -> Iterator[Emit]:
        def encoded() -> bytes:
            return dumps.encode(dumps.timed_values(state.values, state, state.head))

        if "values" in self._modes:
            yield Slot.VALUES, "values", dumps.once(record, "values", encoded)

    def _task_start(self, task: str, node: str, given: Any, record: Record, state: ThreadState) -> Iterator[Emit]:
        payload = {"id": task, "name": node, "input": given, "triggers": [f"branch:to:{node}"]}
        if "tasks" in self._modes:
            yield Slot.TASK, "tasks", dumps.encode(payload)
        if "debug" in self._modes:
            yield Slot.DEBUG_TASK, "debug", self._debug("task", payload, record, _step_of(state, 1))

    def _task_end(
        self, task: str, node: str, update: Json, error: str | None, record: Record, state: ThreadState
    ) -> Iterator[Emit]:
        payload: Json = {"id": task, "name": node, "error": error, "result": update, "interrupts": []}
        if "tasks" in self._modes:
            yield Slot.TASK_RESULT, "tasks", dumps.encode(payload)
        if "debug" in self._modes:
            yield Slot.DEBUG_TASK_RESULT, "debug", self._debug("task_result", payload, record, _step_of(state, 0))
        if "updates" in self._modes:
            yield Slot.UPDATES, "updates", dumps.encode({node: update})

    def _paused(self, record: Record, event: RunPaused, state: ThreadState, *, void: bool) -> Iterator[Emit]:
        """Interrupts are reported through `values` also where only `updates` were not asked for (protocol §5.1)."""
        interrupts = [{"id": one.id, "value": one.value} for one in event.interrupts]
        if "updates" in self._modes:
            yield Slot.UPDATES, "updates", dumps.encode({"__interrupt__": interrupts})
        if interrupts and ("values" in self._modes or "updates" not in self._modes):
            yield (
                Slot.VALUES,
                "values",
                dumps.encode({**dumps.timed_values(state.values, state, state.head), "__interrupt__": interrupts}),
            )
        elif void:
            yield from self._values(record, state)
        if self._events:
            yield Slot.EVENT_CHAIN_END, "events", self._events.chain_end(state)
        yield Slot.END, "end", b"null"

    def _ended(
        self,
        record: Record,
        event: RunCompleted | RunFailed | RunCancelled | RunRolledBack,
        state: ThreadState,
        *,
        void: bool,
    ) -> Iterator[Emit]:
        if isinstance(event, RunFailed):
            if event.message is not None:
                yield from self._whole(event.message, "model", state)
                if "updates" in self._modes:
                    update = {"model": {"messages": [dumps.head(event.message, state)]}}
                    yield Slot.UPDATES, "updates", dumps.encode(update)
                yield from self._step(record, state)
            elif void:
                yield from self._values(record, state)
            data = {"error": event.error, "message": event.text, "name": event.error}
            yield Slot.ERROR, "error", dumps.encode(data)
            yield Slot.END, "end", b"null"
            return
        keys = state.runs[self._run].request.feedback_keys
        if keys and isinstance(event, RunCompleted):
            where = f"/threads/{self._thread}/runs/{self._run}/feedback"
            yield Slot.CUSTOM, "feedback", dumps.encode(dict.fromkeys(keys, where))
        if void:
            yield from self._values(record, state)
        if self._events:
            yield Slot.EVENT_CHAIN_END, "events", self._events.chain_end(state)
        yield Slot.END, "end", b"null"

    # ── metadata ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _of_answer(self, message: str, state: ThreadState | Before) -> bytes:
        """Returns the metadata of the model's answer to `state`, wherever it is sent."""
        return self._metadata(message, _answer_step(state, self._run))

    def _metadata(self, message: str, step: int, node: str = "model") -> bytes:
        """Returns the metadata of a message."""
        if self._place[:2] != (f"{node}:{message}", step):
            data = {
                "run_id": self._run,
                "thread_id": self._thread,
                "langgraph_node": node,
                "langgraph_step": step,
                "langgraph_triggers": [f"branch:to:{node}"],
                "langgraph_path": ["__pregel_pull", node],
                "langgraph_checkpoint_ns": f"{node}:{message}",
            }
            self._place = (f"{node}:{message}", step, dumps.encode(data))
        return self._place[2]

    def _debug(self, kind: str, payload: Json, record: Record, step: int) -> bytes:
        return dumps.encode({"step": step, "timestamp": record.at, "type": kind, "payload": payload})


def wants_previews(modes: Collection[str]) -> bool:
    """Tells whether any of these modes shows a message, or a tool's progress, before it is a fact."""
    return not {"messages", "messages-tuple", "events", "custom"}.isdisjoint(modes)


def announced(message: str, metadata: bytes) -> bytes:
    return b'{%b:{"metadata":%b}}' % (dumps.encode(message), metadata)


def _answer_step(state: ThreadState | Before, run_id: str) -> int:
    """The step of the model's answer. What others write while it is made does not count: an answer has one step."""
    run = state.runs.get(run_id)
    index = state.head
    while run is not None and index >= 0:
        commit = state.commits[index]
        if commit.seq <= run.turn_seq or commit.source != "update" or commit.run is not None:
            break
        index = commit.parent
    return (state.commits[index].step if index >= 0 else -1) + 1


def _step_of(state: ThreadState, ahead: int) -> int:
    return (state.commits[state.head].step if state.head >= 0 else -1) + ahead

"""A thread's events as a pure function of facts and previews: no clock, no I/O. See `wire` for their numbers.

A tape that was begun at any fact, with the state before it, tells the same from there on as one that was begun at the
first. Live, replayed and resumed streams differ in what they show of a message before it is finished, and in nothing
else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from itertools import takewhile

import msgspec

from channels.http.protocols.langgraph import dumps
from channels.http.protocols.langgraph.run_object import retry_json
from channels.http.protocols.langgraph.snapshots import follows_root, parent_seq
from channels.http.protocols.langgraph_events.blocks import Body, MessageEvent, tool_message
from channels.http.protocols.langgraph_events.wire import (
    MOST_QUESTIONS,
    ROOT,
    Namespace,
    Slot,
    WireEvent,
    encode,
    place,
)
from channels.http.streams.tasks import delegation, task_event
from core.events import (
    ContextCompacted,
    Interrupt,
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
    ThreadErased,
    ThreadForked,
    ThreadPruned,
    ThreadTitled,
    ToolCompleted,
    ToolRequested,
)
from core.ids import checkpoint_id
from core.runs.follow import Item
from core.runs.moments import Finished, GivenUp, Grown, Missed, Moment, Moments, Results, Voice
from core.runs.previews import Preview, Progress
from core.thread.entries import Before
from core.thread.fold import Folding
from core.thread.fold_runs import answered
from core.thread.state import COMPACTED, TITLED, Run, ThreadState
from core.thread.state import ROOT as BEFORE_ALL
from core.thread.subagents import TOOL as DELEGATION
from core.thread.values import next_nodes, unanswered

Wants = Callable[[str, Namespace], bool]


class Tape:
    """Feed it every fact of the thread after `state`, in order, and previews as they come.

    `after`: the number up to which everything was seen. `clock`: of the newest fact so far, see `milliseconds`.
    `gone`: runs that are known to be rolled back; only their ends are shown. `snapshots_from`: the fact from which on
    values and checkpoints are sent.
    """

    def __init__(
        self,
        state: ThreadState,
        wants: Wants,
        *,
        after: int = -1,
        clock: int = 0,
        gone: frozenset[str] = frozenset(),
        snapshots_from: int = 0,
    ) -> None:
        self._folding = Folding(state)
        self.missed: str | None = None
        """A message of which previews were missed, if any: its run's stored ones may help."""
        self._wants = wants
        self._after = after
        self.clock = clock
        """Milliseconds; see `milliseconds`."""
        self._gone = gone
        self._snapshots_from = snapshots_from
        self._moments = Moments(self._folding)
        self._bodies: dict[str, Body] = {}
        """The messages that are being made, by their run or subagent."""

    @property
    def state(self) -> ThreadState:
        """The newest state; the next fact changes it."""
        return self._folding.state

    @property
    def seq(self) -> int:
        """The newest fact that was fed."""
        return self.state.seq

    def fact(self, record: Record) -> list[WireEvent]:
        before = self._folding.apply(record)
        self.clock = milliseconds(record.at, self.clock)
        return [*self._events_of(record, before), *self._printed(self._moments.waiting())]

    def preview(self, run_id: str, preview: Preview | Progress) -> list[WireEvent]:
        """Returns the events of a preview's new part; [] if nothing is new, or if something before it is missing."""
        if isinstance(preview, Progress):
            return self._progress(self.state.runs.get(run_id), preview)
        return self._printed(self._moments.preview(run_id, preview))

    def behind(self, item: Item) -> str | None:
        """Returns the subagent that `learn` needs before the item is fed, or None."""
        return self._moments.needs(item)

    def learn(self, subagent: str, messages: Sequence[Message]) -> None:
        """Takes the messages of a subagent's own log, as it is by now."""
        self._moments.learn(subagent, messages)

    def voices(self) -> list[Voice]:
        """Returns the subagents whose previews are followed."""
        return [Voice(subagent.id) for subagent in self._moments.subagents]

    def unfinished(self) -> list[WireEvent]:
        """Everything that was sent of the messages that are being made."""
        speakers = [run for run in self._bodies if run in self.state.runs]
        speakers += [subagent for subagent in self._bodies if self._moments.subagent(subagent) is not None]
        return [
            event
            for speaker in speakers
            for event in self._message_events(self._bodies[speaker].events, self._namespace(speaker))
        ]

    # ── what a fact tells ───────────────────────────────────────────────────────────────────────────────────────────

    def _events_of(self, record: Record, before: Before) -> Iterator[WireEvent]:
        event = record.event
        if isinstance(event, ThreadForked | ThreadPruned | StatePatched):
            yield from self._step(record, before, whole=True)
        if isinstance(event, ThreadTitled):
            update = {"title": self.state.values.get("title")}
            yield from self._event(record, Slot.UPDATES, "updates", {"node": TITLED, "values": update})
            yield from self._step(record, before, whole=True)
        if isinstance(event, ThreadErased):
            for speaker in list(self._bodies):
                yield from self._broken_off(speaker)
        if isinstance(event, ContextCompacted) and record.run not in self._gone:
            update = dumps.numbered_values(self.state.commits[self.state.head].patch, self.state)
            yield from self._event(record, Slot.UPDATES, "updates", {"node": COMPACTED, "values": update})
            yield from self._step(record, before, whole=True)
        run = before.runs.get(record.run or "")
        if run is None or not run.open:
            return
        if run.id in self._gone and not isinstance(event, RunRolledBack):
            return
        if not isinstance(event, SubagentStarted | SubagentProgressed | SubagentCompleted):
            yield from self._messages_of(record)
        match event:
            case RunStarted():
                if run.attempt == 0:
                    yield from self._started(record, run, before)
            case MessageAdded():
                yield from self._step(record, before)
            case ModelCompleted():
                yield from self._model_completed(record, event, before)
            case ModelFailed():
                if event.wait_ms is not None:
                    yield from self._custom(record, "llm_retry", retry_json(event))
            case ToolRequested():
                yield from self._tool_requested(record, event)
            case ToolCompleted():
                yield from self._tool_completed(record, event, run, before)
            case SubagentStarted() | SubagentProgressed() | SubagentCompleted():
                yield from self._delegated(record, event)
            case RunPaused():
                for number, one in enumerate(event.interrupts[:MOST_QUESTIONS]):
                    yield from self._input_requested(record, run, number, one)
                yield from self._lifecycle(record, run, Slot.ENDED, "interrupted")
            case RunCompleted():
                yield from self._lifecycle(record, run, Slot.ENDED, "completed")
            case RunFailed():
                yield from self._lifecycle(record, run, Slot.ENDED, "failed", error=event.text)
            case RunCancelled():
                yield from self._lifecycle(record, run, Slot.ENDED, "interrupted")
            case RunRolledBack():
                if self.state.head != before.head:
                    yield from self._step(record, before, whole=True)
                yield from self._lifecycle(record, run, Slot.ENDED, "interrupted")

    def _started(self, record: Record, run: Run, before: Before) -> Iterator[WireEvent]:
        yield from self._lifecycle(record, run, Slot.RUNNING, "running")
        if run.request.resume and before.paused and self._wants("input", ROOT):
            answers = answered(before, run.request.resume)
            ids = [
                one.id
                for one in before.paused.interrupts
                if len(answers.get(one.call_id or "", ())) > len(before.answers.get(one.call_id or "", ()))
            ]
            yield from self._event(
                record,
                Slot.ANSWERED,
                "input",
                {"interrupt_ids": ids},
                method="input.answered",
                identity=f"synth:{run.id}:answered||",
            )
        yield from self._step(record, before, whole=True)
        yield from self._model_next(record)

    def _model_next(self, record: Record) -> Iterator[WireEvent]:
        if next_nodes(self.state.messages) == ["model"] and self._wants("tasks", ROOT):
            given = dumps.numbered_values(self.state.values, self.state)
            yield from self._task_start(record, _model_task(self.state), "model", given)

    def _model_completed(self, record: Record, event: ModelCompleted, before: Before) -> Iterator[WireEvent]:
        update = {"messages": [dumps.head(event.message, self.state)]}
        yield from self._task_end(record, _model_task(before), "model", update, None)
        yield from self._step(record, before)

    def _tool_requested(self, record: Record, event: ToolRequested) -> Iterator[WireEvent]:
        call = next((call for call in unanswered(self.state.messages) if call["id"] == event.call_id), None)
        args = event.args if event.args is not None else (call or {}).get("args", {})
        data = {"event": "tool-started", "tool_call_id": event.call_id, "tool_name": event.name, "input": args}
        yield from self._event(record, Slot.TOOL, "tools", data, namespace=_of_tool(event.call_id, event.name))
        if self._wants("tasks", ROOT):
            call = {"type": "tool_call", "id": event.call_id, "name": event.name, "args": args}
            yield from self._task_start(record, record.id, "tools", call)

    def _tool_completed(self, record: Record, event: ToolCompleted, run: Run, before: Before) -> Iterator[WireEvent]:
        message = event.message
        error = str(message.get("content")) if message.get("status") == "error" else None
        outcome = (
            {"event": "tool-finished", "tool_call_id": event.call_id, "output": dumps.head(message, self.state)}
            if error is None
            else {"event": "tool-error", "tool_call_id": event.call_id, "message": error}
        )
        namespace = _of_tool(event.call_id, str(message.get("name")))
        yield from self._event(record, Slot.TOOL, "tools", outcome, namespace=namespace)
        inside = (f"tools:{event.call_id}",)
        if delegation(run, event.call_id) is None:
            yield from self._numbered(record, self._message_events(tool_message(message), inside))
        intent = run.intents.get(event.call_id)
        update = {**event.update, "messages": [dumps.head(message, self.state)]}
        yield from self._task_end(record, intent.id if intent else event.call_id, "tools", update, error)
        done = not unanswered(self.state.messages)
        yield from self._step(record, before, whole=done)
        if done:
            yield from self._model_next(record)

    def _delegated(
        self, record: Record, event: SubagentStarted | SubagentProgressed | SubagentCompleted
    ) -> Iterator[WireEvent]:
        """A subagent's custom events come from the root, as those of any tool; what it says in its namespace."""
        run = self.state.runs[record.run or ""]
        known = delegation(run, event.call_id)
        if known is None:
            return
        inside = (f"tools:{event.call_id}",)
        if (payload := task_event(event, run)) is not None:
            yield from self._custom(record, payload["type"], payload)
        yield from self._messages_of(record)
        match event:
            case SubagentStarted():
                prompt = {"type": "human", "id": f"human-{known[0]}", "content": event.prompt}
                yield from self._values_inside(record, inside, [prompt])
            case SubagentProgressed():
                update = {"node": "model", "values": {"messages": [dumps.raw(event.message)]}}
                yield from self._event(record, Slot.UPDATES, "updates", update, namespace=inside)
                yield from self._values_inside(record, inside, self._conversation(known[0], event.message))
            case SubagentCompleted():
                yield from self._broken_off(known[0], inside)

    def _conversation(self, subagent: str, answer: Message) -> list[Message]:
        """Returns the conversation of a subagent up to an answer, as its own log has it."""
        known = self._moments.subagent(subagent)
        log = known.log if known is not None else ()
        return [*takewhile(lambda message: message.get("id") != answer.get("id"), log), answer]

    def _values_inside(self, record: Record, inside: Namespace, messages: list[Message]) -> Iterator[WireEvent]:
        if record.seq >= self._snapshots_from:
            values = dumps.values({"messages": messages})
            yield from self._event(record, Slot.VALUES, "values", values, namespace=inside)

    # ── kinds of events ─────────────────────────────────────────────────────────────────────────────────────────────

    def _lifecycle(self, record: Record, run: Run, slot: Slot, phase: str, **more: str) -> Iterator[WireEvent]:
        """Clients learn the run from the id: the form is what LangGraph's server gives it."""
        data = {"event": phase, "graph_name": run.request.assistant, **more}
        yield from self._event(record, slot, "lifecycle", data, identity=f"synth:{run.id}:lc||{phase}")

    def _input_requested(self, record: Record, run: Run, number: int, one: Interrupt) -> Iterator[WireEvent]:
        data = {"interrupt_id": one.id, "payload": one.value, "value": one.value}
        identity = f"synth:{run.id}:input||{one.id}"
        slot = Slot.INPUT + number
        yield from self._event(record, slot, "input", data, method="input.requested", identity=identity)

    def _custom(self, record: Record, name: str, payload: Json) -> Iterator[WireEvent]:
        data = {"name": name, "payload": payload}
        yield from self._event(record, Slot.CUSTOM, f"custom:{name}", data, method="custom")

    def _step(self, record: Record, before: Before, *, whole: bool | None = None) -> Iterator[WireEvent]:
        """The state after a fact that changed it. `whole`: whether the step it belongs to is over."""
        if record.seq < self._snapshots_from:
            return
        state = self.state

        def encoded() -> bytes:
            return encode(dumps.numbered_values(state.values, state))

        committed = len(state.commits) > before.length
        if committed and self._wants("checkpoints", ROOT):
            commit = state.commits[state.head]
            data: Json = {"id": checkpoint_id(commit.seq), "step": commit.step, "source": commit.source}
            if isinstance(record.event, RunStarted) and follows_root(state):
                first = {"id": checkpoint_id(BEFORE_ALL), "step": commit.step - 1, "source": "input"}
                yield from self._event(record, Slot.ROOT, "checkpoints", first)
            if (parent := parent_seq(state, commit)) is not None:
                data["parent_id"] = checkpoint_id(parent)
            yield from self._event(record, Slot.CHECKPOINT, "checkpoints", data)
        if (committed if whole is None else whole) and self._wants("values", ROOT):
            yield from self._event(record, Slot.VALUES, "values", msgspec.Raw(dumps.once(record, "numbered", encoded)))

    def _task_start(self, record: Record, task: str, node: str, given: Json) -> Iterator[WireEvent]:
        data = {"id": task, "name": node, "input": given, "triggers": [f"branch:to:{node}"]}
        yield from self._event(record, Slot.TASK, "tasks", data)

    def _task_end(self, record: Record, task: str, node: str, update: Json, error: str | None) -> Iterator[WireEvent]:
        data: Json = {"id": task, "name": node, "error": error, "result": update, "interrupts": []}
        yield from self._event(record, Slot.TASK_RESULT, "tasks", data)
        yield from self._event(record, Slot.UPDATES, "updates", {"node": node, "values": update})

    def _event(
        self,
        record: Record,
        slot: int,
        channel: str,
        data: Json | msgspec.Raw,
        *,
        method: str = "",
        identity: str = "",
        namespace: Namespace = ROOT,
    ) -> Iterator[WireEvent]:
        number = place(record.seq, slot)
        if number > self._after and self._wants(channel, namespace):
            named = identity or f"{record.seq}-{int(slot)}"
            yield WireEvent(channel, method or channel, namespace, named, number, self.clock, encode(data))

    # ── messages ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _messages_of(self, record: Record) -> Iterator[WireEvent]:
        """Yields the events of messages that a fact gives up, then of the one that it makes whole."""
        yield from self._numbered(record, self._printed(self._moments.fact(record)))

    def _numbered(self, record: Record, events: Sequence[WireEvent]) -> Iterator[WireEvent]:
        """Yields the events of messages of a fact; the end of the message that is whole now has a number."""
        number = place(record.seq, Slot.MESSAGE)
        if number > self._after and events:
            *before, last = events
            yield from before
            yield last._replace(seq=number) if last.id.endswith(":finish") else last

    def _printed(self, moments: Iterable[Moment]) -> list[WireEvent]:
        return [event for moment in moments for event in self._print(moment)]

    def _print(self, moment: Moment) -> list[WireEvent]:
        match moment:
            case Missed(message):
                self.missed = message
            case Results(subagent, messages):
                since = list(takewhile(lambda message: message.get("type") == "tool", reversed(messages)))[::-1]
                before = [event for message in since for event in tool_message(message)]
                self._bodies[subagent.id] = Body(str(subagent.reader.message), before)
                return self._message_events(before, self._namespace(subagent.id))
            case Grown(speaker, message, piece):
                return self._message_events(self._body(speaker, message).feed(piece), self._namespace(speaker))
            case GivenUp(speaker):
                return self._broken_off(speaker)
            case Finished(speaker, event):
                whole = event if isinstance(event, ModelCompleted) else ModelCompleted(message=event.message)
                body = self._body(speaker, str(event.message.get("id")))
                del self._bodies[speaker]
                return self._message_events(body.finish(whole), self._namespace(speaker))
        return []

    def _body(self, speaker: str, message: str) -> Body:
        return self._bodies.setdefault(speaker, Body(message))

    def _namespace(self, speaker: str) -> Namespace:
        subagent = self._moments.subagent(speaker)
        return ROOT if subagent is None else (f"tools:{subagent.call_id}",)

    def _message_events(self, events: Iterable[MessageEvent], namespace: Namespace = ROOT) -> list[WireEvent]:
        if not self._wants("messages", namespace):
            return []
        return [
            WireEvent("messages", "messages", namespace, identity, None, self.clock, encode(data))
            for identity, data in events
        ]

    def _broken_off(self, speaker: str, namespace: Namespace | None = None) -> list[WireEvent]:
        """Returns the end of a message that is not going to be finished, if it was begun."""
        body = self._bodies.pop(speaker, None)
        inside = self._namespace(speaker) if namespace is None else namespace
        return self._message_events(body.abandon(), inside) if body is not None and body.begun else []

    def _progress(self, run: Run | None, progress: Progress) -> list[WireEvent]:
        if run is None or progress.call_id not in run.intents or not self._wants("tools", ROOT):
            return []
        data = {"event": "tool-output-delta", "tool_call_id": progress.call_id, "delta": progress.text}
        return [WireEvent("tools", "tools", ROOT, "", None, self.clock, encode(data))]


def milliseconds(at: str, newest: int = 0) -> int:
    """The time of a fact, in milliseconds. It never goes back, whatever the clocks of the writers: clients drop what is
    older than the state they have.
    """
    try:
        return max(newest, int(datetime.fromisoformat(at).timestamp() * 1000))
    except ValueError:
        return newest


def _of_tool(call_id: str, name: str) -> Namespace:
    """Returns the namespace of a tool's own events. Clients look for a subagent where its call is."""
    return (f"tools:{call_id}",) if name == DELEGATION else ROOT


def _model_task(state: ThreadState | Before) -> str:
    """Id of the model's task: after the commit that led to it."""
    index = state.head
    while index >= 0 and (state.commits[index].source == "update" or state.commits[index].node not in _LEADING):
        index = state.commits[index].parent
    return f"{state.commits[index].seq if index >= 0 else 0}-model"


_LEADING = ("__start__", "tools")

"""A thread of more than what a request may hold: each question of the debugger costs what it needs of it."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest

import core.log.reader
from actors.debugging.forks import fork_thread
from channels.http.server.errors import HttpError
from channels.http.server.reading import WHOLE_BYTES, Reading, Whole
from channels.terminal.log import views
from channels.terminal.text import Style
from core.events import (
    Aggregate,
    Event,
    ModelCompleted,
    Record,
    SetupRecorded,
    ThreadAnnotated,
    ToolCompleted,
    ToolRequested,
)
from core.replay.exports.pins import records_to_pin
from core.replay.source import LogSource
from core.replay.whatif.running import Changes, fork_point
from core.runs.prompts import OF_THREAD, content
from core.runs.replay import part_of
from core.runtime.system import System
from core.thread.fold import fold
from tests.channels.http.conftest import Api, Worker
from tests.channels.http.story import ai

pytestmark = pytest.mark.anyio

EVENT_BYTES = 6 << 20
"""Bytes of a big event."""
EVENTS = WHOLE_BYTES // EVENT_BYTES + 1
MOST_BYTES = 3 * EVENT_BYTES
"""Bytes of events that a question may have in memory: an event that is read, folded, or passed on."""
CALL = {"id": "c1", "name": "bash", "args": {"command": "x" * EVENT_BYTES}}


class Bytes:
    """Bytes of events that requests have in memory, now and at most; actors read the same events meanwhile."""

    def __init__(self) -> None:
        self.now = self.most = 0


@contextmanager
def measured(monkeypatch: pytest.MonkeyPatch, coroutine: str = "RequestHandler") -> Iterator[Bytes]:
    """Measures what tasks with this coroutine read."""
    held = Bytes()

    class Measured(Record):
        __slots__ = ("size",)

        def __init__(self, *arguments: Any, **more: Any) -> None:
            super().__init__(*arguments, **more)
            task = asyncio.current_task()
            self.size = len(self.raw) if task and coroutine in str(task.get_coro()) else 0
            held.now += self.size
            held.most = max(held.most, held.now)

        def __del__(self) -> None:
            held.now -= self.size

    with monkeypatch.context() as patched:
        patched.setattr(core.log.reader, "Record", Measured)
        yield held


async def big(api: Api, worker: Worker, system: System) -> str:
    """Makes a thread with two runs, of which the first has big events that its state does not keep, and a big call."""
    thread = await api.thread()
    run = await api.run(thread)
    await worker.start(thread, run)
    cause: str | None

    async def append(event: Event) -> None:
        nonlocal cause
        _, records = await system.threads.decide(thread, lambda _: [event], actor="test", run=run, cause=cause)
        cause = records[-1].id

    cause = (await system.threads.load(thread)).runs[run].last_id
    for number in range(EVENTS):
        await append(ThreadAnnotated(metadata={"n": number, "text": "y" * EVENT_BYTES}))
    await append(ThreadAnnotated(metadata={"text": ""}))
    await append(ModelCompleted(message=ai("a1", "I look.", CALL)))
    await append(ToolRequested(call_id="c1", name="bash", effect="idempotent"))
    result = {"type": "tool", "id": "t1", "tool_call_id": "c1", "name": "bash", "content": "z" * EVENT_BYTES}
    await append(ToolCompleted(call_id="c1", message=result))
    await worker.finish(thread, run, "done")
    other = await api.run(thread)
    await worker.start(thread, other)
    await worker.finish(thread, other, "again")
    return thread


async def test_questions_about_a_big_thread_hold_little_of_it(
    api: Api, worker: Worker, system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    thread = await big(api, worker, system)
    await api.ask("GET", f"/threads/{thread}/state?select=next")
    questions = {
        "why?event=c1": _why,
        "tree": _tree,
        "tree?run=2": _tree_of_one,
        "diff?left=%231&right=%232": _steps,
        "diff?left=@c1&right=@2": _values,
    }
    with measured(monkeypatch) as held:
        for question, check in questions.items():
            held.most = held.now
            before = held.now
            check(await api.ask("GET", f"/threads/{thread}/log/{question}"))
            assert held.most - before <= MOST_BYTES, f"{question}: {(held.most - before) >> 20} MiB"


@pytest.mark.long
async def test_the_terminal_holds_little_of_a_big_thread(
    api: Api, worker: Worker, system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chain of causes is written event by event, also as JSON; runs are compared by hashes of what is cut."""
    thread, source = await big(api, worker, system), LogSource(system.log)
    lines: list[str] = []

    def write(line: str) -> None:
        lines.append(line[:200])

    async def why() -> None:
        await views.why(source, thread, "c1", write)
        assert [line.split()[4] for line in lines[-2:]] == ["tool.requested", "tool.completed"]

    async def why_as_json() -> None:
        await views.why(source, thread, "c1", write, raw=True)
        assert len(lines) > EVENTS

    async def steps() -> None:
        assert await views.diff(source, f"{thread}#1", f"{thread}#2", write, style=Style())
        assert lines[0].startswith("first difference after ")

    async def moments() -> None:
        assert await views.diff(source, f"{thread}@c1", f"{thread}@2", write, style=Style())

    for work in (why, why_as_json, steps, moments):
        lines.clear()
        with measured(monkeypatch, work.__name__) as held:
            await asyncio.create_task(work())
            assert 0 < held.most <= 4 * EVENT_BYTES, f"{work.__name__}: {held.most >> 20} MiB"


@pytest.mark.long
async def test_forks_what_ifs_pins_and_replays_of_a_big_thread_hold_little_of_it(
    api: Api, worker: Worker, system: System, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A pin and a replay hold their run; one with more than the bound is refused where it is exceeded."""
    thread = Aggregate("thread", await big(api, worker, system))
    state = await system.threads.load(thread.id)
    tip, (first, second) = state.seq, state.runs
    source, changes = LogSource(system.log), Changes(message="And now?")

    async def forked() -> None:
        forked = await fork_thread(system.threads, source, tmp_path, thread, tip, "fork")
        assert forked.new

    async def changed() -> None:
        point = await fork_point(source.from_log, thread.id, tip, changes)
        assert (point.at, point.after, point.before) == (tip, [], [])
        assert point.state.messages[-1]["content"] == "again"

    async def pinned() -> None:
        records = await records_to_pin(system.log.read, thread, run=second)
        assert [record.type for record in records[:2]] == ["thread.pruned", "run.requested"]
        assert fold(records).messages == state.messages

    async def replayed() -> None:
        part = await part_of(system.log.read, thread, second, lambda _: None)
        assert part is not None
        assert part.state.messages == state.messages[:-1]
        assert [record.type for record in part.records] == ["model.completed", "run.completed"]

    for work in (forked, changed, pinned, replayed):
        with measured(monkeypatch, work.__name__) as held:
            await asyncio.create_task(work())
            assert 0 < held.most <= MOST_BYTES, f"{work.__name__}: {held.most >> 20} MiB"
    there, copy = await system.threads.load(thread.id), await system.threads.load("fork")
    assert [message["id"] for message in copy.messages] == [message["id"] for message in there.messages]
    for run in (first, second):
        wholes = [Whole(Reading(system.log)) for _ in range(2)]
        pin = records_to_pin(system.log.read, thread, run=run, hold=wholes[0].hold)
        for part in (pin, part_of(system.log.read, thread, run, wholes[1].hold)):
            with pytest.raises(HttpError, match="more than the 64 MiB") if run == first else nullcontext():
                await part


@pytest.mark.long
async def test_a_prompt_is_read_without_the_others_of_its_thread(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, tip = Aggregate(OF_THREAD, "t"), 0
    for number in range(EVENTS):
        text = f"{number}" + "y" * EVENT_BYTES
        [record] = await system.log.append(
            log, [SetupRecorded(part="prompt", content=text)], expected=tip, actor="test"
        )
        tip = record.seq
    sha256 = hashlib.sha256(text.encode()).hexdigest()

    async def found() -> None:
        assert await content(system.log.read, sha256, "t") == text

    with measured(monkeypatch, found.__name__) as held:
        await asyncio.create_task(found())
        assert 0 < held.most <= MOST_BYTES


def _why(causes: Any) -> None:
    types = [cause["event"]["type"] for cause in causes]
    assert types[0] == "run.started"
    assert types[-4:] == ["thread.annotated", "model.completed", "tool.requested", "tool.completed"]
    assert causes[-1]["event"]["message"]["content"].startswith("zz")
    assert "message" not in causes[-3]["event"], "of what is beyond the bound there is the envelope"


def _tree(runs: Any) -> None:
    call = runs[0]["children"][0]["children"][0]
    assert (call["name"], call["text"].strip("z"), call["args"]["command"].strip("x")) == ("bash", "…", "…")
    assert [run["state"] for run in runs] == ["success", "success"]


def _tree_of_one(runs: Any) -> None:
    assert [run["children"][0]["text"] for run in runs] == ["again"]


def _steps(compared: Any) -> None:
    [call] = [row["left"] for row in compared["steps"] if row["left"] and row["left"]["kind"] == "call"]
    assert (call["output"]["text"].strip("z"), call["input"]["command"].strip("x")) == ("…", "…")


def _values(compared: Any) -> None:
    before = {value["path"]: value.get("before") for value in compared["values"]}
    assert len(str(before["messages"])) < EVENT_BYTES


LOOKS = ("log/events", "log/why?event=2", "log/tree", "log/files?at=2", "log/files", "log/export", "log?after=1")
"""Questions that need a thread's log and not the thread."""


@pytest.mark.parametrize("path", LOOKS)
async def test_whose_a_log_is_needs_no_fold(
    api: Api, system: System, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    thread = await api.thread()
    await api.run(thread)

    async def folded(*_: Any, **__: Any) -> Any:
        raise AssertionError("the thread is folded")

    monkeypatch.setattr(system.threads, "load", folded)
    async with api.session.get(f"{api.url}/api/threads/{thread}/{path}") as response:
        assert (response.status, bool(await response.read())) == (200, True)

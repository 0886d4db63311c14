"""The id of a deleted thread is used again, and nothing of the old thread is in the new one: on a real bus, in two
processes, with handlers that are late.
"""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from actors import janitor
from actors.janitor import Janitor
from actors.workspace import Workspace
from adapters.workspace import LocalWorkspace
from core.actor import Actor, Context
from core.bus import streams
from core.bus.queue import Hint
from core.errors import Refused, Unavailable
from core.events import (
    Aggregate,
    Event,
    FeedbackGiven,
    FileUploaded,
    RunCompleted,
    RunRequested,
    RunStarted,
    StatePatched,
    SubagentStarted,
    ThreadAnnotated,
    ThreadCreated,
    ThreadErased,
    ThreadExpirySet,
    ThreadShared,
    VariableSet,
    thread,
)
from core.files.folder import uploads
from core.files.paths import thread_root
from core.log.kinds import SUBAGENT
from core.replay.listing import threads_of_file
from core.replay.soundness import verify
from core.replay.source import LogSource
from core.runs import reuse, setups
from core.runs.commands import Commands
from core.runs.copies import Step
from core.runs.prompts import OF_THREAD
from core.runtime import system as core
from core.runtime.own_state import own_state
from core.runtime.system import System
from core.thread.fold import fold
from core.thread.state import ThreadState
from core.user import schedules
from tests.support.nats import Nats, eventually, read

USER = "ada"
NAME = "chat-of-ada"


class NotesTaken(Event, frozen=True):
    """The marks of a thread's annotations so far."""

    marks: tuple[str, ...]


class Notes(msgspec.Struct, frozen=True):
    marks: tuple[str, ...] = ()


class Slow(Actor[ThreadAnnotated]):
    """Takes its time, then leaves a file, and a state of its own."""

    name = "slow"
    initial = Notes()

    def __init__(self, home: Path, chance: random.Random) -> None:
        self._home, self._random = home, chance
        self.begun, self.gate = asyncio.Event(), asyncio.Event()
        self.gate.set()

    @staticmethod
    def apply(state: Notes, event: Event) -> Notes:
        return Notes(event.marks) if isinstance(event, NotesTaken) else state

    async def handle(self, event: ThreadAnnotated, ctx: Context) -> None:
        self.begun.set()
        await asyncio.sleep(self._random.uniform(0, 0.4))
        await self.gate.wait()
        mark = event.metadata["mark"]
        leave(self._home, ctx.record.aggregate.id, mark)
        await ctx.update(lambda state: [NotesTaken((*state.marks, mark))])


def leave(home: Path, name: str, mark: str) -> Path:
    path = thread_root(home, USER, name) / "user-data" / "outputs" / f"{mark}.txt"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(mark)
    return path


class Process:
    """One of the processes: its system, and what ends it at once."""

    def __init__(self, system: System, scope: anyio.CancelScope, slow: Slow) -> None:
        self.system, self.scope, self.slow = system, scope, slow
        self.commands = Commands(system.threads, system.intake, actor="test")


@asynccontextmanager
async def process(nats: Nats, prefix: str, home: Path, number: int, chance: random.Random) -> AsyncIterator[Process]:
    endpoint, views = nats.endpoint(prefix), home / f"views-{number}.db"
    async with core.start(endpoint, views, lease_seconds=2, slots=8) as system, anyio.create_task_group() as tasks:
        workspace = Workspace(system.log, LocalWorkspace(home))
        slow = Slow(home, chance)
        actors: list[Actor[Any]] = [Janitor(system.threads, system.chats, system.intake, home), slow, workspace]
        await tasks.start(partial(system.serve, actors, alone=False))
        yield Process(system, tasks.cancel_scope, slow)
        tasks.cancel_scope.cancel()


@pytest.fixture
async def one(nats: Nats, tmp_path: Path) -> AsyncIterator[Process]:
    async with process(nats, f"t{uuid.uuid4().hex[:10]}", tmp_path, 1, random.Random(1)) as process_:
        yield process_


def shared() -> ThreadShared:
    return ThreadShared(share="s1", digest="d", upto=1, by=USER, title="MARK0")


async def filled(system: System, name: str, mark: str) -> None:
    """Makes a thread with something of every kind."""
    say = {"messages": [{"type": "human", "id": f"h-{mark}", "content": f"{mark} {'x' * 70_000}"}]}
    events: list[Event] = [
        VariableSet(name="TOKEN", value=mark, by=USER),
        shared(),
        ThreadExpirySet(minutes=9000, strategy="delete"),
        StatePatched(values=say),
        FileUploaded(name=f"{mark}.txt", size=1, sha256="0" * 64),
        ThreadAnnotated(metadata={"mark": mark}),
    ]
    for event in events:
        await system.threads.decide(name, lambda _, event=event: [event], actor="test")  # type: ignore[misc]
    of_run: list[Event] = [RunRequested(), RunStarted(attempt=1, worker="w", lease=1), RunCompleted()]
    for event in of_run:
        await system.threads.decide(name, lambda _, event=event: [event], actor="test", run="r1")  # type: ignore[misc]
    feedback = FeedbackGiven(feedback_id="f1", rating=1, user=USER, comment=mark, message_id=None)
    await system.threads.decide(name, lambda _: [feedback], actor="test", run="r1")
    await setups.Setups(system.log).store_for(name, "prompt", mark, "test")


async def stored(system: System, name: str, home: Path) -> bytes:
    """Returns all that is stored about a thread, wherever it is."""
    parts = [str(path).encode() + path.read_bytes() for path in thread_root(home, USER, name).parent.rglob("*.txt")]
    for target in (thread(name), own_state("slow", thread(name)), Aggregate(OF_THREAD, name)):
        parts += [record.raw for record in await read(system.log, target)]
    subject = system.bus.names.chunks(f"thread.{name}.*.*")
    parts += [message.data async for message in streams.messages(system.bus, "blobs", subject)]
    parts += [
        message.data async for message in streams.messages(system.bus, "dlq", system.bus.names.dlq("*", thread(name)))
    ]
    return b"\n".join(parts)


BLANK = ThreadState()
FORGOTTEN = (
    *("values", "title", "places", "head", "answers", "paused", "steers", "feedback", "expiry", "approvals"),
    *("goal", "folder", "variables", "shares", "problems"),
)


async def test_the_owner_creates_a_deleted_thread_again(one: Process, tmp_path: Path) -> None:
    system = one.system
    await one.commands.create(USER, NAME, {"mark": "MARK0"}, expiry=None, steps=())
    await filled(system, NAME, "MARK0")
    assert b"MARK0" in await stored(system, NAME, tmp_path)
    assert (await uploads(system.log).load(NAME)).files
    await one.commands.erase(USER, NAME)
    state, new = await one.commands.create(USER, NAME, {"mine": 1}, expiry=None, steps=())
    assert (new, state.exists, state.user, state.metadata) == (True, True, USER, {"mine": 1})
    assert {name: getattr(state, name) for name in FORGOTTEN} == {name: getattr(BLANK, name) for name in FORGOTTEN}
    assert (len(state.runs), len(state.commits)) == (0, 0)
    assert b"MARK0" not in await stored(system, NAME, tmp_path)
    assert not (await uploads(system.log).load(NAME)).files
    assert [record.type for record in await read(system.log, thread(NAME))] == ["thread.erased", "thread.created"]
    assert fold(await read(system.log, thread(NAME))).metadata == {"mine": 1}
    assert (await verify(system.log, NAME)).problems == []
    [row] = (await threads_of_file(LogSource(system.log))).summaries
    assert (row.thread, row.status, row.text, row.runs) == (NAME, "idle", "", 0)
    again, new = await one.commands.create(USER, NAME, {"mine": 2}, expiry=None, steps=())
    assert (new, again.metadata) == (False, {"mine": 1})
    await filled(system, NAME, "MARK1")
    assert (await system.threads.load(NAME)).runs["r1"].status == "success", "also an id of a run is free"


WAYS: dict[str, Any] = {
    "created": lambda c: c.create(USER, NAME, {}, expiry=None, steps=()),
    "with steps": lambda c: c.create(USER, NAME, {}, expiry=None, steps=[Step({"a": 1}, None, "update", -1)]),
    "with an expiry": lambda c: c.create(USER, NAME, {}, expiry=ThreadExpirySet(minutes=90), steps=()),
    "by a run": lambda c: c.ensure(USER, NAME, {}),
    "by a variable": lambda c: c.set_variable(USER, NAME, VariableSet(name="A", value="1", by=USER)),
}


@pytest.mark.parametrize("way", WAYS)
async def test_every_way_of_naming_a_thread(one: Process, way: str) -> None:
    await one.commands.create(USER, NAME, {}, expiry=None, steps=())
    await one.commands.erase(USER, NAME)
    await WAYS[way](one.commands)
    state = await one.system.threads.load(NAME)
    assert (state.exists, state.user) == (True, USER)
    if way == "with steps":
        assert state.values["a"] == 1
    if way == "with an expiry":
        assert state.expiry is not None


async def test_nobody_else_creates_it(one: Process) -> None:
    await one.commands.create(USER, NAME, {}, expiry=None, steps=())
    await one.commands.erase(USER, NAME)
    for steps in ((), [Step({}, None, "update", -1)]):
        with pytest.raises(Refused, match="not used again"):
            await one.commands.create("eve", NAME, {}, expiry=None, steps=steps)
    with pytest.raises(Refused, match="not used again"):  # nor the server itself: a firing, a bot, a subagent
        await one.system.intake.create_thread(NAME, user=USER)
    assert (await one.system.threads.load(NAME)).erased
    before = await one.system.log.tip(thread(NAME))
    with pytest.raises(Refused):
        await one.commands.create("eve", NAME, {}, expiry=None, steps=())
    assert await one.system.log.tip(thread(NAME)) == before, "and has nothing done"
    await one.commands.create(USER, NAME, {}, expiry=None, steps=())
    with pytest.raises(Refused, match="is taken"):
        await one.commands.create("eve", NAME, {}, expiry=None, steps=())


async def test_a_late_wake_up_of_the_old_thread_harms_nothing_of_the_new(one: Process, tmp_path: Path) -> None:
    system = one.system
    await one.commands.create(USER, NAME, {}, expiry=None, steps=())
    await filled(system, NAME, "MARK0")
    await one.commands.erase(USER, NAME)
    await one.commands.create(USER, NAME, {}, expiry=None, steps=())
    tombstone = (await read(system.log, thread(NAME)))[0]
    assert isinstance(tombstone.event, ThreadErased)
    await filled(system, NAME, "MARK1")
    target = own_state("slow", thread(NAME))

    async def noted() -> bool:
        return len(await read(system.log, target)) == 1

    await eventually(noted)
    before = await stored(system, NAME, tmp_path)
    done = {work.name: work.handled for work in system.vitals.report().actors}
    hint = Hint(seq=tombstone.seq, type=tombstone.type, id=tombstone.id)
    names = ("janitor", "slow", "workspace")
    for name in names:
        await system.queue.wake(name, thread(NAME), hint, key=uuid.uuid4().hex)

    async def handled() -> bool:
        now = {work.name: work.handled for work in system.vitals.report().actors}
        return all(now[name] > done[name] for name in names)

    await eventually(handled)
    assert await stored(system, NAME, tmp_path) == before


async def test_what_is_not_erased_in_time_is_said(one: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reuse, "ERASED_SECONDS", 1.0)
    gate = asyncio.Event()

    async def stuck(*_: Any) -> None:
        await gate.wait()

    monkeypatch.setattr(Janitor, "_wipe", stuck)
    await one.commands.create(USER, NAME, {}, expiry=None, steps=())
    await one.commands.erase(USER, NAME)
    with pytest.raises(Unavailable, match="was deleted, and still has work of janitor; its id is free after that"):
        await one.commands.create(USER, NAME, {}, expiry=None, steps=())
    assert (await one.system.threads.load(NAME)).erased
    monkeypatch.undo()
    gate.set()
    await one.commands.create(USER, NAME, {}, expiry=None, steps=())


async def test_an_event_that_came_after_the_tombstone_is_not_the_new_thread_s(one: Process, tmp_path: Path) -> None:
    system = one.system
    await one.commands.create(USER, NAME, {}, expiry=None, steps=())
    await one.commands.erase(USER, NAME)
    late = StatePatched(values={"messages": [{"type": "human", "id": "h", "content": "MARK0"}]})
    await system.log.append(thread(NAME), [late], expected=await system.log.tip(thread(NAME)), actor="test")
    state, _ = await one.commands.create(USER, NAME, {}, expiry=None, steps=())
    assert not state.messages
    assert b"MARK0" not in await stored(system, NAME, tmp_path)


async def test_a_schedule_of_the_old_thread_does_not_run_in_the_new(one: Process) -> None:
    system = one.system
    await one.commands.create(USER, NAME, {}, expiry=None, steps=())
    job = schedules.Job(input={"messages": []})
    plans = {
        name: schedules.Plan(timing=schedules.Timing(cron="0 5 * * *"), job=job, thread=name)
        for name in (NAME, "other")
    }
    repository = schedules.aggregates(system.log)
    events = [schedules.ScheduleCreated(schedule=name, plan=plan) for name, plan in plans.items()]
    await repository.decide(USER, lambda _: events, actor="test")
    await one.commands.erase(USER, NAME)
    await one.commands.create(USER, NAME, {}, expiry=None, steps=())
    state = await repository.load(USER)
    assert {name: schedule.enabled for name, schedule in state.items()} == {NAME: False, "other": True}
    records = await read(system.log, Aggregate(schedules.KIND, USER))
    [pause] = [record.event for record in records if isinstance(record.event, schedules.SchedulePaused)]
    assert pause.reason == f"Thread {NAME} was deleted"


async def test_whoever_is_at_work_on_the_old_thread_is_waited_for(one: Process, tmp_path: Path) -> None:
    system = one.system
    one.slow.gate.clear()
    await one.commands.create(USER, NAME, {}, expiry=None, steps=())
    await system.threads.decide(NAME, lambda _: [ThreadAnnotated(metadata={"mark": "MARK0"})], actor="test")
    await one.slow.begun.wait()
    await one.commands.erase(USER, NAME)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(partial(one.commands.create, USER, NAME, {}, expiry=None, steps=()))

        async def erased() -> bool:
            return [record.type for record in await read(system.log, thread(NAME))] == ["thread.erased"]

        await eventually(erased)
        await asyncio.sleep(1.5)
        assert (await system.threads.load(NAME)).erased
        one.slow.gate.set()
    assert (await system.threads.load(NAME)).exists
    assert b"MARK0" not in await stored(system, NAME, tmp_path)


async def test_the_subagents_of_the_old_thread_are_waited_for(one: Process) -> None:
    """They work in the files of the thread."""
    system, sub = one.system, Aggregate(SUBAGENT, "sub-1")
    await one.commands.create(USER, NAME, {}, expiry=None, steps=())
    await system.log.append(sub, [ThreadCreated(user=USER)], expected=0, actor="test")
    started = SubagentStarted(subagent=sub.id, call_id="c", name="general-purpose", description="", prompt="")
    await system.threads.decide(NAME, lambda _: [started], actor="test", run="r1")
    await system.queue.wake("nobody", sub, Hint(), key="at-work")
    await one.commands.erase(USER, NAME)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(partial(one.commands.create, USER, NAME, {}, expiry=None, steps=()))

        async def buried() -> bool:
            return [record.type for record in await read(system.log, sub)][-1] == "thread.erased"

        await eventually(buried)
        await asyncio.sleep(1)
        assert (await system.threads.load(NAME)).erased
        await streams.purge(system.bus, "cmd", system.bus.names.cmd("nobody", sub))
    assert (await system.threads.load(NAME)).exists
    assert [record.type for record in await read(system.log, sub)] == ["thread.erased"]


# ── interleavings ───────────────────────────────────────────────────────────────────────────────────────────────────


def earlier(text: bytes, turn: int) -> list[int]:
    """Returns the turns before one whose marks are in a text."""
    return [number for number in range(turn) if f"MARK{number}.".encode() in text]


@pytest.mark.parametrize("seed", range(6))
async def test_interleavings(nats: Nats, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Two processes create, fill and delete one thread in any order; handlers are slow, and a process is stopped in the
    midst. Whoever has created the thread never meets a mark of an earlier one, and keeps its own.
    """
    chance, prefix = random.Random(seed), f"t{uuid.uuid4().hex[:10]}"
    remove = janitor.remove_files

    def slowly(home: Path, user: str, thread_id: str) -> None:
        for _ in range(2):
            time.sleep(chance.uniform(0, 0.15))  # in a thread
        remove(home, user, thread_id)

    monkeypatch.setattr(janitor, "remove_files", slowly)
    async with AsyncExitStack() as stack:
        processes = [await stack.enter_async_context(process(nats, prefix, tmp_path, n, chance)) for n in range(2)]
        for turn in range(4):
            mark = f"MARK{turn}."
            creators = chance.sample(processes, chance.choice((1, 2)))
            made = await asyncio.gather(
                *(c.commands.create(USER, NAME, {"turn": turn}, expiry=None, steps=()) for c in creators)
            )
            assert [new for _, new in made].count(True) == 1, "one of them makes it"
            assert all(state.metadata == {"turn": turn} for state, _ in made)
            assert not earlier(await stored(creators[0].system, NAME, tmp_path), turn)
            await filled(creators[0].system, NAME, mark)
            path = leave(tmp_path, NAME, f"{mark}own")
            await asyncio.sleep(chance.uniform(0, 0.7))
            kept = await read(creators[-1].system.log, thread(NAME))
            assert path.exists()
            assert not earlier(await stored(creators[0].system, NAME, tmp_path), turn), "of those that were late"
            assert [record.type for record in kept].count("run.completed") == 1
            await chance.choice(processes).commands.erase(USER, NAME)
            if turn == 1:
                processes[1].scope.cancel()
                processes[1] = await stack.enter_async_context(process(nats, prefix, tmp_path, 2, chance))
            await asyncio.sleep(chance.choice((0, chance.uniform(0, 0.6))))

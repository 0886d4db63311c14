"""Threads that go by themselves, and the files of those that are gone. On a real bus, with real timers."""

from __future__ import annotations

import os
import uuid
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from actors import janitor
from actors.janitor import Janitor, remove_files
from core.actor import Context
from core.bus import streams
from core.chat.facts import (
    ChatBegun,
    ChatReceived,
    ChatRouted,
    DeliveryPlanned,
    DeliverySent,
    Target,
    TopicNoted,
    conversation,
    sent_message,
)
from core.chat.inbox import Inbox
from core.chat.state import Chats
from core.errors import Invalid
from core.events import (
    Aggregate,
    Event,
    ModelCompleted,
    RunCompleted,
    RunFailed,
    RunPaused,
    RunRequested,
    RunStarted,
    StatePatched,
    ThreadAnnotated,
    ThreadCreated,
    ThreadErased,
    ThreadExpirySet,
    thread,
)
from core.ids import uuid7
from core.lifecycle import TEMPORARY
from core.runtime import system as core
from core.runtime.system import System
from core.thread.state import ThreadState
from tests.support.nats import Nats, eventually, read

STARTED = RunStarted(attempt=1, worker="w", lease=1)
SAID = ModelCompleted(message={"type": "ai", "id": "m", "content": "!"})
SOON = 0.3 / 60
"""Minutes."""


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TEMPORARY_SECONDS", "SWEEP_SECONDS", "AGAIN_SECONDS"):
        monkeypatch.setattr(janitor, name, 0.3)


@pytest.fixture
async def system(nats: Nats, tmp_path: Path) -> AsyncIterator[System]:
    endpoint = nats.endpoint(f"t{uuid.uuid4().hex[:10]}")
    async with core.start(endpoint, tmp_path / "views.db", lease_seconds=5, slots=4) as system:
        actor = Janitor(system.threads, system.chats, system.intake, tmp_path)
        async with anyio.create_task_group() as tasks:

            async def serve(task_status: anyio.abc.TaskStatus[None]) -> None:
                await system.serve([actor], alone=True, task_status=task_status)

            await tasks.start(serve)
            yield system
            tasks.cancel_scope.cancel()


async def write(
    system: System, name: str, *events: Event, run: str | None = None, labels: tuple[str, ...] = ()
) -> None:
    for event in events:
        expected = await system.log.tip(thread(name))
        await system.log.append(thread(name), [event], expected=expected, actor="test", run=run, labels=labels)


async def made(system: System, *events: Event) -> str:
    name = uuid7()
    await write(system, name, ThreadCreated(user="ada"), *events)
    return name


async def gone(system: System, name: str) -> bool:
    return [record.type for record in await read(system.log, thread(name))] == ["thread.erased"]


def file_of(home: Path, name: str) -> Path:
    path = home / "users" / "ada" / "threads" / name / "user-data" / "outputs" / "a.txt"
    path.parent.mkdir(parents=True)
    path.write_text("a")
    return path


# ── time to live ────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_an_idle_thread_goes(system: System, tmp_path: Path) -> None:
    kept = await made(system, ThreadExpirySet(minutes=60))
    lifted = await made(system, ThreadExpirySet(minutes=SOON), ThreadExpirySet(minutes=None))
    name = await made(system)
    path = file_of(tmp_path, name)
    await write(system, name, ThreadExpirySet(minutes=SOON))
    await eventually(lambda: gone(system, name))
    await eventually(lambda: removed(path))
    state = await system.threads.load(name)
    assert (state.erased, state.user) == (True, "ada")
    for other in (kept, lifted):
        assert (await system.threads.load(other)).exists


async def removed(path: Path) -> bool:
    return not path.exists() and not list(path.parents[3].glob("*"))


async def test_activity_puts_it_off(system: System) -> None:
    """A thread that was touched is due later; one that is at work, when that is over."""
    touched = await made(system, ThreadExpirySet(minutes=60))
    [before] = janitor._expiries(await system.threads.load(touched))
    await write(system, touched, ThreadAnnotated(metadata={"a": 1}))
    [after] = janitor._expiries(await system.threads.load(touched))
    assert after.at > before.at
    name = await made(system, ThreadExpirySet(minutes=60))
    await write(system, name, RunRequested(), STARTED, run="r")
    await write(system, name, ThreadExpirySet(minutes=SOON), run="r")
    armed = datetime.now(UTC)
    while datetime.now(UTC) < armed + timedelta(seconds=0.9):
        assert not await gone(system, name)
        await anyio.sleep(0.05)
    await write(system, name, RunCompleted(), run="r")
    await eventually(lambda: gone(system, name))


async def test_only_the_past_goes(system: System) -> None:
    """And again, when there is a new one."""
    name = await made(system, StatePatched(values={"title": "T"}), StatePatched(values={"title": "U"}))
    await write(system, name, ThreadExpirySet(minutes=SOON, strategy="keep_latest"))

    async def pruned() -> ThreadState | None:
        state = await system.threads.load(name)
        return state if state.exists and len(state.commits) == 1 and state.values == {"title": title} else None

    title = "U"
    state = await eventually(pruned)
    assert state
    assert state.expiry
    assert state.expiry.strategy == "keep_latest"
    title = "V"
    await write(system, name, StatePatched(values={"title": "V"}))
    await eventually(pruned)

    async def erased() -> bool:
        return (await read(system.log, thread(name)))[0].type == "thread.pruned"

    await eventually(erased)  # event by event, after the fact


async def test_a_thread_that_waits_for_an_answer_keeps_its_past(system: System) -> None:
    name = await made(system, ThreadExpirySet(minutes=SOON, strategy="keep_latest"))
    await write(system, name, RunRequested(), STARTED, SAID, RunPaused(next=["tools"]), run="r")
    await anyio.sleep(1)
    state = await system.threads.load(name)
    assert (state.status, len(state.runs)) == ("interrupted", 1)


# ── temporary threads ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("end", [RunCompleted(), RunFailed(error="E", text="t")], ids=["completed", "failed"])
async def test_the_thread_of_a_run_without_one(system: System, end: Event) -> None:
    name = await made(system)
    await write(system, name, RunRequested(on_completion="delete"), STARTED, SAID, run="r")
    await write(system, name, end, run="r", labels=(TEMPORARY,))
    assert (await system.threads.load(name)).exists
    await eventually(lambda: gone(system, name))


async def test_one_that_waits_for_a_person_stays_longer(system: System) -> None:
    waiting, over = await made(system), await made(system)
    for name, end in ((waiting, RunPaused(next=["tools"])), (over, RunCompleted())):
        await write(system, name, RunRequested(on_completion="delete"), STARTED, SAID, run=f"r-{name}")
        await write(system, name, end, run=f"r-{name}", labels=(TEMPORARY,))
    await eventually(lambda: gone(system, over))
    assert (await system.threads.load(waiting)).exists


async def test_other_runs_wake_nobody(system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    woken: list[str] = []

    async def handle(self: Janitor, event: Event, ctx: Context) -> None:
        woken.append(ctx.record.aggregate.id)

    monkeypatch.setattr(Janitor, "handle", handle)
    name, last = await made(system), await made(system)
    await write(system, name, RunRequested(), STARTED, RunCompleted(), run="r")
    await write(system, last, ThreadExpirySet(minutes=60))

    async def heard() -> bool:
        return last in woken

    await eventually(heard)
    assert name not in woken


async def test_a_busy_thread_waits(system: System) -> None:
    name = await made(system)
    await write(system, name, RunRequested(on_completion="delete"), STARTED, run="r1")
    await write(system, name, RunCompleted(), run="r1", labels=(TEMPORARY,))
    await write(system, name, RunRequested(), STARTED, run="r2")
    await anyio.sleep(1)
    assert (await system.threads.load(name)).status == "busy"
    await write(system, name, RunCompleted(), run="r2")
    await eventually(lambda: gone(system, name))


# ── what is left of deleted threads ─────────────────────────────────────────────────────────────────────────────────


async def test_a_long_erasure_goes_on_where_it_stopped(system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(janitor, "ERASE_SECONDS", 0.0)
    monkeypatch.setattr(core, "PAUSES", (0.01, 0.01))
    rest: list[int] = []
    erase = system.log.erase

    async def counted(aggregate: Aggregate, **options: Any) -> bool:
        if aggregate.kind == "thread":  # beside the second look, which may be at the prompts by then
            rest.append(len(await read(system.log, aggregate)))
        options["seconds"] = 0.01
        return await erase(aggregate, **options)

    monkeypatch.setattr(system.log, "erase", counted)
    name = await made(system, *(ThreadAnnotated(metadata={"n": number}) for number in range(40)))
    await system.intake.erase(name, by="ada")
    await eventually(lambda: gone(system, name))
    assert rest[0] == 42
    assert rest == sorted(rest, reverse=True)
    assert len(rest) > 2


async def test_dead_letters_of_a_deleted_thread_go_too(system: System) -> None:
    name, other = await made(system), await made(system)
    for target in (name, other):
        await system.bus.store(system.bus.names.dlq("memory", thread(target)), b"it said so")
    await system.intake.erase(name, by="ada")

    async def letters() -> bool:
        kept = [name async for name in streams.messages(system.bus, "dlq", system.bus.names.dlq("*", thread("*")))]
        return [message.subject.rpartition(".")[2] for message in kept] == [other]

    await eventually(letters)


# ── files ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_whoever_erases_the_files_go_too(system: System, tmp_path: Path) -> None:
    """Also those that a command wrote which was still running."""
    name, other = await made(system), await made(system)
    path, survivor = file_of(tmp_path, name), file_of(tmp_path, other)
    await system.intake.erase(name, by="ada")
    await eventually(lambda: vanished(path))
    file_of(tmp_path, name)
    await eventually(lambda: vanished(path))
    assert survivor.exists()
    await write(system, name, ThreadErased(by="ada"))
    assert [entry.name for entry in path.parents[3].iterdir()] == [other]


async def vanished(path: Path) -> bool:
    return not path.parents[2].exists()


def test_any_tree_can_be_removed(tmp_path: Path) -> None:
    """Deeper than paths can be long, closed by its owner, full of links; and nothing outside is touched."""
    outside = tmp_path / "outside"
    outside.mkdir(mode=0o755)
    (outside / "precious").touch()
    root = tmp_path / "users" / "ada" / "threads" / "t1"
    deep = root / "user-data" / "workspace"
    deep.mkdir(parents=True)
    (deep / "link").symlink_to(outside)
    (deep / "closed").mkdir()
    (deep / "closed" / "file").touch()
    (deep / "closed").chmod(0)
    os.mkfifo(deep / "pipe")
    descriptor = os.open(deep, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d" * 50, dir_fd=descriptor)
        below = os.open("d" * 50, os.O_RDONLY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = below
    os.symlink(outside, "link", dir_fd=descriptor)
    os.close(descriptor)
    (root.parent / "t1-other").mkdir()
    remove_files(tmp_path, "ada", "t1")
    assert [path.name for path in root.parent.iterdir()] == ["t1-other"]
    assert [path.name for path in outside.iterdir()] == ["precious"]
    assert outside.stat().st_mode & 0o777 == 0o755
    remove_files(tmp_path, "ada", "t1")
    remove_files(tmp_path, "nobody", "t1")


def test_what_an_earlier_try_left_goes_too(tmp_path: Path) -> None:
    threads = tmp_path / "users" / "ada" / "threads"
    (threads / ".t1-abcd1234" / "user-data").mkdir(parents=True)
    remove_files(tmp_path, "ada", "t1")
    assert list(threads.iterdir()) == []


@pytest.mark.parametrize(("user", "name"), [("..", "t"), ("ada", ".."), ("ada", "a/b"), ("a/b", "t"), ("", "t")])
def test_odd_names_are_refused(tmp_path: Path, user: str, name: str) -> None:
    with pytest.raises(Invalid):
        remove_files(tmp_path, user, name)


# ── conversations on chat platforms ─────────────────────────────────────────────────────────────────────────────────


def _always(events: list[Event], _: object) -> list[Event]:
    return events


async def test_what_was_said_in_a_chat_goes_with_its_thread(system: System) -> None:
    chats, place, target = Chats(system.log), conversation("telegram", "C1", "t"), Target("C1", "t")
    doomed, kept = uuid7(), uuid7()
    for number, (name, user) in enumerate(((doomed, "ada"), (kept, "eve"))):
        await write(system, name, ThreadCreated(user=user, metadata={"conversation": place.id}))
        heard = ChatReceived(message=f"m{number}", target=target, sender="U1", text=f"secret {number}")
        [record] = (await chats.decide(place.id, partial(_always, [heard]), actor="test"))[1]
        said: list[Event] = [
            ChatBegun(thread=name, user=user),
            ChatRouted(message=heard.message, outcome="run", thread=name, run_id=f"r{number}", user=user),
            DeliveryPlanned(plan=f"n{number}", purpose="notice", target=target, text=f"secret notice {number}"),
            DeliveryPlanned(plan=f"r{number}", purpose="answer", target=target, text=f"secret {number}", thread=name),
            DeliverySent(plan=f"r{number}", part=0, parts=1, message=f"own{number}"),
        ]
        await chats.decide(place.id, partial(_always, said), actor="test", cause=record.id)
        noted = sent_message("telegram", "C1", f"own{number}")
        await system.log.append(noted, [TopicNoted(topic="t")], expected=0, actor="test")
    assert (await chats.load(place.id)).threads == {"ada": doomed, "eve": kept}
    await system.intake.erase(doomed, by="ada")
    await eventually(lambda: gone(system, doomed))

    async def unsaid() -> bool:  # the second look, which erases events, too, may be faster
        return b"secret 0" not in b"".join([record.raw for record in await read(system.log, place)])

    await eventually(unsaid)
    assert (await chats.load(place.id)).threads == {"eve": kept}, "whoever has the id again is not in this chat"
    raw = b"".join([record.raw for record in await read(system.log, place)])
    assert b"secret notice 0" not in raw
    assert raw.count(b"secret 1") == 2
    assert b"secret notice 1" in raw
    assert [await read(system.log, sent_message("telegram", "C1", f"own{n}")) == [] for n in range(2)] == [True, False]
    assert (await Chats(system.log).load(place.id)).heard["m0"].outcome == "run"  # a second delivery is known
    await Inbox("telegram", Chats(system.log), replies_are_topics=False).receive(
        ChatReceived(message="m0", target=target, sender="U1", text="secret 0")
    )
    assert b"secret 0" not in b"".join([record.raw for record in await read(system.log, place)])


async def test_metadata_erase_nothing_of_another_conversation(system: System) -> None:
    chats, place = Chats(system.log), conversation("telegram", "C2")
    heard = ChatReceived(message="m", target=Target("C2"), sender="U1", text="mine")
    await chats.decide(place.id, lambda _: [heard], actor="test")
    foreign = uuid7()
    await write(system, foreign, ThreadCreated(user="eve", metadata={"conversation": place.id}))
    await system.intake.erase(foreign, by="eve")
    await eventually(lambda: gone(system, foreign))
    assert [record.type for record in await read(system.log, place)] == ["chat.received"]

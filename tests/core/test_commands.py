"""Decisions of people on their threads: what is written, and that the thread of somebody else does not exist."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from core.bus.connection import Bus
from core.bus.queue import WorkQueue
from core.errors import Invalid, NotFound, Refused
from core.events import (
    FileRemoved,
    FileUploaded,
    FolderAttached,
    GoalSet,
    RunRequested,
    RunStarted,
    ThreadErased,
    ThreadExpirySet,
    ThreadShared,
    ThreadTitled,
    VariableSet,
    thread,
)
from core.log.store import EventLog
from core.runs.commands import MOST_SHARES, Commands, Rating
from core.runs.intake import Intake
from core.thread.threads import Threads
from tests.support.nats import fresh, read
from tests.support.records import human

ADA, BOB = "ada", "bob"


@pytest.fixture
def intake(log: EventLog, bus: Bus) -> Intake:
    return Intake(Threads(log), WorkQueue(bus, 2))


@pytest.fixture
def commands(intake: Intake) -> Commands:
    return Commands(intake.threads, intake, actor="test")


@pytest.fixture
async def name(intake: Intake) -> str:
    """A thread of Ada's with a run that ended."""
    name = fresh().id
    await intake.create_thread(name, user=ADA)
    await intake.request_run(name, "r1", RunRequested(input={"messages": [human("h1")]}))
    await intake.cancel(name, "r1")
    return name


async def test_writing_state(commands: Commands, intake: Intake, log: EventLog, name: str) -> None:
    state, seq = await commands.write_state(ADA, name, [{"messages": [human("h2")], "title": "x"}])
    assert (state.values["title"], state.commit_at(seq)) == ("x", 0)
    state, last = await commands.write_state(ADA, name, [{"title": "y"}, {"title": "z"}], base=seq, node="model")
    assert [commit.parent for commit in state.commits] == [-1, 0, 1]
    assert (state.values["title"], state.commit_at(last)) == ("z", 2)
    with pytest.raises(Invalid, match="999999 is not a checkpoint"):
        await commands.write_state(ADA, name, [{}], base=999_999)
    await intake.request_run(name, "r2", RunRequested())
    tip = await log.tip(thread(name))
    await log.append(thread(name), [RunStarted(attempt=1, worker="w", lease=1)], expected=tip, actor="w", run="r2")
    with pytest.raises(Refused, match="active run"):
        await commands.write_state(ADA, name, [{"title": "a"}, {"messages": []}])
    assert (await commands.write_state(ADA, name, [{"title": "b"}]))[0].values["title"] == "b"


GOAL = GoalSet(objective="o", by=ADA, max_continuations=1, max_no_progress_continuations=1)

FOLDER = FolderAttached(path="/home/ada/app", access="read-write", by=ADA)


async def test_a_folder_is_attached_changed_and_detached(commands: Commands, log: EventLog, name: str) -> None:
    assert (await commands.attach_folder(ADA, name, FOLDER)).folder == FOLDER
    tip = await log.tip(thread(name))
    await commands.attach_folder(ADA, name, FOLDER)
    assert await log.tip(thread(name)) == tip, "the same folder again is no event"
    other = FolderAttached(path="/home/ada/b", access="read-only", by=ADA, shown=(".env",))
    assert (await commands.attach_folder(ADA, name, other)).folder == other
    assert (await commands.copy(ADA, name, fresh().id)).folder is None
    await commands.write_state(ADA, name, [{"a": 1}, {"a": 2}])
    assert await commands.prune(ADA, name, "keep_latest")
    assert (await commands.state(ADA, name)).folder == other
    for _ in range(2):
        await commands.detach_folder(ADA, name)
    assert (await commands.state(ADA, name)).folder is None
    new = fresh().id
    assert (await commands.attach_folder(ADA, new, FOLDER)).folder == FOLDER
    await commands.erase(ADA, new)
    assert (await commands.state_or_empty(ADA, new)).folder is None


async def test_variables_are_set_once_and_outlive_the_past(commands: Commands, log: EventLog, name: str) -> None:
    one, two = VariableSet(name="A", value="1", by=ADA), VariableSet(name="B", sealed="v1.x.y", by=ADA)
    for fact in (one, two):
        await commands.set_variable(ADA, name, fact)
    tip = await log.tip(thread(name))
    await commands.set_variable(ADA, name, one)
    assert await log.tip(thread(name)) == tip, "the same value again is no event"
    assert (await commands.copy(ADA, name, fresh().id)).variables == {}
    await commands.write_state(ADA, name, [{"a": 1}, {"a": 2}])
    assert await commands.prune(ADA, name, "keep_latest")
    assert (await commands.state(ADA, name)).variables == {"A": one, "B": two}
    for _ in range(2):
        assert (await commands.remove_variable(ADA, name, "A")).variables == {"B": two}
    new = fresh().id
    assert (await commands.set_variable(ADA, new, one)).variables == {"A": one}
    await commands.erase(ADA, new)
    assert (await commands.state_or_empty(ADA, new)).variables == {}


async def test_a_conversation_is_shared_from_its_first_checkpoint_on_up_to_a_limit(
    commands: Commands, name: str
) -> None:
    _, first = await commands.write_state(ADA, name, [{"messages": [human("h2")]}])
    facts = [ThreadShared(share=f"s{n}", by=ADA, upto=first, digest=f"{n:064}") for n in range(MOST_SHARES + 1)]
    with pytest.raises(Refused, match="has changed meanwhile"):
        await commands.share(ADA, name, msgspec.structs.replace(facts[0], upto=999_999))
    for fact in facts[:MOST_SHARES]:
        assert (await commands.share(ADA, name, fact)).fact == fact
    with pytest.raises(Refused, match=f"shared {MOST_SHARES} times already"):
        await commands.share(ADA, name, facts[MOST_SHARES])
    await commands.unshare(ADA, name, "s0")
    assert (await commands.share(ADA, name, facts[MOST_SHARES])).fact == facts[MOST_SHARES]


async def test_a_copy_has_the_title_and_no_goal(commands: Commands, log: EventLog, name: str) -> None:
    await commands.set_goal(ADA, name, GOAL)
    tip = await log.tip(thread(name))
    await log.append(thread(name), [ThreadTitled(title="T")], expected=tip, actor="title")
    copy = await commands.copy(ADA, name, fresh().id)
    assert (copy.values["title"], copy.goal) == ("T", None)


async def test_a_goal_survives_the_pruning_of_the_past(commands: Commands, name: str) -> None:
    await commands.write_state(ADA, name, [{"a": 1}, {"a": 2}])
    await commands.set_goal(ADA, name, GOAL)
    assert await commands.prune(ADA, name, "keep_latest")
    state = await commands.state(ADA, name)
    assert state.goal is not None
    assert (state.goal.set, len(state.commits)) == (GOAL, 1)


@pytest.mark.parametrize("kept", [True, False])
async def test_a_thread_is_there_once_it_is_ensured(
    commands: Commands, intake: Intake, log: EventLog, name: str, kept: bool
) -> None:
    new, erased = fresh().id, fresh().id
    await intake.create_thread(erased, user=ADA)
    await intake.erase(erased, by=ADA)
    if not kept:
        threads = Threads(log)
        commands = Commands(threads, Intake(threads, intake.queue), actor="test")
    await commands.ensure(ADA, name, {"a": 1})
    assert (await commands.state(ADA, name)).metadata == {}
    await commands.ensure(ADA, new, {"a": 1})
    assert (await commands.state(ADA, new)).metadata == {"a": 1}
    with pytest.raises(Refused, match="was deleted"):
        await commands.ensure(ADA, erased, {})


async def test_nothing_is_read_to_ensure_a_new_thread(
    commands: Commands, log: EventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EventLog, "read", None)
    await commands.ensure(ADA, fresh().id, {})


SHARED = ThreadShared(share="s", by=BOB, upto=1, digest="d" * 64)
FOREIGN: dict[str, Callable[[Commands, str], Awaitable[Any]]] = {
    "state": lambda commands, name: commands.state(BOB, name),
    "check_owner": lambda commands, name: commands.check_owner(BOB, name),
    "state_or_empty": lambda commands, name: commands.state_or_empty(BOB, name),
    "uploads": lambda commands, name: commands.uploads(BOB, name),
    "ensure": lambda commands, name: commands.ensure(BOB, name, {}),
    "set_expiry": lambda commands, name: commands.set_expiry(BOB, name, ThreadExpirySet(minutes=1)),
    "write_state": lambda commands, name: commands.write_state(BOB, name, [{}]),
    "erase": lambda commands, name: commands.erase(BOB, name),
    "copy": lambda commands, name: commands.copy(BOB, name, fresh().id),
    "branch": lambda commands, name: commands.branch(BOB, name, fresh().id, "h1"),
    "set_goal": lambda commands, name: commands.set_goal(BOB, name, GOAL),
    "clear_goal": lambda commands, name: commands.clear_goal(BOB, name),
    "attach_folder": lambda commands, name: commands.attach_folder(BOB, name, FOLDER),
    "set_variable": lambda commands, name: commands.set_variable(BOB, name, VariableSet(name="A", value="1", by=BOB)),
    "remove_variable": lambda commands, name: commands.remove_variable(BOB, name, "A"),
    "detach_folder": lambda commands, name: commands.detach_folder(BOB, name),
    "share": lambda commands, name: commands.share(BOB, name, SHARED),
    "unshare": lambda commands, name: commands.unshare(BOB, name, "s"),
    "rate": lambda commands, name: commands.rate(BOB, name, "r1", Rating(1)),
    "add_rating": lambda commands, name: commands.add_rating(BOB, name, "r1", Rating(1)),
    "withdraw_rating": lambda commands, name: commands.withdraw_rating(BOB, name, "r1"),
    "remove_rating": lambda commands, name: commands.remove_rating(BOB, name, "r1", "f1"),
}
SILENT: dict[str, Callable[[Commands, str], Awaitable[Any]]] = {
    "prune": lambda commands, name: commands.prune(BOB, name, "delete"),
    "record": lambda commands, name: commands.record(BOB, name, lambda: [FileRemoved(name="a")]),
}
"""Commands that record what has happened, or go over many threads: for a foreign one they do nothing."""


async def test_files_are_looked_at_for_each_attempt_to_record(commands: Commands, log: EventLog, name: str) -> None:
    """Somebody else was faster between the look and the append."""
    looks = [[FileRemoved(name="a")], [FileRemoved(name="b")]]
    await commands.uploads(ADA, name)
    await Threads(log).decide(name, lambda _: [FileUploaded(name="a", size=1, sha256="x")], actor="test")
    [record] = await commands.record(ADA, name, lambda: looks.pop(0))
    assert record.event == FileRemoved(name="b")


def test_every_command_is_tried_on_a_foreign_thread() -> None:
    public = {name for name in vars(Commands) if not name.startswith("_")}
    assert public - {"create"} == FOREIGN.keys() | SILENT.keys()


@pytest.mark.parametrize("command", [*FOREIGN, *SILENT])
async def test_a_foreign_thread_does_not_exist(commands: Commands, log: EventLog, name: str, command: str) -> None:
    before = await log.tip(thread(name))
    if command in FOREIGN:
        with pytest.raises(NotFound, match=f"Thread {name} not found"):
            await FOREIGN[command](commands, name)
    else:
        assert not await SILENT[command](commands, name)
    assert await log.tip(thread(name)) == before


async def test_erasing_twice(commands: Commands, log: EventLog, name: str) -> None:
    for _ in range(2):
        await commands.erase(ADA, name)
    assert [type(record.event) for record in await read(log, thread(name))].count(ThreadErased) == 1
    assert (await commands.state_or_empty(ADA, name)).erased
    with pytest.raises(NotFound):
        await commands.state(ADA, name)

"""Snapshots of what is no thread: conversations on chat platforms, and stores."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from core.chat import facts
from core.chat.facts import (
    ChatBegun,
    ChatFetched,
    ChatReceived,
    ChatRouted,
    DeliveryAttempted,
    DeliveryPlanned,
    DeliverySent,
    Fetched,
    Target,
    conversation,
)
from core.chat.state import Chats
from core.events import Aggregate, Event
from core.log import snapshots
from core.log.repository import Repository
from core.log.store import EventLog
from core.user import store
from core.user.store import ItemPut, ItemRemoved
from tests.core.test_snapshots import reads
from tests.support.nats import append, eventually, fresh, running_tasks

PLACE = conversation("telegram", "C1")
FILE = Fetched("plan.pdf", object="o1", size=3)


@dataclass(frozen=True)
class Case:
    repository: Any
    """Makes the repository of a log and a directory."""
    aggregate: Aggregate
    events: Sequence[Event]
    more: Event


def said() -> Iterator[Event]:
    target = Target("C1")
    for number in range(40):
        message, plan = f"m{number}", f"p{number}"
        yield ChatReceived(target=target, message=message, sender="1", text="Hi")
        yield ChatFetched(message=message, files=(FILE,))
        yield ChatBegun(thread=f"t{number % 3}", user="ada")
        yield ChatRouted(message=message, outcome="run", run_id=plan, thread=f"t{number % 3}", user="ada")
        yield DeliveryPlanned(plan=plan, target=target, text="Hello", purpose="answer")
        yield DeliveryAttempted(plan=plan, part=0)
        yield DeliverySent(plan=plan, part=0, parts=1, message=f"s{number}")


def kept() -> Iterator[Event]:
    for number in range(80):
        yield ItemPut([f"space{number % 3}", "a"], f"k{number % 20}", {"n": 10**number, "text": "x" * 99})
    yield ItemRemoved(["space0", "a"], "k0")


CASES = {
    "chats": Case(Chats, PLACE, [*said()], ChatBegun(thread="last", user="bea")),
    "stores": Case(store.aggregates, Aggregate(store.KIND, fresh().id), [*kept()], ItemPut(["new"], "k", {"n": 1})),
}


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Snapshots after every event, in many parts."""
    monkeypatch.setattr(snapshots, "SNAPSHOT_BYTES", 1)
    monkeypatch.setattr(store, "PART_BYTES", 500)


async def snapshot(states: Repository[Any], identity: str) -> Any:
    """Has a snapshot written. Returns its state."""
    written = states.snapshots
    assert written is not None

    async with running_tasks(written.run):
        await asyncio.sleep(0)
        folded = await states.folded(identity)

        async def there() -> bool:
            found = await written.read(identity)
            return found is not None and found.seq == folded.seq

        await eventually(there)
    return folded.state


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
async def test_a_cold_one_is_read_from_its_snapshot_on(case: Case, log: EventLog, tmp_path: Path) -> None:
    identity = case.aggregate.id
    await append(log, case.aggregate, *case.events)
    before = await snapshot(case.repository(log, tmp_path), identity)
    assert before == await case.repository(log).load(identity)
    await append(log, case.aggregate, case.more, expected=await log.tip(case.aggregate))
    with reads(log) as records:
        state = await case.repository(log, tmp_path).load(identity)
    assert len(records) == 2
    assert state == await case.repository(log).load(identity)
    assert state != before


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
async def test_it_goes_when_what_was_made_of_the_events_is_dropped(case: Case, log: EventLog, tmp_path: Path) -> None:
    await append(log, case.aggregate, *case.events)
    states = case.repository(log, tmp_path)
    await snapshot(states, case.aggregate.id)
    assert [*tmp_path.glob(f"*/{case.aggregate.id}/head")]
    await states.drop(case.aggregate.id)
    assert not [*tmp_path.glob(f"*/{case.aggregate.id}")]


async def test_a_snapshot_names_no_files_of_messages_that_became_runs(log: EventLog, tmp_path: Path) -> None:
    """These are of a thread, which may be deleted."""
    await append(log, PLACE, *said())
    chats = Chats(log, tmp_path)
    state = await snapshot(chats, PLACE.id)
    assert {heard.files for heard in state.heard.values()} == {()}
    [head] = tmp_path.glob(f"{facts.KIND}/*/head")
    assert b"m39" in head.read_bytes()
    assert FILE.name.encode() not in head.read_bytes()
    await append(
        log,
        PLACE,
        ChatReceived(target=Target("C1"), message="n", sender="1", text="Hi"),
        ChatFetched(message="n", files=(FILE,)),
        expected=await log.tip(PLACE),
    )
    assert (await chats.load(PLACE.id)).heard["n"].files == (FILE,)

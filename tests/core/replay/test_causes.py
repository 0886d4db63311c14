"""Chains of causes, and a thread at a moment."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from core.errors import Invalid, NotFound
from core.events import (
    Aggregate,
    Event,
    ModelCompleted,
    ModelFailed,
    Record,
    Resume,
    RunOrigin,
    RunPaused,
    RunRequested,
    RunStarted,
    ThreadCreated,
    ToolCompleted,
    ToolRequested,
    thread,
)
from core.replay.causes import why
from core.replay.moments import moment
from core.user.schedules import ScheduleFired
from tests.support.records import ai, human, record

T = thread("t")


def outcome(call: str) -> ToolCompleted:
    return ToolCompleted(
        call_id=call, message={"type": "tool", "id": f"o-{call}", "tool_call_id": call, "content": call}
    )


STEPS: Sequence[tuple[Event, str | None, int | None]] = (
    (ThreadCreated(user="me"), None, None),
    (RunRequested(input={"messages": [human("h")]}), "r1", None),
    (RunStarted(attempt=1, worker="w", lease=1), "r1", 2),
    (ModelFailed(error="E", text="busy", attempt=1, max_attempts=3), "r1", 3),
    (ModelCompleted(message=ai("a1", calls=[{"id": "c1", "name": "ls"}, {"id": "c2", "name": "ls"}])), "r1", 3),
    (ToolRequested(call_id="c1", name="ls", effect="pure"), "r1", 5),
    (ToolRequested(call_id="c2", name="ls", effect="pure"), "r1", 5),
    (outcome("c2"), "r1", 7),
    (outcome("c1"), "r1", 6),
    (ModelFailed(error="E", text="busy", attempt=1, max_attempts=3), "r1", 9),
    (RunPaused(next=["tools"]), "r1", 9),
    (RunRequested(resume=Resume(True)), "r2", None),
    (RunStarted(attempt=1, worker="w", lease=2), "r2", 12),
    (ModelCompleted(message=ai("a2")), "r2", 13),
)


def records() -> list[Record]:
    return [record(seq, event, run, f"e{cause}" if cause else None) for seq, (event, run, cause) in enumerate(STEPS, 1)]


async def read(_: Aggregate) -> Sequence[Record]:
    return records()


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("place", "chain", "beside"),
    [
        ("5", [2, 3, 5], {5: [4]}),
        ("c1", [2, 3, 5, 6, 9], {5: [4]}),
        ("e10", [2, 3, 5, 6, 9, 10], {5: [4], 10: [8]}),
        ("14", [2, 3, 5, 6, 9, 11, 12, 13, 14], {5: [4]}),
    ],
    ids=["a failed attempt lies beside", "a call", "outcomes are joined", "over a pause to the first question"],
)
async def test_the_chain(place: str, chain: list[int], beside: dict[int, list[int]]) -> None:
    links = await why(read, T, place)
    assert [link.record.seq for link in links] == chain
    assert {link.record.seq: [r.seq for r in link.beside] for link in links if link.beside} == beside


@pytest.mark.anyio
async def test_a_place_that_is_not_there_is_named() -> None:
    with pytest.raises(NotFound, match=r"'99'; its events are 1 to 14"):
        await why(read, T, "99")


def test_a_moment() -> None:
    assert [m["id"] for m in moment.at(records(), 5).messages] == ["h", "a1"]
    assert moment.at(records(), None).seq == 14
    with pytest.raises(NotFound, match="begins with 1"):
        moment.at(records(), 0)


def test_a_part_of_a_state() -> None:
    values = {"messages": [{"content": "one"}, {"content": "two"}], "todos": []}
    assert moment.part(values, "messages[-1].content") == "two"
    assert moment.part(values, "messages[*].content") == ["one", "two"]
    with pytest.raises(NotFound, match="there are messages, todos"):
        moment.part(values, "artifacts")
    with pytest.raises(Invalid, match=r"path 'messages\['"):
        moment.part(values, "messages[")


@pytest.mark.anyio
async def test_a_run_leads_to_what_it_was_requested_for_in_another_log() -> None:
    firing = ScheduleFired(schedule="s", due="d", run_id="r", thread_id="t")
    logs = {
        T: [record(7, RunRequested(input={}, wanted=RunOrigin("schedules", "ada", "r")), "r", None)],
        Aggregate("schedules", "ada"): [record(3, firing, None, None)],
    }

    async def read_all(aggregate: Aggregate) -> Sequence[Record]:
        return logs.get(aggregate, ())

    assert [link.record.seq for link in await why(read_all, T, "1")] == [3, 7]
    del logs[Aggregate("schedules", "ada")]
    assert [link.record.seq for link in await why(read_all, T, "1")] == [7], "the other log may be gone"


@pytest.mark.anyio
async def test_a_sequence_of_the_stream_is_a_place_too() -> None:
    later = [Record(100 + one.seq, one.raw) for one in records()]

    async def read_later(_: Aggregate) -> Sequence[Record]:
        return later

    by_number, by_sequence = await why(read_later, T, "5"), await why(read_later, T, "seq:105")
    assert [link.record.seq for link in by_number] == [link.record.seq for link in by_sequence] == [102, 103, 105]

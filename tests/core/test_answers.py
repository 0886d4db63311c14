"""What has been answered is told without reading an event twice."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import pytest

from core.events import Aggregate, Record, ThreadAnnotated
from core.log.store import EventLog
from core.runtime.answers import Answers
from tests.support.nats import append, eventually, fresh

NOTE = ThreadAnnotated(metadata={})


@pytest.fixture
def answers(log: EventLog) -> Answers:
    answers = Answers(log)
    answers.watch(["title"])
    return answers


async def add(log: EventLog, aggregate: Aggregate, actor: str = "lead", cause: str | None = None) -> Record:
    tip = await log.tip(aggregate)
    [record] = await log.append(aggregate, [NOTE], expected=tip, actor=actor, cause=cause)

    async def heard() -> bool:
        return log.position >= record.seq

    await eventually(heard)
    return record


@contextmanager
def reads(log: EventLog) -> Iterator[list[int]]:
    seqs: list[int] = []
    original = log.read

    async def reading(*arguments: object, **options: object) -> AsyncIterator[Record]:
        async for record in original(*arguments, **options):  # type: ignore[arg-type]
            seqs.append(record.seq)
            yield record

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log, "read", reading)
        yield seqs


async def test_an_answer_names_its_cause_and_its_actor(log: EventLog, answers: Answers) -> None:
    aggregate = fresh()
    first, second = await add(log, aggregate), await add(log, aggregate)
    await add(log, aggregate, "title", first.id)
    last = await add(log, aggregate, "lead", second.id)
    later = await answers.after(aggregate, first.seq)
    assert later.by("title", first.id)
    assert not later.by("title", second.id)
    assert not later.by("lead", second.id), "nobody looks out for those of the lead"
    assert later.last == last.seq


async def test_nothing_is_read_twice(log: EventLog, answers: Answers) -> None:
    """However many events of one aggregate are handled one after the other."""
    aggregate = fresh()
    records = [await add(log, aggregate) for _ in range(20)]
    with reads(log) as seqs:
        for record in records:
            assert not (await answers.after(aggregate, record.seq)).by("title", record.id)
        answer = await add(log, aggregate, "title", records[5].id)
        assert (await answers.after(aggregate, records[5].seq)).by("title", records[5].id)
        assert not (await answers.after(aggregate, records[6].seq)).by("title", records[6].id)
    assert seqs == [*(record.seq for record in records[1:]), answer.seq]


async def test_the_last_event_is_answered_by_nobody(log: EventLog, answers: Answers) -> None:
    aggregate = fresh()
    await add(log, aggregate)
    record = await add(log, aggregate)
    with reads(log) as seqs:
        later = await answers.after(aggregate, record.seq)
    assert (later.last, seqs) == (0, [])


async def test_an_event_and_its_answers_are_one_read(log: EventLog, answers: Answers) -> None:
    aggregate = fresh()
    records = [await add(log, aggregate) for _ in range(3)]
    answer = await add(log, aggregate, "title", records[1].id)
    with reads(log) as seqs:
        event, later = await answers.event(aggregate, records[1].seq)
        assert event is not None
        assert (event.raw, later.last) == (records[1].raw, answer.seq)
        assert later.by("title", records[1].id)
        assert seqs == [record.seq for record in (*records[1:], answer)]
        event, later = await answers.event(aggregate, records[2].seq)
        assert event is not None
        assert (event.raw, later.by("title", records[2].id)) == (records[2].raw, False)
    assert seqs[3:] == [records[2].seq]
    missing, later = await answers.event(fresh(), answer.seq)
    assert (missing, later.last) == (None, 0)


async def test_an_older_event_is_looked_at_from_there_on(log: EventLog, answers: Answers) -> None:
    aggregate = fresh()
    first, second = await add(log, aggregate), await add(log, aggregate)
    await add(log, aggregate, "title", first.id)
    assert not (await answers.after(aggregate, second.seq)).by("title", second.id)
    await add(log, aggregate, "title", second.id)
    assert (await answers.after(aggregate, first.seq)).by("title", first.id)
    assert (await answers.after(aggregate, second.seq)).by("title", second.id)


async def test_who_is_watched_later_has_not_been_missed(log: EventLog, answers: Answers) -> None:
    aggregate = fresh()
    first = await add(log, aggregate)
    await add(log, aggregate, "memory", first.id)
    assert not (await answers.after(aggregate, first.seq)).by("memory", first.id)
    answers.watch(["memory"])
    assert (await answers.after(aggregate, first.seq)).by("memory", first.id)


async def test_events_of_others_are_unlike(log: EventLog, answers: Answers) -> None:
    one, other = fresh(), fresh()
    record = await add(log, one)
    assert (await answers.after(other, record.seq)).last == 0
    last = await add(log, other, "title", record.id)
    later = await answers.after(other, record.seq)
    assert later.by("title", record.id)
    assert later.last == last.seq
    await append(log, one, NOTE, expected=record.seq)
    assert not (await answers.after(one, record.seq)).by("title", record.id)

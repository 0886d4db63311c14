"""One long conversation: what its turns cost on disk and in time; and what its log can be made to tell again."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from uuid import uuid4

import msgspec
import structlog

from actors.wiring import compose
from core.events import Record, thread
from core.runs.replay import Report
from core.thread.fold import fold
from tests.bench.laboratory import Laboratory, ask
from tests.bench.measure import Row, at_most, flat, median, size_of
from tests.bench.processes import Sika
from tests.support.model_server import run, words
from tests.support.replays import replay

_MODEL, _TOKENS = "tokens-50", 50
_SQLITE_TURNS = 200
"""Its file grows with the square of the turns."""
_FOLDS = 5


@dataclass
class Conversation:
    """What happened on the thread, turn by turn."""

    home: Path
    thread: str
    seconds: list[float] = field(default_factory=list)
    disk: list[int] = field(default_factory=list)
    """Bytes after each turn, the first entry before the first: the log and the rows."""
    log: list[int] = field(default_factory=list)
    """The same, the log alone."""
    said: list[int] = field(default_factory=list)
    """Bytes of the two messages as the least JSON that a client could have kept."""


@cache
def conversation(lab: Laboratory) -> Conversation:
    """The long thread, made once."""
    turns = 200 if lab.quick else 1000
    lab.say(f"a conversation of {turns} turns")
    with lab.sika() as server:
        made = Conversation(server.home, str(uuid4()))
        run(_talk(server, made, turns))
        server.settle()
    return made


async def _talk(server: Sika, made: Conversation, turns: int) -> None:
    _weigh(made)
    for number in range(turns):
        question = f"Question {number} of {made.thread}?"
        made.seconds.append((await ask(server, made.thread, question, _MODEL)).total)
        _weigh(made)
        pair = [{"role": "user", "content": question}, {"role": "assistant", "content": words(_TOKENS)}]
        made.said.append(sum(len(msgspec.json.encode(message)) for message in pair))


def _weigh(made: Conversation) -> None:
    """SQLite's write-ahead log is bounded and not counted; so `views.db` grows by leaps, when that is written back."""
    made.log.append(size_of(made.home / "nats"))
    made.disk.append(made.log[-1] + size_of(made.home / "views.db"))


def turns(lab: Laboratory) -> Iterator[Row]:
    """Disk and time per turn, early and late."""
    ours = conversation(lab)
    count = len(ours.seconds)
    lab.say("the same with the baselines")
    bare = lab.baseline("bare", _MODEL, runs=1, turns=count).turn
    sqlite = lab.baseline("sqlite", _MODEL, runs=1, turns=min(count, _SQLITE_TURNS))
    sqlite_early = lab.baseline("sqlite", _MODEL, runs=1, turns=20).disk_bytes
    sqlite_late = (sqlite.disk_bytes - sqlite_early) / (len(sqlite.turn) - 20)
    yield from _disk_rows(ours, {10: sqlite_early / 20, 100: sqlite_late})
    yield from _time_rows(ours.seconds, bare, sqlite.turn)


def _disk_rows(ours: Conversation, sqlite: Mapping[int, float]) -> Iterator[Row]:
    count = len(ours.seconds)
    each: dict[int, float] = {}
    for turn, (first, last) in {10: (0, 20), 100: (50, 150), count: (count - 100, count)}.items():
        each[turn] = (ours.disk[last] - ours.disk[first]) / (last - first)
        own = sum(ours.said[first:last]) / (last - first)
        log = (ours.log[last] - ours.log[first]) / (last - first)
        yield Row(
            f"bytes on disk around turn {turn}, × the messages' own",
            each[turn] / own,
            at_most(10),
            "B/turn",
            each[turn],
            None,
            sqlite.get(turn),
            note=f"own: {own:.0f}, the log alone: {log:.0f} B/turn",
        )
    for turn in (100, count):
        yield Row(f"bytes on disk, turn {turn} against turn 10", each[turn] / each[10], flat(0.2))


def _time_rows(ours: Sequence[float], bare: Sequence[float], sqlite: Sequence[float]) -> Iterator[Row]:
    late = len(ours)
    places = (10, 100, late)
    own, base = ({turn: _around(times, turn) for turn in places} for times in (ours, bare))
    other = {turn: _around(sqlite, turn) for turn in places if turn <= len(sqlite)}
    for turn in places:
        yield Row(
            f"time of turn {turn}",
            own[turn] / base[turn],
            None,
            "ms",
            own[turn],
            base[turn],
            other.get(turn),
            note=f"{own[turn] - base[turn]:+.1f} ms",
        )
    yield Row(
        f"time of turn {late} against turn 10",
        own[late] / own[10],
        at_most(1.5),
        "×",
        own[late] / own[10],
        base[late] / base[10],
        other[late] / other[10] if late in other else None,
    )


def _around(times: Sequence[float], turn: int) -> float:
    """Median of the ten turns around one, or of the ten last ones, in ms."""
    stop = min(turn + 5, len(times))
    return 1000 * median(times[stop - 10 : stop])


# ── the log, told again ─────────────────────────────────────────────────────────────────────────────────────────────


def fold_speed(lab: Laboratory) -> Iterator[Row]:
    """Folding and replaying the long conversation."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    made = conversation(lab)
    raws, reports = run(_read_and_replay(lab, made, (50, len(made.seconds))))
    loads = max(_per_second(raws, _load) for _ in range(_FOLDS))
    folds = max(_per_second(raws, _fold) for _ in range(_FOLDS))
    yield Row(
        f"json.loads of {len(raws)} events, against folding them",
        loads / folds,
        None,
        "events/s",
        folds,
        note=f"json.loads: {loads:.0f} events/s",
    )
    for turns_, (report, seconds) in reports.items():
        yield Row(
            f"replay of {turns_} turns (recorded steps a second)",
            report.steps / seconds,
            None,
            "steps/s",
            report.steps / seconds,
            note=report.divergence or f"{report.runs} runs in {seconds:.2f} s, no divergence",
        )


async def _read_and_replay(
    lab: Laboratory, made: Conversation, lengths: Sequence[int]
) -> tuple[list[Record], dict[int, tuple[Report, float]]]:
    reports: dict[int, tuple[Report, float]] = {}
    options = compose.Options(made.home, lab.config)
    async with compose.attach(options) as running:
        records = [record async for record in running.log.read(thread(made.thread))]
        await replay(running, made.thread, records[0].seq, options)  # the imports
        ends = [record.seq for record in records if record.type == "run.completed"]
        for turns_ in lengths:
            lab.say(f"replay of {turns_} turns")
            start = time.perf_counter()
            report = await replay(running, made.thread, ends[turns_ - 1], options)
            reports[turns_] = report, time.perf_counter() - start
    return records, reports


def _per_second(records: Sequence[Record], work: Callable[[Sequence[Record]], None]) -> float:
    start = time.perf_counter()
    work(records)
    return len(records) / (time.perf_counter() - start)


def _load(records: Sequence[Record]) -> None:
    for record in records:
        json.loads(record.raw)


def _fold(records: Sequence[Record]) -> None:
    fold(Record(record.seq, record.raw) for record in records)

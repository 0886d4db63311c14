"""What the logs, the ledger and the workspaces say of the threads of a storm (`tests.chaos.storm`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import msgspec

from core.events import Aggregate, Record
from core.log.kinds import SUBAGENT
from core.memory.facts import KIND, FactReinforced, FactRemembered, MemoryExtracted, MemoryKept
from core.thread.fold import fold
from core.thread.state import ThreadState
from core.thread.subagents import tool_message_of
from tests.support.workers import Client

RUNS = 2
"""Runs of each thread: one that a person requests, and one that continues for the goal."""
FACT = "Keeps the otter number {}"
NEEDED = {"lead": 1 + RUNS, "sub": 2, "title": 1, "judge": RUNS}
"""Answers of each model that a thread needs."""
REAL = "real output"


class Tally(msgspec.Struct):
    """Figures, then faults: all of these must be 0."""

    threads: int = 0
    kills: int = 0
    starts: int = 0
    taken_over: int = 0
    unknown_outcomes: int = 0
    """Calls of a `once` tool that a crash hid, and the log says so."""
    deaths: Mapping[str, int] = {}
    answers: Mapping[str, int] = {}
    """Requests to each model."""

    runs_missing: int = 0
    runs_not_completed: int = 0
    titles_missing: int = 0
    titles_twice: int = 0
    facts_missing: int = 0
    facts_twice: int = 0
    conversations_read_twice: int = 0
    evaluations_wrong: int = 0
    continuations_wrong: int = 0
    delegations_wrong: int = 0
    results_missing: int = 0
    results_twice: int = 0
    results_unlike: int = 0
    subagents_not_completed: int = 0
    steps_wrong: int = 0
    marks_missing: int = 0
    marks_twice: int = 0
    signatures_twice: int = 0
    signatures_unsaid: int = 0
    signatures_of_nobody: int = 0
    wake_ups_left: int = 0
    timers_left: int = 0
    dead_letters: int = 0

    stories: list[str] = []

    def add(self, fault: str, count: int, story: str) -> None:
        """Counts a fault."""
        if count:
            setattr(self, fault, getattr(self, fault) + count)
            self.stories.append(f"{fault} {count}: {story}")

    def faults(self) -> dict[str, int]:
        names = self.__struct_fields__[self.__struct_fields__.index("runs_missing") : -1]
        return {name: value for name in names if (value := getattr(self, name))}

    def report(self) -> str:
        names = [name for name in self.__struct_fields__ if isinstance(getattr(self, name), int)]
        lines = [f"{name.replace('_', ' '):<28}{getattr(self, name):>6}" for name in names]
        actors = Counter(actor for moment, count in self.deaths.items() for actor in [moment.split()[0]] * count)
        lines += [f"died: {moment:<22}{count:>6}" for moment, count in sorted({**self.deaths, **actors}.items())]
        again = {name: self.answers.get(name, 0) - times * self.threads for name, times in NEEDED.items()}
        lines += [f"requested again: {name:<11}{count:>6}" for name, count in again.items()]
        return "\n".join([*lines, *self.stories])


class Judge:
    def __init__(self, tally: Tally, client: Client, signed: Mapping[str, int]) -> None:
        self.signatures: list[str] = []
        """The calls that were signed."""
        self._tally, self._client, self._signed = tally, client, signed

    async def hear(self, thread: str, marks: str) -> None:
        """Adds what became of a thread."""
        records = await self._client.records(thread)
        story = f"{thread}: {_story(records)}"
        self._runs(records, story)
        self._goal(records, story)
        delegations = _of(records, "subagent.started")
        self._count("delegations_wrong", len(delegations) != 1, story)
        for started in delegations:
            self._result(records, started.event, story)
            await self._subagent(started.event.subagent, story)
        self._count("marks_missing", not marks, story)
        self._count("marks_twice", marks.count("mark\n") > 1, story)

    def _runs(self, records: Sequence[Record], story: str) -> None:
        types, state = Counter(record.type for record in records), fold(records)
        self._count("titles_missing", not types["thread.titled"], story)
        self._count("titles_twice", types["thread.titled"] > 1, story)
        self._count("runs_missing", len(state.runs) != RUNS, story)
        self._ended("runs_not_completed", records, state, story)

    def _ended(self, fault: str, records: Sequence[Record], state: ThreadState, story: str) -> None:
        errors = [
            run.error.error if run.error else run.status for run in state.runs.values() if run.status != "success"
        ]
        self._count(fault, len(errors), f"{errors} {story}")
        self._count(fault, len(_of(records, "run.completed")) != len(state.runs), story)
        for run in state.runs.values():
            workers = [record.event.worker for record in _of(records, "run.started") if record.run == run.id]
            self._tally.starts += len(workers)
            self._tally.taken_over += sum(a != b for a, b in pairwise(workers))

    def _goal(self, records: Sequence[Record], story: str) -> None:
        evaluations = _of(records, "goal.evaluated")
        causes = [evaluation.id for evaluation in evaluations[: RUNS - 1]]
        self._count("evaluations_wrong", len({record.run for record in evaluations}) != RUNS, story)
        self._count("evaluations_wrong", len(evaluations) != RUNS, story)
        continued = [record.head.cause for record in _of(records, "goal.continued")]
        requested = [record.head.cause for record in _of(records, "run.requested")][1:]
        self._count("continuations_wrong", continued != causes or requested != causes, story)

    def _result(self, records: Sequence[Record], started: Any, story: str) -> None:
        results = [r.event for r in _of(records, "subagent.completed") if r.event.call_id == started.call_id]
        messages = [r.event.message for r in _of(records, "tool.completed") if r.event.call_id == started.call_id]
        self._count("results_missing", not results or not messages, story)
        self._count("results_twice", len(results) > 1 or len(messages) > 1, story)
        told = [(text, "completed") for text, _ in map(tool_message_of, results)]
        unlike = [(m["content"], m["additional_kwargs"].get("subagent_status")) for m in messages] != told
        self._count("results_unlike", unlike, story)

    async def _subagent(self, subagent: str, story: str) -> None:
        log = self._client.system.log
        records = [record async for record in log.read(Aggregate(SUBAGENT, subagent))]
        story = f"{story}\n  {_story(records)}"
        self._ended("subagents_not_completed", records, fold(records), story)
        self._count("steps_wrong", len(_of(records, "model.completed")) != NEEDED["sub"], story)
        outcomes = {r.event.message["name"]: r.event for r in _of(records, "tool.completed")}
        self._count("steps_wrong", len(_of(records, "tool.completed")) != len(outcomes), story)
        self._count("steps_wrong", outcomes.keys() != {"sign", "bash"}, story)
        if outcomes.keys() >= {"sign", "bash"}:
            self._count("steps_wrong", outcomes["bash"].message["content"] != REAL, story)
            self._signature(outcomes["sign"], story)

    def _signature(self, outcome: Any, story: str) -> None:
        key = outcome.message["id"].removeprefix("tool-")
        times = self._signed.get(key, 0)
        self.signatures += [key] * min(1, times)
        self._tally.unknown_outcomes += outcome.unknown
        self._count("signatures_twice", times > 1, story)
        self._count("signatures_unsaid", not times and not outcome.unknown, story)

    async def remember(self, user: str, numbers: Iterable[int]) -> None:
        """Adds what is remembered of a user, whose threads have these numbers."""
        records = [record async for record in self._client.system.log.read(Aggregate(KIND, user))]
        kept = [n for n, record in enumerate(records) if isinstance(record.event, MemoryKept)]
        records = records[kept[-1] :] if kept else records  # older events are erased sooner or later
        contents = Counter(fact.content for r in records if isinstance(r.event, MemoryKept) for fact in r.event.facts)
        contents.update(r.event.fact.content for r in records if isinstance(r.event, FactRemembered))
        facts = {FACT.format(number) for number in numbers}
        self._count("facts_missing", len(facts - contents.keys()), f"{user}: {sorted(facts - contents.keys())}")
        doubled = contents - Counter(facts)
        again = [r.event.fact for r in records if isinstance(r.event, FactReinforced)]
        self._count("facts_twice", doubled.total() + len(again), f"{user}: {doubled} {again}")
        readings = Counter((r.event.thread, r.event.upto) for r in records if isinstance(r.event, MemoryExtracted))
        twice = readings - Counter(readings.keys())
        self._count("conversations_read_twice", twice.total(), f"{user}: {twice}")

    def _count(self, fault: str, count: int, story: str) -> None:
        self._tally.add(fault, int(count), story)


def _of(records: Iterable[Record], kind: str) -> list[Any]:
    return [record for record in records if record.type == kind]


def _story(records: Sequence[Record]) -> str:
    return " ".join(f"{record.head.at[14:23]}:{record.type}" for record in records)

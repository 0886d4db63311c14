"""Runs suites of evaluations (`core.replay.evaluation`): samples by what-ifs, checks on them, and facts about both."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, NamedTuple

import anyio
import anyio.to_thread
import msgspec
import structlog

from actors.debugging.checking import ANSWER_CHARACTERS, Checks
from actors.debugging.pins import difference
from actors.debugging.whatif import WhatIf
from core.config.redaction import redactor
from core.errors import Conflict, Invalid, SikaError
from core.events import Aggregate, Event, ModelCompleted, ModelFailed, Record, RunRequested
from core.ids import uuid7
from core.replay.evaluation.checks import Judge, Subject, subject
from core.replay.evaluation.facts import (
    KIND,
    SAMPLE,
    Checked,
    EvaluationCompleted,
    EvaluationSampled,
    EvaluationStarted,
    SampleRecorded,
    Verdict,
)
from core.replay.evaluation.results import Evaluation, failures, folded
from core.replay.evaluation.suite import RECORDED, REPLAY, Case, Cell, Suite
from core.replay.exports.archive import Archive
from core.replay.exports.archives import Archives
from core.replay.whatif.running import Changes, Estimate, Future, Point
from core.runs.prompts import release
from core.thread.fold import fold
from core.thread.usage import is_apology

if TYPE_CHECKING:
    from actors.wiring.options import Options
    from core.log.store import EventLog

log = structlog.get_logger("sika.evaluations")

ACTOR = "evaluations"
BROKEN = ("Unavailable", "Invalid", "TimeoutError", "OSError", "ConnectionError")
"""Errors of a failed run that are the infrastructure's. Others, such as too many steps, are the agent's."""


class _Item(NamedTuple):
    """A case under a cell: what its samples need. Without a point the case is replayed."""

    case: Case
    cell: Cell
    archive: Archive
    whatif: WhatIf | None
    point: Point | None


class _Taken(NamedTuple):
    """A sample: its future, the hash of its conditions, and whether an earlier evaluation recorded it."""

    future: Future
    key: str
    recorded: bool


class _Spent:
    """The cost and time of an evaluation, against its budget."""

    def __init__(self, suite: Suite) -> None:
        self._usd, self._seconds = suite.budget.usd, suite.budget.seconds
        self._begun, self._cost = anyio.current_time(), 0.0

    def add(self, cost: float | None) -> None:
        self._cost += cost or 0.0

    def remaining_seconds(self) -> float:
        if self._seconds is None:
            return float("inf")
        return max(0.0, self._seconds - (anyio.current_time() - self._begun))

    def allows(self, estimate: Estimate | None) -> bool:
        """Tells whether one more sample is within the budget."""
        cost = (estimate.cost or 0.0) if estimate else 0.0
        return self.remaining_seconds() > 0 and (self._usd is None or self._cost + cost <= self._usd)


class Evaluations:
    """Runs suites under the configuration of `options`, and writes to `log`. `again`: takes recorded samples first."""

    def __init__(self, options: Options, log: EventLog, *, again: bool = False) -> None:
        self._options, self._log, self._again = options, log, again
        self._config = options.source()

    async def run(self, suite: Suite, progress: Callable[[EvaluationSampled], None]) -> Evaluation:
        """Runs a suite. What it names wrongly raises `Invalid` or `NotFound` before the first model call."""
        self._check_models(suite)
        checks = await anyio.to_thread.run_sync(Checks, suite, self._config)
        async with self._items(suite) as items:
            journal = EvaluationJournal(self._log, suite)
            await journal.begin()
            left_out = await self._samples(suite, items, checks, journal, progress)
            samples = journal.samples
            reasons = failures(samples, suite.gate.baseline, suite.fail_if)
            missing = left_out or any(sample.outcome == "error" for sample in samples)
            outcome: Verdict = "failed" if reasons else "incomplete" if missing else "passed"
            await journal.append(EvaluationCompleted(outcome=outcome, reasons=reasons, left_out=left_out))
        return folded(journal.aggregate.id, journal.records)

    async def _samples(
        self,
        suite: Suite,
        items: Sequence[_Item],
        checks: Checks,
        journal: EvaluationJournal,
        progress: Callable[[EvaluationSampled], None],
    ) -> int:
        """Takes all samples, the first of every cell before the second of any. Returns how many the budget left out."""
        spent, left_out = _Spent(suite), 0
        for number in range(1, suite.samples + 1):
            for item in items:
                if item.point is None and number > 1:
                    continue  # a replay has the same outcome each time
                estimate = item.whatif.estimate(item.point) if item.whatif and item.point else None
                event: EvaluationSampled | None = None
                if spent.allows(estimate):
                    with anyio.move_on_after(spent.remaining_seconds()):
                        event = await self._sample(suite, item, number, checks)
                if event is None:
                    left_out += 1
                    continue
                if not event.recorded:
                    spent.add(event.cost)
                spent.add(event.judged)
                await journal.append(event)
                progress(event)
        return left_out

    # ── what a suite names ──────────────────────────────────────────────────────────────────────────────────────────

    def _check_models(self, suite: Suite) -> None:
        """Raises `Invalid` for models that are not configured, and for a budget of money without prices in USD."""
        configured = {model.name: model for model in self._config.current().models}
        judges = [check.model for check in suite.checks if isinstance(check, Judge)]
        names = [*(cell.model for cell in suite.cells if cell.model != RECORDED), *judges]
        if unknown := [name for name in names if name not in configured]:
            raise Invalid(f"model {unknown[0]!r}: there are: {', '.join(configured) or 'none'}")
        names = list(configured) if any(cell.model == RECORDED for cell in suite.cells) else names
        prices = {name: configured[name].pricing for name in names}
        unpriced = [name for name, pricing in prices.items() if pricing is None or pricing.currency != "USD"]
        if suite.budget.usd is not None and unpriced:
            raise Invalid(f"budget.usd: model {unpriced[0]!r} has no `pricing` in USD")

    @asynccontextmanager
    async def _items(self, suite: Suite) -> AsyncIterator[list[_Item]]:
        """Yields the cases under their cells, with opened pins and fork points. Raises `Invalid`."""
        archives: list[Archive] = []
        try:
            items: list[_Item] = []
            for case in suite.cases:
                archive = await Archive.open(suite.file(case.pin))
                archives.append(archive)
                cells = [Cell(REPLAY, REPLAY)] if case.at is None else suite.cells
                items += [await self._item(suite, case, cell, archive) for cell in cells]
            yield items
        finally:
            for archive in archives:
                archive.close()

    async def _item(self, suite: Suite, case: Case, cell: Cell, archive: Archive) -> _Item:
        if case.at is None:
            return _Item(case, cell, archive, None, None)
        source = Archives()
        source.name(archive)
        model = None if cell.model == RECORDED else cell.model
        whatif = WhatIf(source, self._options, Changes(model=model, prompt=suite.prompts[cell.prompt]))
        try:
            at = _start(await archive.read(archive.root)) if case.at == "start" else case.at
            return _Item(case, cell, archive, whatif, await whatif.point(archive.root.id, at))
        except SikaError as error:
            raise Invalid(f"case {case.name}: {error}") from error

    # ── one sample ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def _sample(self, suite: Suite, item: _Item, number: int, checks: Checks) -> EvaluationSampled:
        event = EvaluationSampled(
            case=item.case.name,
            thread=item.archive.root.id,
            model=item.cell.model,
            prompt=item.cell.prompt,
            sample=number,
            outcome="error",
        )
        try:
            if item.whatif is None or item.point is None:
                event, on = await self._replayed(item, event)
            else:
                event, on = await self._live(suite, item.whatif, item.point, event)
            return event if on is None else await checks.judged(event, on)
        except Exception as error:  # of a sandbox, a check, a defect: nothing was measured
            log.info("a sample could not be taken", case=event.case, error=f"{type(error).__name__}: {error}")
            text = redactor.text(f"{type(error).__name__}: {error}")
            return msgspec.structs.replace(event, outcome="error", error=text[:ANSWER_CHARACTERS])

    async def _replayed(self, item: _Item, event: EvaluationSampled) -> tuple[EvaluationSampled, Subject | None]:
        """Replays a pin, and returns the recorded run as what is checked."""
        records = await item.archive.read(item.archive.root)
        run = [record for record in records if record.seq >= _start(records)]
        ends = [record.type for record in run if record.type.startswith("run.")]
        decided = await difference(item.archive, self._options)
        check = Checked("decided as recorded", "failed" if decided else "passed", decided.text if decided else "")
        event = msgspec.structs.replace(event, checks=[check], end=ends[-1])
        return event, subject(fold(records), run, ends[-1])

    async def _live(
        self, suite: Suite, whatif: WhatIf, point: Point, event: EvaluationSampled
    ) -> tuple[EvaluationSampled, Subject | None]:
        taken = await self._recorded_or_live(suite, whatif, point, event)
        future = taken.future
        records = [Record(point.at + n, msgspec.json.encode(body)) for n, body in enumerate(future.events, 1)]
        event = msgspec.structs.replace(
            event,
            end=future.end,
            answer=future.text[:ANSWER_CHARACTERS],
            tokens=future.tokens,
            cost=future.cost,
            currency=future.currency,
            milliseconds=future.milliseconds,
            key=taken.key,
            recorded=taken.recorded,
        )
        if problem := infrastructure(records):
            return msgspec.structs.replace(event, error=problem[:ANSWER_CHARACTERS]), None
        files = [change.path for change in future.files]
        return event, subject(fold(records, point.state), records, future.end, files)

    async def _recorded_or_live(self, suite: Suite, whatif: WhatIf, point: Point, event: EvaluationSampled) -> _Taken:
        """Returns a recorded sample of the same conditions if `again` is set, else a live one, which is recorded."""
        aggregate = Aggregate(SAMPLE, self._key(suite, point, event))
        if self._again and (future := await self._recorded(aggregate)):
            return _Taken(future, aggregate.id, True)
        result = await whatif.run(point)
        future = result.samples[0].future
        if infrastructure([Record(point.at + 1, msgspec.json.encode(body)) for body in future.events]):
            return _Taken(future, aggregate.id, False)  # an error is no sample to take again
        with suppress(Conflict):  # taken before: the first one stays
            fact = redactor.struct(SampleRecorded(future=msgspec.to_builtins(future)))
            await self._log.append(aggregate, [fact], expected=0, actor=ACTOR)
        return _Taken(future, aggregate.id, False)

    async def _recorded(self, aggregate: Aggregate) -> Future | None:
        async for record in self._log.read(aggregate):
            if isinstance(record.event, SampleRecorded):
                with suppress(msgspec.ValidationError):  # of a version with other fields: it is taken anew
                    return msgspec.convert(record.event.future, Future)
        return None

    def _key(self, suite: Suite, point: Point, event: EvaluationSampled) -> str:
        """Returns the hash of all conditions of a sample, and of its number: so N samples are N answers."""
        shared = [*point.thread, point.last]  # an id is of one event, whose past does not change
        config, prompt = self._config.current().hash, suite.prompts[event.prompt]
        conditions = [shared, event.model, prompt, config, release(), event.sample]
        return hashlib.sha256(msgspec.json.encode(conditions)).hexdigest()


class EvaluationJournal:
    """The log of one evaluation."""

    def __init__(self, log: EventLog, suite: Suite) -> None:
        self.aggregate = Aggregate(KIND, uuid7())
        self.records: list[Record] = []
        self._log, self._suite = log, suite

    @property
    def samples(self) -> list[EvaluationSampled]:
        return [record.event for record in self.records if isinstance(record.event, EvaluationSampled)]

    async def begin(self) -> None:
        suite = self._suite
        cases, models = [case.name for case in suite.cases], list(dict.fromkeys(c.model for c in suite.cells))
        await self.append(
            EvaluationStarted(
                suite=suite.path.name,
                sha256=suite.sha256,
                release=release(),
                cases=cases,
                models=models,
                prompts=list(suite.prompts),
                samples=suite.samples,
                baseline=suite.gate.baseline,
                fail_if=suite.gate.fail_if,
            )
        )

    async def append(self, event: Event) -> None:
        last = self.records[-1].seq if self.records else 0
        self.records += await self._log.append(self.aggregate, [redactor.struct(event)], expected=last, actor=ACTOR)


def _start(records: Sequence[Record]) -> int:
    """Returns the sequence of the request of the last run. Raises `Invalid` without one."""
    if starts := [record.seq for record in records if isinstance(record.event, RunRequested)]:
        return starts[-1]
    raise Invalid("there is no run")


def infrastructure(records: Sequence[Record]) -> str:
    """Returns the error of the infrastructure by which a run ended; empty if there is none."""
    last = next((r.event for r in reversed(records) if isinstance(r.event, ModelCompleted | ModelFailed)), None)
    if isinstance(last, ModelFailed):
        return last.text
    for record in records:
        if record.type == "run.failed":
            error, text = getattr(record.event, "error", ""), getattr(record.event, "text", "")
            message = getattr(record.event, "message", None) or {}
            if error in BROKEN or is_apology(message):
                return str(text)
    return ""

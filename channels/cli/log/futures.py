"""Lines of a what-if: the estimate, both futures beside each other, and a table of samples. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from channels.terminal.log.diff import run_lines
from channels.terminal.log.numbers import Numbers
from channels.terminal.text import Style, one_line, seconds
from core.events import Record
from core.phrases import counted
from core.replay.whatif.results import wilson
from core.replay.whatif.running import Estimate, Future, Result, Sample

WIDTH = 100
"""Limit of the characters of a text on a line."""


def estimate_line(estimate: Estimate, samples: int) -> str:
    """Returns what the live part is expected to use."""
    cost = _money(estimate.cost, estimate.currency)
    return (
        f"0 model calls up to the fork point; then about {estimate.tokens} tokens{cost} × {counted(samples, 'sample')}"
    )


def result_lines(result: Result, records: Sequence[Record], style: Style) -> list[str]:
    """Returns the lines of a result: of one sample both futures, of more a table. `records`: those of the thread."""
    numbers, changes = Numbers(records), ", ".join(result.changes) or "as is"
    lines = [style.bold(f"what-if of thread {result.thread} after event {numbers.at(result.at)}: {changes}")]
    lines += [style.yellow(f"  not restored  {one_line(text, WIDTH)}") for text in result.not_restored]
    if len(result.samples) == 1:
        [sample] = result.samples
        live = Numbers(record for record in records if record.seq <= result.at)
        for number, _ in enumerate(sample.future.events, 1):
            live.count(result.at + number)
        lines += run_lines(sample.rows, style, numbers, live)
    lines += [*_table(result), *_shares(result)] if len(result.samples) > 1 else _two(result)
    lines += _blocked(result, style)
    return lines


def _two(result: Result) -> list[str]:
    lines = [_row("", "recorded", "what-if")]
    future = result.samples[0].future
    for name, value in _columns(future).items():
        lines.append(_row(name, _columns(result.recorded)[name], value))
    for change in future.files:
        lines.append(f"  {change.status:<9} {one_line(change.path, WIDTH)} +{change.additions} -{change.deletions}")
    return [*lines, f"answer  {one_line(future.text, WIDTH)}"]


def _columns(future: Future) -> dict[str, str]:
    return {
        "end": future.end or "not ended",
        "answers": str(future.answers),
        "calls": str(len(future.calls)),
        "tokens": str(future.tokens),
        "cost": _money(future.cost, future.currency).removeprefix(", ") or "-",
        "took": seconds(future.milliseconds),
        "files": str(len(future.files)),
    }


def _row(name: str, left: str, right: str) -> str:
    return f"{name:<8}  {left:<20}  {right}".rstrip()


def _table(result: Result) -> Iterator[str]:
    names = list(_columns(result.recorded))
    yield "  ".join(f"{name:>14}" for name in ("", *names))
    for label, future in [("recorded", result.recorded), *_numbered(result.samples)]:
        yield "  ".join(f"{text:>14}" for text in (label, *_columns(future).values()))
    futures = [sample.future for sample in result.samples]
    for name, values in (("tokens", [f.tokens for f in futures]), ("took ms", [f.milliseconds for f in futures])):
        yield f"{name}: median {median(values):g}, {min(values)} to {max(values)}"


def _numbered(samples: Sequence[Sample]) -> list[tuple[str, Future]]:
    return [(f"sample {number}", sample.future) for number, sample in enumerate(samples, 1)]


def _shares(result: Result) -> Iterator[str]:
    """Yields shares of the samples with their 95 % intervals."""
    samples = result.samples
    yield _share("completed", [sample.future.end == "run.completed" for sample in samples])
    yield _share("same next answer as recorded", [sample.same_next for sample in samples])
    names = sorted({call.name for sample in samples for call in sample.future.calls})
    for name in names:
        yield _share(f"calls {name}", [any(call.name == name for call in sample.future.calls) for sample in samples])


def _share(name: str, hits: Sequence[bool]) -> str:
    low, high = wilson(sum(hits), len(hits))
    return f"{name}: {sum(hits)}/{len(hits)} ({low:.2f}–{high:.2f})"


def _blocked(result: Result, style: Style) -> Iterator[str]:
    for label, future in _numbered(result.samples):
        for call in future.calls:
            if call.made != "live":
                yield style.yellow(f"  {call.made:<9} {call.name} ({call.call_id}) in {label}")


def _money(cost: float | None, currency: str | None) -> str:
    return "" if cost is None else f", {cost:.6g} {currency or ''}".rstrip()

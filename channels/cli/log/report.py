"""Lines of a replay's result: what is the same, the first difference with both sides, and what has changed beside."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, TextIO

import msgspec

from channels.terminal.output import unguarded
from channels.terminal.text import one_line
from core.phrases import counted

MOST_CHARACTERS = 1000
PARTS = ("prompt", "configuration", "model")
_ENVELOPE = frozenset(("id", "type", "kind", "aggregate", "actor", "at", "v", "run", "cause", "blob", "duration_ms"))
"""Fields of an event that differ in a step that is the same."""


class Report(Protocol):
    """The result of a replay: `core.runs.replay.Report`."""

    runs: int
    steps: int
    divergence: str | None
    recorded: dict[str, Any] | None
    now: dict[str, Any] | None
    unfinished: int
    changed: list[str]
    seq: int | None
    edited: bool

    @property
    def verdict(self) -> str: ...


def replayed(report: Report, thread: str = "THREAD") -> tuple[str, int]:
    """Returns a replay's result as text, and the exit code: 1 if it differs."""
    if report.divergence is not None:
        return "\n".join(_different(report, thread)), 1
    return "\n".join([f"{verdict(report)}: {_counted(report)}", *_changed(report)]), 0


def verdict(report: Report) -> str:
    """Returns the result in words: what is the same, and what has changed around it."""
    if report.divergence is not None:
        return f"DIFFERENT at seq:{report.seq}" if report.seq else "DIFFERENT after the last event"
    if report.verdict == "identical":
        return "identical"
    others = " and ".join(part for part in PARTS if part in _parts(report.changed))
    under = f" under another {others}" if others else " after an edit" if report.edited else ""
    if report.unfinished:
        return f"same so far{under}, {report.unfinished} of the runs unfinished"
    return f"same decisions{under}"


def _different(report: Report, thread: str) -> Iterator[str]:
    runs = f"run {report.runs}, {counted(report.steps, 'step')} the same"
    yield f"{verdict(report)}, {runs}; later runs not compared"
    yield f"  {one_line(report.divergence or '', MOST_CHARACTERS)}"
    for name, step in (("recorded", report.recorded), ("now", report.now)):
        if step:
            yield f"  {name:<8}  {step_text(step)}"
    yield from _changed(report)
    same = [part for part in PARTS if part not in _parts(report.changed)]
    if same:
        yield f"  the same  {', '.join(same)}"
    if report.seq:
        again = f"sika log replay {thread} --break seq={report.seq}"
        yield f"  look      sika log why {thread} seq:{report.seq}  ·  {again}"


def _changed(report: Report) -> list[str]:
    return [f"  changed   {one_line(text, 200)}" for text in report.changed]


def _parts(changed: Sequence[str]) -> set[str]:
    return {text.partition(":")[0] for text in changed}


def _counted(report: Report) -> str:
    return f"{counted(report.steps, 'step')} in {counted(report.runs, 'run')}"


def step_text(step: Mapping[str, Any]) -> str:
    """Returns a step of a run by what the loop decided in it: times, usage and identities are left out."""
    shown = {name: value for name, value in step.items() if name not in _ENVELOPE and value}
    return f"{step.get('type', '?'):<20} {one_line(msgspec.json.encode(shown).decode(), MOST_CHARACTERS)}"


# ── every thread ────────────────────────────────────────────────────────────────────────────────────────────────────


class Replayed(Protocol):
    """The result of one thread: `actors.debugging.rehearsal_all.Replayed`."""

    @property
    def thread(self) -> str: ...
    @property
    def report(self) -> Report | None: ...
    @property
    def error(self) -> str: ...


class Part(Protocol):
    """The results of one process: `actors.debugging.rehearsal_all.Part`."""

    @property
    def threads(self) -> Sequence[Replayed]: ...
    @property
    def cpu(self) -> float: ...


class Progress:
    """A bar on a terminal; elsewhere nothing."""

    WIDTH = 40

    def __init__(self, stream: TextIO) -> None:
        self._stream = unguarded(stream) if stream.isatty() else None

    def show(self, done: int, count: int) -> None:
        if self._stream:
            filled = self.WIDTH * done // max(count, 1)
            print(
                f"\r{'█' * filled}{'·' * (self.WIDTH - filled)} {done}/{count}", end="", file=self._stream, flush=True
            )

    def end(self) -> None:
        if self._stream:
            print(f"\r{' ' * (self.WIDTH + 20)}\r", end="", file=self._stream, flush=True)


def summary(parts: Sequence[Part]) -> tuple[list[str], int]:
    """Returns the lines about all threads, those that differ in full, and how many differ or could not be replayed."""
    every = sorted((result for part in parts for result in part.threads), key=lambda result: result.thread)
    replayed_ = [(result.thread, result.report) for result in every if result.report is not None]
    lines: list[str] = []
    for thread, report in replayed_:
        if report.divergence is not None:
            lines += [f"thread {thread}", *(f"  {line}" for line in _different(report, thread))]
    failed = [result for result in every if result.error]
    lines += [f"thread {result.thread}  {one_line(result.error, MOST_CHARACTERS)}" for result in failed]
    words: dict[str, int] = {}
    for _, report in replayed_:
        word = "different" if report.divergence is not None else verdict(report).partition(",")[0]
        words[word] = words.get(word, 0) + 1
    outcomes = ", ".join(f"{count} {word}" for word, count in sorted(words.items())) or "none"
    runs, steps = sum(report.runs for _, report in replayed_), sum(report.steps for _, report in replayed_)
    left_out = len(every) - len(replayed_) - len(failed)
    more = (f", {len(failed)} not replayed" if failed else "") + (f", {left_out} left out" if left_out else "")
    cpu = sum(part.cpu for part in parts)
    work = f"{counted(runs, 'run')}, {counted(steps, 'step')}"
    lines.append(f"{counted(len(replayed_), 'thread')}: {outcomes}{more}; {work}, {cpu:.1f} s of CPU")
    return lines, words.get("different", 0) + len(failed)

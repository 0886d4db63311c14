"""Lines of a run's tree of spans (`core.replay.tree`): one line for each span, indented by its depth. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from channels.terminal.text import Style, about, money, one_line, seconds
from core.phrases import counted
from core.replay.money import together
from core.replay.tree import SHORT, Lane, Span, lanes, shares

COLUMNS = 60
"""Width of the time of a run in the bars of its lanes."""
BARS = {"answer": "█", "summary": "█", "call": "▒"}
OTHER_BAR = "·"
MARKS = {"answer": "◆", "retry": "!", "wait": "…", "attempt": "↻", "summary": "≡"}
WIDTH = 60


def tree_lines(run: Span, number: int, style: Style) -> list[str]:
    """Returns the lines of a run, with a heading that has its totals. `number`: 0 for the run of a subagent."""
    spans = list(run.all())
    tokens = sum(span.tokens for span in spans)
    retries = sum(span.kind == "retry" for span in spans)
    facts = [run.name, _took(run), f"{tokens:,} tokens".replace(",", " ")]
    facts += [money(cost)] if (cost := together(span.cost for span in spans)) else []
    facts += [counted(retries, "failed attempt")] if retries else []
    text = f" “{one_line(run.text, WIDTH)}”" if run.text else ""
    heading = f"run{f' {number}' if number else ''}{text}  {' · '.join([*facts, run.state])}"
    path = ", ".join(f"{name} {share}" for name, share in _percents(run))
    lines = [style.dim(f"  waited for: {path}")] if path else []
    lines += [style.dim(line) for line in _bars(run)] if number else []
    return [(style.red if run.failed else style.bold)(heading), *lines, *_below(run, 1, style)]


def _bars(run: Span) -> Iterator[str]:
    """Yields a bar over the time of the run for each lane, if there are several: model, tools, and what waited."""
    rows = lanes(run)
    if run.end is None or len(rows) < 2:
        return
    width = max(len(lane.name) for lane in rows)
    for lane in rows:
        yield f"  {lane.name:<{width}} ▏{_bar(run, lane)}▕"
    yield f"  {'':<{width}}  █ model  ▒ tools  · waits and retries"


def _bar(run: Span, lane: Lane) -> str:
    """Returns the time of a finished run with the spans of a lane; one that is open lasts to its end."""
    begin, end = _time(run.begin), _time(run.end or run.begin)
    scale = COLUMNS / max(end - begin, 1e-9)
    cells = [" "] * COLUMNS
    for span in lane.spans:
        first = min(int((_time(span.begin) - begin) * scale), COLUMNS - 1)
        last = round((_time(span.end or run.end or run.begin) - begin) * scale)
        for place in range(max(first, 0), max(first + 1, min(last, COLUMNS))):
            cells[place] = BARS.get(span.kind, OTHER_BAR)
    return "".join(cells)


def _time(at: str) -> float:
    return datetime.fromisoformat(at).timestamp()


def _percents(run: Span) -> Iterator[tuple[str, str]]:
    """Yields the parts of the critical path with their shares, from 1 % on."""
    parts = shares(run)
    whole = sum(parts.values())
    yield from ((name, f"{part / whole:.0%}") for name, part in parts.items() if part * 100 >= whole)


def _below(span: Span, depth: int, style: Style) -> Iterator[str]:
    for child in span.children:
        if child.kind == "run":
            yield from (f"{'  ' * depth}{line}" for line in tree_lines(child, 0, style))
            continue
        yield _line(child, depth, style)
        yield from _below(child, depth + 1, style)


def _line(span: Span, depth: int, style: Style) -> str:
    head = f"{span.number:>7}  {_took(span):>8}  {'  ' * (depth - 1)}"
    mark = "✗" if span.failed and span.kind == "call" else MARKS.get(span.kind, " ")
    subject = f" {about(span.args, WIDTH)}" if span.args else ""
    lane = f" [{span.text.partition(':')[0]} {span.subagent[:SHORT]}]" if span.subagent else ""
    name = "" if span.kind == "answer" else f" {span.name}{subject}{lane}"
    text = f" “{one_line(span.text, WIDTH)}”" if span.text.strip() else ""
    line = f"{head}{mark}{name}{text}"
    return style.red(line) if span.failed else line


def _took(span: Span) -> str:
    took = span.milliseconds()
    return "open" if took is None else seconds(took)

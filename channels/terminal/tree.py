"""Lines of a run's tree of spans (`core.replay.tree`): one line for each span, indented by its depth. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from channels.terminal.story import seconds
from channels.terminal.text import Style, about, one_line
from core.replay.tree import Span, shares

MARKS = {"answer": "◆", "retry": "!", "wait": "…", "attempt": "↻", "summary": "≡"}
WIDTH = 60


def tree_lines(run: Span, number: int, style: Style) -> list[str]:
    """Returns the lines of a run, with a heading that has its totals."""
    spans = list(run.all())
    tokens = sum(span.tokens for span in spans)
    retries = sum(span.kind == "retry" for span in spans)
    facts = [run.name, _took(run), f"{tokens:,} tokens".replace(",", " ")]
    facts += [f"{retries} failed attempts"] if retries else []
    text = f" “{one_line(run.text, WIDTH)}”" if run.text else ""
    heading = f"run {number}{text}  {' · '.join([*facts, run.state])}"
    path = ", ".join(f"{name} {share}" for name, share in _percents(run))
    lines = [style.dim(f"  waited for: {path}")] if path else []
    return [(style.red if run.failed else style.bold)(heading), *lines, *_below(run, 1, style)]


def _percents(run: Span) -> Iterator[tuple[str, str]]:
    """Yields the parts of the critical path with their shares, from 1 % on."""
    parts = shares(run)
    whole = sum(parts.values())
    yield from ((name, f"{part / whole:.0%}") for name, part in parts.items() if part * 100 >= whole)


def _below(span: Span, depth: int, style: Style) -> Iterator[str]:
    for child in span.children:
        if child.kind == "run":
            yield from (f"{'  ' * depth}{line}" for line in tree_lines(child, 1, style))
            continue
        yield _line(child, depth, style)
        yield from _below(child, depth + 1, style)


def _line(span: Span, depth: int, style: Style) -> str:
    head = f"{span.seq:>7}  {_took(span):>8}  {'  ' * (depth - 1)}"
    mark = "✗" if span.failed and span.kind == "call" else MARKS.get(span.kind, " ")
    subject = f" {about(span.args, WIDTH)}" if span.args else ""
    lane = f" [{span.text.partition(':')[0]} {span.subagent[:8]}]" if span.subagent else ""
    name = "" if span.kind == "answer" else f" {span.name}{subject}{lane}"
    text = f" “{one_line(span.text, WIDTH)}”" if span.text.strip() else ""
    line = f"{head}{mark}{name}{text}"
    return style.red(line) if span.failed else line


def _took(span: Span) -> str:
    took = span.milliseconds()
    return "open" if took is None else seconds(took)

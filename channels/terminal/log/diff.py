"""Lines of differences (`core.replay.diff`): the first one first, words that are gone and new, and the totals. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from typing import Any

import msgspec

from channels.terminal.log.numbers import Numbers
from channels.terminal.text import Style, about, clean, money, one_line, seconds
from core.phrases import counted
from core.replay.diff import Change, Row, Step, words
from core.replay.money import together
from core.runs.prompts import Difference, Missing

WIDTH = 60
"""Characters of the column of a side."""
TIME = 9
"""Characters of the time at the end of a column."""
MOST_CHARACTERS = 4000
"""Limit of a text that is shown."""
_WHOSE = {
    "input": "what went in differs: the prompt, the policies, the configuration or an earlier step",
    "output": "the same went in, something else came out: the model, or the world that a tool saw",
    "only left": "only the left one has this step",
    "only right": "only the right one has this step",
}


def run_lines(rows: Sequence[Row], style: Style, left: Numbers, right: Numbers, *, whole: bool = False) -> list[str]:
    """Returns the lines of two runs beside each other. `left`, `right`: the numbers of the events of their logs.

    `whole`: rows that are the same, too.
    """
    first = next((row for row in rows if not row.same), None)
    if first is None:
        return [f"the same: {counted(len(rows), 'step')}", *_totals(rows)]
    before = rows.index(first)
    heading = style.bold(f"first difference after {counted(before, 'step')}: {_WHOSE[first.difference]}")
    lines = [heading, *_both(first, style, left, right), ""]
    lines += [_row(row, style, left, right) for row in (rows if whole else rows[before:])]
    return [*lines, "", *_totals(rows)]


def setup_lines(setups: Sequence[Difference], style: Style) -> list[str]:
    """Returns the lines of what models got besides the conversation: the lines that differ, word by word."""
    lines: list[str] = []
    for part, before, after in setups:
        lines += ["", style.bold(f"{part}: what the models got differs")]
        if not isinstance(before, str) or not isinstance(after, str):
            sides = ("left", before), ("right", after)
            lines += [f"  {name}: {side.reason}" for name, side in sides if isinstance(side, Missing)]
            continue
        olds, news = before.splitlines(), after.splitlines()
        for name, a0, a1, b0, b1 in SequenceMatcher(None, olds, news, autojunk=False).get_opcodes():
            if name != "equal":
                lines += [f"  {_marked(chr(10).join(olds[a0:a1]), chr(10).join(news[b0:b1]), style)}"]
    return lines


def state_lines(changes: Sequence[Change], style: Style) -> list[str]:
    """Returns the lines of what differs in two states."""
    lines: list[str] = []
    for change in changes:
        lines.append(style.bold(change.path))
        if isinstance(change.before, str) and isinstance(change.after, str):
            lines.append(f"  {_marked(change.before, change.after, style)}")
            continue
        for mark, value in (("-", change.before), ("+", change.after)):
            if value is not msgspec.UNSET:
                lines.append(f"  {_sign(mark, style)} {one_line(_json(value), 500)}")
    return lines or ["the same"]


def _both(row: Row, style: Style, left: Numbers, right: Numbers) -> Iterator[str]:
    if row.left is None or row.right is None:
        for name, step, numbers in (("left", row.left, left), ("right", row.right, right)):
            yield from [f"  {name:<6} {_step(step, numbers)}"] if step else []
        return
    places = f"left at {left.at(row.left.seq)}, right at {right.at(row.right.seq)}"
    yield f"  {row.left.kind} {row.left.name}".rstrip() + f", {places}"
    left_step, right_step = row.left, row.right
    if left_step.key() != right_step.key():
        yield f"  in   {_marked(_text(left_step.input), _text(right_step.input), style)}"
    if left_step.came_out() != right_step.came_out():
        yield f"  out  {_marked(_text(left_step.output), _text(right_step.output), style)}"


def _row(row: Row, style: Style, left: Numbers, right: Numbers) -> str:
    mark = {"": " ", "only left": "-", "only right": "+"}.get(row.difference, "≠")
    line = f"{mark} {_cell(row.left, left)} │ {_cell(row.right, right)}".rstrip()
    return line if row.same else style.yellow(line)


def _cell(step: Step | None, numbers: Numbers) -> str:
    """Returns a step in a column of `WIDTH` characters, with its time at the end."""
    if step is None:
        return " " * WIDTH
    end = f"{money(step.cost)} {seconds(step.milliseconds) if step.milliseconds else '':>{TIME}}".strip(" ")
    end = f"{end:>{TIME}}"
    return f"{_step(step, numbers)[: WIDTH - len(end)]:<{WIDTH - len(end)}}{end}"


def _step(step: Step, numbers: Numbers) -> str:
    text = f"{numbers.at(step.seq):>6} {step.name or step.kind} "
    shown = step.output if step.kind == "answer" else step.input
    if isinstance(shown, str):  # so much that it was cut to the beginning of its JSON
        return text + one_line(shown, WIDTH)
    match step.kind:
        case "call":
            return text + about(shown, WIDTH)
        case "answer":
            names = " ".join(f"→ {name}" for name, _ in shown["calls"])
            return text + one_line(f"“{shown['text']}” {names}", WIDTH)
    return text + one_line(" ".join(shown["messages"]), WIDTH)


def _totals(rows: Sequence[Row]) -> list[str]:
    sides = {"left": [row.left for row in rows if row.left], "right": [row.right for row in rows if row.right]}
    return [f"{name:<6} {_total(side)}" for name, side in sides.items()]


def _total(side: Sequence[Step]) -> str:
    took = seconds(sum(step.milliseconds for step in side))
    cost = money(together(step.cost for step in side))
    return ", ".join(
        filter(None, [counted(len(side), "step"), f"{sum(step.tokens for step in side)} tokens", cost, took])
    )


def _marked(before: str, after: str, style: Style) -> str:
    """Returns both texts as one: `[-gone-]` and `{+new+}`, in colours where there are some."""
    pieces = words(clean(before)[:MOST_CHARACTERS], clean(after)[:MOST_CHARACTERS])
    return "".join(_shaped(kind, text, style) for kind, text in pieces)


def _shaped(kind: str, text: str, style: Style) -> str:
    match kind:
        case "gone":
            return style.red(f"[-{text}-]")
        case "new":
            return style.green(f"{{+{text}+}}")
    return text


def _sign(mark: str, style: Style) -> str:
    return style.red(mark) if mark == "-" else style.green(mark)


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, dict) and isinstance(value.get("text"), str) and len(value) == 1:
        return str(value["text"])
    return _json(value)


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()

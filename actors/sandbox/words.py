"""The words of the sandbox actor for the model: results, cut to their limits."""

from __future__ import annotations

import codecs
from collections.abc import Iterator

from core.ports.sandbox import ExecResult

MOST_OUTPUT = 100_000
"""Limit of a command's output, in characters: it fits a message of the bus even if all are escaped."""

BLOCK = 2 << 20
"""Bytes of a file that are decoded at a time."""


def excerpt(content: bytes, first: int | None, last: int | None) -> str:
    """Returns the text of a file, or some of its lines. Goes block by block: all lines of a large file take far more
    memory than its text, and one long call would hold up the server even in another thread.
    """
    if first is None or last is None:
        return "".join(_blocks(content))
    parts, number = list[str](), 0
    for lines in _lines(content):
        if part := lines[max(0, first - 1 - number) : max(0, last - number)]:
            parts.append("\n".join("".join(part).splitlines()))
        number += len(lines)
        if number >= last:
            break
    return "\n".join(parts)


def _lines(content: bytes) -> Iterator[list[str]]:
    """Yields the lines of a text with their ends, a block's at a time."""
    rest = ""
    for block in _blocks(content):
        *lines, rest = (rest + block).splitlines(keepends=True) or [""]
        yield lines
    yield [rest] if rest else []


def _blocks(content: bytes) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    for start in range(0, len(content), BLOCK):
        yield decoder.decode(content[start : start + BLOCK], start + BLOCK >= len(content))


def outcome(result: ExecResult, timeout: float) -> str:
    lines = [f"Note: {result.note}"] if result.note else []
    if result.ended == "timeout":
        lines.append(f"the command was stopped after {timeout:g} seconds.")
    elif result.ended == "interrupted":
        lines.append("the command was interrupted. What it did until then stays done: look before you run it again.")
    if result.stdout:
        lines.append(result.stdout.rstrip("\n"))
    if result.stderr:
        lines.append(f"Std Error:\n{result.stderr.rstrip()}")
    if result.exit_code:
        lines.append(f"Exit Code: {result.exit_code}")
    return "\n".join(lines) or "(no output)"


def clamp(requested: int, configured: int, cap: int) -> int:
    return max(1, min(requested, configured, cap))


def numbered(paths: list[str], more: bool, noun: str) -> str:
    if not paths:
        return f"Found no {noun}."
    lines = [f"Found {len(paths)} {noun}:", *(f"{number}. {path}" for number, path in enumerate(paths, 1))]
    return "\n".join([*lines, *truncated(more)])


def matches(lines: list[str], more: bool, path: str) -> str:
    if not lines:
        return f"Found no matches under {path}."
    return "\n".join([f"Found {len(lines)} matches under {path}:", *lines, *truncated(more)])


def truncated(more: bool) -> list[str]:
    return ["(There are more. Narrow the pattern or the path to see them.)"] if more else []


def cut_middle(text: str, limit: int, note: str = "") -> str:
    """Returns equal head and tail, with the length of the gap. At most `limit` characters; 0 means no limit."""
    if limit <= 0 or len(text) <= limit:
        return text
    room = limit - len(_skipped(len(text), note))
    if room <= 0:
        return text[:limit]
    head, tail = room - room // 2, room // 2
    return text[:head] + _skipped(len(text) - head - tail, note) + text[len(text) - tail :]


def _skipped(count: int, note: str) -> str:
    return f"\n... [{count} characters skipped{note}] ...\n"


def cut_tail(text: str, limit: int, hint: str = "") -> str:
    """Returns the head, with the length of the text. At most `limit` characters; 0 means no limit."""
    if limit <= 0 or len(text) <= limit:
        return text
    note = f"\n... [only the first characters of {len(text)} are shown{'; ' + hint if hint else ''}]"
    return text[: max(0, limit - len(note))] + note[:limit]

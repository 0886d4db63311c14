"""The words of the sandbox actor for the model: results, cut to their limits."""

from __future__ import annotations

import re
from collections.abc import Sequence

from core.phrases import counted
from core.ports.sandbox import Edit, ExecResult, Listing, Query

MOST_OUTPUT = 100_000
"""Limit of a command's output, in characters: it fits a message of the bus even if all are escaped."""

LONGER = "What it did until then stays done. Give it a longer timeout, or run it in the background."
NAMED_LINES = 20
"""Lines that an answer about edits names."""
NAMED = 5
"""Directories that a note names."""


def outcome(result: ExecResult, timeout: float) -> str:
    lines = [f"Note: {result.note}"] if result.note else []
    if result.ended == "timeout":
        lines.append(f"the command was stopped after {timeout:g} seconds. {LONGER}")
    elif result.ended == "interrupted":
        lines.append("the command was interrupted. What it did until then stays done: look before you run it again.")
    if result.stdout:
        lines.append(result.stdout.rstrip("\n"))
    if result.stderr:
        lines.append(f"Std Error:\n{result.stderr.rstrip()}")
    if result.exit_code:
        lines.append(f"Exit Code: {result.exit_code}")
    return "\n".join(lines) or "(no output)"


def clamp(requested: int, limit: int) -> int:
    return max(1, min(requested, limit))


def edits_made(edits: Sequence[Edit], lines: Sequence[Sequence[int]]) -> str:
    """Returns where the edits changed their files."""
    if len(edits) == 1:
        return (f"Replaced{_at(lines[0])}." if edits[0].old else "Created.") if lines[0] else "OK"
    parts = [
        f"{edit.path}: replaced{_at(own)}" if edit.old else f"{edit.path}: created"
        for edit, own in zip(edits, lines, strict=True)
    ]
    return "\n".join([f"Made {len(edits)} edits:", *parts])


def _at(lines: Sequence[int]) -> str:
    if not lines:
        return ""
    noun = "line" if len(lines) == 1 else f"{len(lines)} places, lines"
    more = " …" if len(lines) > NAMED_LINES else ""
    return f" at {noun} {', '.join(map(str, lines[:NAMED_LINES]))}{more}"


def entries(listing: Listing, path: str, limit: int) -> str:
    """Returns the answer of `ls`: paths below the directory, at most `limit` characters, and what is not listed."""
    base = f"{path.rstrip('/')}/"
    lines = [each.removeprefix(base) for each in listing.found]
    shown = fitting(lines, limit or MOST_OUTPUT)
    notes = [f"({count} more in {directory})" for directory, count in listing.passed.items()]
    if len(shown) < len(lines):
        notes.append(f"({len(lines) - len(shown)} more: list a directory below, or find files with glob)")
    if listing.directories:
        notes.append(f"(Not opened: {_few([each.removeprefix(base) for each in listing.directories])})")
    heading = f"{counted(listing.total, 'entry')} in {path}:" if lines else f"{path} is empty."
    return "\n".join([heading, *shown, *notes])


def paths_found(listing: Listing, path: str) -> str:
    """Returns the answer of `glob`."""
    shown = fitting(listing.found, MOST_OUTPUT)
    more = listing.total - len(shown)
    least = "at least " if listing.stopped else ""
    noun = "path" if listing.total == 1 else "paths"
    heading = f"Found {least}{listing.total} {noun} under {path}:" if shown else f"Found no paths under {path}."
    notes = [f"({more} more: narrow the pattern or the path, or raise max_results)"] if more else []
    return "\n".join([heading, *shown, *notes, *_left_out(listing, path, "looked at")])


def lines_found(listing: Listing, query: Query, path: str) -> str:
    """Returns the answer of `grep`."""
    shown, least = fitting(listing.found, MOST_OUTPUT), "at least " if listing.stopped else ""
    if listing.total:
        noun = "matching line" if listing.total == 1 else "matching lines"
        heading = f"Found {least}{listing.total} {noun} in {_files(listing.files)} under {path}:"
    elif listing.searched:
        heading = f"Found no matches under {path}, in {_files(listing.searched)}."
    else:
        heading = f"No file under {path} was searched{_filter(query)}."
    if query.shows == "lines":
        more = listing.total - sum(1 for line in shown if _MATCHING.match(line))
    else:
        more = listing.files - len(shown)
    notes = [f"({more} more: narrow the pattern or the path, or raise max_results)"] if more > 0 else []
    return "\n".join([heading, *shown, *notes, *_left_out(listing, path, "searched")])


_MATCHING = re.compile(r"/[^\n]*?:\d+: ")
"""The beginning of a matching line, in contrast to its context."""


def _files(count: int) -> str:
    return counted(count, "file")


def _filter(query: Query) -> str:
    filters = [f"glob {query.glob!r}"] if query.glob else []
    filters += [f"type {query.type!r}"] if query.type else []
    return f": none fits {' and '.join(filters)}" if filters else ""


def _left_out(listing: Listing, path: str, done: str) -> list[str]:
    """Returns notes about what was not looked at."""
    base, notes = f"{path.rstrip('/')}/", list[str]()
    parts = [_few([f"{each.removeprefix(base)}/" for each in listing.directories])] if listing.directories else []
    parts += [f"{count} {reason}" for reason, count in sorted(listing.passed.items())]
    if parts:
        hint = ". Set everything to enter those directories" if listing.directories else ""
        notes.append(f"(Not {done}: {'; '.join(parts)}{hint}.)")
    if listing.stopped == "time":
        notes.append("(The time for a search is over: what is left was not looked at. Narrow the path or the pattern.)")
    elif listing.stopped:
        notes.append("(There are too many matches to count. Narrow the pattern.)")
    return notes


def _few(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED} more like it" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


def fitting(lines: Sequence[str], limit: int) -> Sequence[str]:
    """Returns the first lines that together have at most `limit` characters, one line at least."""
    size = 0
    for number, line in enumerate(lines):
        size += len(line) + 1
        if size > limit and number:
            return lines[:number]
    return lines

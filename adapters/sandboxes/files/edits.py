"""Replaces text in files: exactly where it stands, else not at all, with the reason."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence

from core.errors import Invalid
from core.files.encodings import Decoded
from core.ports.sandbox import Edit

NAMED_LINES = 10
"""Places that a refusal names."""
LOOKED_AT = 20_000
"""Lines in which the nearest one is looked for."""
SHOWN_LINE = 120
LIKE = 0.6
"""Similarity from which a line is shown as the nearest one."""
_NUMBERED = re.compile(r"^ *\d+(?:\t|: |- |\| ?)", re.MULTILINE)


def edited(path: str, file: Decoded, edits: Sequence[Edit]) -> tuple[bytes, list[list[int]]]:
    """Returns the content after all edits, and the lines at which each changed it. Raises `Invalid`."""
    text, lines = file.text, list[list[int]]()
    for edit in edits:
        if not edit.old and not text:  # a new file, or an empty one
            text = edit.new
            lines.append([1])
            continue
        old, new = _with_endings(text, edit)
        places = list(_places(text, old, len(old) if edit.every else 1)) if old else []
        if not places:
            raise Invalid(f"{path}: {_missing(text, edit)}")
        if len(places) > 1 and not edit.every:
            raise Invalid(f"{path}: {_ambiguous(text, places)}")
        lines.append(_lines_after(text, places, old, new))
        text = text.replace(old, new)
    try:
        return file.encoded(text), lines
    except UnicodeEncodeError as error:
        character = text[error.start]
        raise Invalid(f"{path}: is encoded in {file.encoding}, which has no {character!r}") from None


def _with_endings(text: str, edit: Edit) -> tuple[str, str]:
    """Returns the texts with the line endings of the file, as models write `\\n` whatever the file has."""
    if "\r\n" in text and "\n" not in text.replace("\r\n", ""):
        return _crlf(edit.old), _crlf(edit.new)
    if "\r\n" in text and edit.old not in text:
        return _crlf(edit.old), _crlf(edit.new)
    if "\r\n" not in text:
        return edit.old.replace("\r\n", "\n"), edit.new.replace("\r\n", "\n")
    return edit.old, edit.new


def _crlf(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\n", "\r\n")


def _places(text: str, old: str, step: int) -> Iterator[int]:
    """Yields where a text stands. Two places may overlap with a `step` of 1, as those of `aa` in `aaa` do."""
    place = text.find(old)
    while place >= 0:
        yield place
        place = text.find(old, place + step)


def _line(text: str, place: int) -> int:
    return text.count("\n", 0, place) + 1


def _lines_after(text: str, places: Sequence[int], old: str, new: str) -> list[int]:
    """Returns the lines at which the new text stands afterwards."""
    lines, line, last, grown = [], 1, 0, new.count("\n") - old.count("\n")
    for number, place in enumerate(places):
        line += text.count("\n", last, place)
        last = place
        lines.append(line + number * grown)
    return lines


def _ambiguous(text: str, places: Sequence[int]) -> str:
    lines = ", ".join(str(_line(text, place)) for place in places[:NAMED_LINES])
    more = " …" if len(places) > NAMED_LINES else ""
    return (
        f"the text is in {len(places)} places, at lines {lines}{more}. Nothing was changed. Give more of the text "
        "around the one that is meant, or set replace_all."
    )


def _missing(text: str, edit: Edit) -> str:
    """Returns the refusal of a text that is not there, with what comes nearest."""
    if not edit.old:
        return "old_str is empty, which makes a new file, but this one is there. To write a whole file, use write_file."
    start = "the text to replace was not found. Nothing was changed."
    if edit.new and edit.new in text and len(edit.new) > len(edit.old):
        return f"{start} The new text is there already, at line {_line(text, text.index(edit.new))}."
    if _NUMBERED.search(edit.old) and _NUMBERED.sub("", edit.old) in text:
        return f"{start} It begins with line numbers, which are not in the file: leave them out."
    lines = text.replace("\r\n", "\n").split("\n")[:LOOKED_AT]
    old = edit.old.replace("\r\n", "\n").strip("\n").split("\n")
    if (number := _but_for_blanks(lines, old)) is not None:
        shown = "\n".join(lines[number : number + min(len(old), NAMED_LINES)])
        return f"{start} At line {number + 1} it stands with other blanks:\n{shown}"
    return f"{start}{_nearest(lines, old)}"


def _but_for_blanks(lines: Sequence[str], old: Sequence[str]) -> int | None:
    plain = [" ".join(line.split()) for line in old]
    stripped = [" ".join(line.split()) for line in lines]
    for number, line in enumerate(stripped):
        if line == plain[0] and stripped[number : number + len(plain)] == plain and any(plain):
            return number
    return None


def _nearest(lines: Sequence[str], old: Sequence[str]) -> str:
    """Returns the lines that are most like the first one, and where the text begins to differ."""
    first = next((line.strip() for line in old if line.strip()), "")[:SHOWN_LINE]
    if exact := [number for number, line in enumerate(lines, 1) if line.strip()[:SHOWN_LINE] == first]:
        where = ", ".join(map(str, exact[:NAMED_LINES]))
        return f" Its first line is at line {where}; what follows is different there. Read the file again."
    matcher, best = difflib.SequenceMatcher(b=first, autojunk=False), (LIKE, 0)
    for number, line in enumerate(lines, 1):
        matcher.set_seq1(line.strip()[:SHOWN_LINE])
        if matcher.real_quick_ratio() > best[0] and matcher.quick_ratio() > best[0]:
            best = max(best, (matcher.ratio(), number))
    if not best[1]:
        return " No line is like its first one. Read the file again."
    return f" The nearest to its first line is line {best[1]}: {lines[best[1] - 1].strip()[:SHOWN_LINE]}"

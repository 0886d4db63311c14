"""Numbers of sheets in the form that a person sees, with all the digits that they have.

Rounding is display, so no digit is dropped: 0.125 as `0%` is 12.5%. Dates are written as in ISO 8601, since the usual
formats of dates depend on the reader's country.
"""

from __future__ import annotations

import re
from datetime import datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from typing import NamedTuple

from openpyxl.styles.numbers import BUILTIN_FORMATS  # type: ignore[import-untyped]
from openpyxl.utils.datetime import CALENDAR_MAC_1904, CALENDAR_WINDOWS_1900, from_excel  # type: ignore[import-untyped]

_DATE_IDS, _TIME_IDS = {*range(27, 32), 34, 35, 36, *range(50, 55), 57, 58}, {32, 33, 55, 56}
"""Built-in formats of East Asian versions of Excel, which no file defines."""
_TOKEN = re.compile(
    r'"([^"]*)"|\\(.)|_.|\*.|\[\$([^\]-]*)[^\]]*\]|(\[[hms]+\])|\[[^\]]*\]|([eE][+-])|(.)', re.IGNORECASE | re.DOTALL
)
_GENERAL = re.compile("general", re.IGNORECASE)
_LAST_DAY = 2_958_466
"""The day after 31 December 9999."""
_PLAIN = re.compile(r"-?\d+")


class Form(NamedTuple):
    """A section of a format. `pattern`: placeholders and literals of the number, each a pair (is literal, text)."""

    pattern: tuple[tuple[bool, str], ...] = ()
    percent: int = 0
    thousands: bool = False
    scale: int = 0
    exponent: bool = False
    decimals: int = 0


def builtin(number: int) -> str:
    """Returns the code of a built-in format."""
    if number in _DATE_IDS:
        return "yyyy-mm-dd"
    return "hh:mm:ss" if number in _TIME_IDS else BUILTIN_FORMATS.get(number, "")


def formatted(raw: str, code: str, *, from_1904: bool = False) -> str:
    """Returns a number of a cell, as the file writes it, in the form of a format."""
    try:
        number = Decimal(raw) if _PLAIN.fullmatch(raw) else _precise(float(raw))
    except (ValueError, InvalidOperation, OverflowError):
        return raw
    if not number.is_finite():
        return raw
    if not code or code.casefold() == "general" or code == "@":
        return _plain(number)
    code = _GENERAL.sub("0", code)
    if (kind := date_kind(code)) and 0 <= number < _LAST_DAY:
        return _date(float(number), kind, from_1904)
    return _formatted(number, code)


def _precise(number: float) -> Decimal:
    """Returns a number without the noise behind its 15th digit, which Excel does not show, unless it is a whole one."""
    return Decimal(repr(number) if abs(number) >= 1e15 else format(number, ".15g"))


def _plain(number: Decimal) -> str:
    """Returns a number without a form."""
    if number and not -7 <= number.adjusted() < 21:
        return f"{number.normalize():E}"
    text = f"{number:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


# ── dates ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@lru_cache(512)
def date_kind(code: str) -> str:
    """Returns "date", "time", "both" or "elapsed" (hours above 24), "" for a format of numbers."""
    letters = set()
    for match in _TOKEN.finditer(code.split(";")[0]):
        if match[4]:
            return "elapsed"
        letters |= {match[6].lower()} if match[6] else set()
    if letters & set("#?0") and not letters & set("hs"):
        return ""
    has_time = bool(letters & set("hs"))
    has_date = bool(letters & set("ydgeb")) or ("m" in letters and not has_time)
    return "both" if has_date and has_time else "date" if has_date else "time" if has_time else ""


def _date(number: float, kind: str, from_1904: bool) -> str:
    if kind == "elapsed":
        return _elapsed(round(number * 86_400_000))
    epoch = CALENDAR_MAC_1904 if from_1904 else CALENDAR_WINDOWS_1900
    try:
        moment = from_excel(number, epoch)
    except (ValueError, OverflowError, TypeError):
        return _plain(Decimal(str(number)))
    if isinstance(moment, timedelta):
        return _elapsed(round(number * 86_400_000))
    if isinstance(moment, time):
        return _clock(moment) if kind == "time" or moment != time() else "1900-01-00" if kind == "date" else "00:00"
    if isinstance(moment, datetime):
        return dated(moment, kind)
    return str(moment)


def dated(moment: datetime, kind: str) -> str:
    """Returns a moment in ISO 8601; the time of a date is shown if it is not midnight."""
    day = moment.date().isoformat()
    return day if kind == "date" and moment.time() == time() else f"{day} {_clock(moment.time())}"


def _clock(moment: time) -> str:
    if moment.microsecond:
        return moment.isoformat("milliseconds")
    return moment.isoformat("seconds" if moment.second else "minutes")


def _elapsed(milliseconds: int) -> str:
    seconds, rest = divmod(milliseconds, 1000)
    text = f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return f"{text}.{rest:03}" if rest else text


# ── numbers ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _formatted(number: Decimal, code: str) -> str:
    sections = _sections(code)
    section, magnitude = sections[0], number
    if len(sections) > 1 and number < 0:
        section, magnitude = sections[1], -number
    elif len(sections) > 2 and number == 0:
        section = sections[2]
    form = _form(section)
    if not any(not literal for literal, _ in form.pattern):
        return _plain(number)
    return _written(magnitude, form)


@lru_cache(512)
def _sections(code: str) -> tuple[str, ...]:
    sections, quoted, escape = [""], False, False
    for letter in code:
        if letter == ";" and not quoted and not escape:
            sections.append("")
            continue
        quoted ^= letter == '"' and not escape
        escape = letter == "\\" and not escape
        sections[-1] += letter
    return tuple(sections)


@lru_cache(512)
def _form(section: str) -> Form:
    """Returns the form that a section of a format says."""
    pattern, percent, decimals = list[tuple[bool, str]](), 0, 0
    exponent = fraction = False
    for match in _TOKEN.finditer(section):
        literal = match[1] or match[2] or match[3]
        letter = match[6] or ""
        if match[5]:
            exponent = True
            break
        if letter == "/":
            fraction = True
        if letter == "%":
            percent, literal = percent + 1, "%"
        if letter and letter in "0#?.,":
            pattern.append((False, letter))
        elif literal or (letter and letter not in "@"):
            pattern.append((True, literal or letter))
    if fraction:
        return Form()
    marks = "".join(text for literal, text in pattern if not literal)
    whole, _, decimal = marks.partition(".")
    decimals = decimal.count("0")
    tail = len(marks) - len(marks.rstrip(","))
    thousands = "," in (whole.rstrip(",") if tail else whole)
    return Form(tuple(pattern), percent, thousands, tail, exponent, decimals)


def _written(number: Decimal, form: Form) -> str:
    number = number.scaleb(2 * form.percent - 3 * form.scale)
    sign, number = ("-" if number < 0 else ""), abs(number)
    if form.exponent:
        return f"{sign}{_scientific(number, form)}"
    text = f"{number:f}"
    whole, _, decimals = text.partition(".")
    decimals = decimals.rstrip("0").ljust(form.decimals, "0")
    return sign + _placed(whole.lstrip("0"), decimals, form)


def _scientific(number: Decimal, form: Form) -> str:
    digits = "".join(map(str, number.normalize().as_tuple().digits))
    decimals = digits[1:].ljust(form.decimals, "0")
    exponent = number.adjusted() if number else 0
    return f"{digits[0]}{'.' if decimals else ''}{decimals}E{'-' if exponent < 0 else '+'}{abs(exponent):02}"


def _placed(whole: str, decimals: str, form: Form) -> str:
    """Returns digits in the places of a form: from the right, and what is left at the first place."""
    point = next((n for n, mark in enumerate(form.pattern) if mark == (False, ".")), None)
    before = form.pattern if point is None else form.pattern[:point]
    after = () if point is None else form.pattern[point + 1 :]
    if point is None:  # literals behind the last place belong after the decimals
        last = max((n for n, (literal, _) in enumerate(before) if not literal), default=-1)
        before, after = before[: last + 1], before[last + 1 :]
    suffix = "".join(text for literal, text in after if literal)
    places = sum(1 for literal, text in before if not literal and text == "0")
    zeros = whole.rjust(places, "0")
    return _digits(zeros, before, thousands=form.thousands) + (f".{decimals}" if decimals else "") + suffix


def _digits(digits: str, marks: tuple[tuple[bool, str], ...], *, thousands: bool) -> str:
    first = next((n for n, (literal, text) in enumerate(marks) if not literal and text != ","), None)
    text, taken = "", 0
    for number in range(len(marks) - 1, -1, -1):
        literal, mark = marks[number]
        if literal:
            text = mark + text
        elif mark != ",":
            rest = len(digits) - taken
            count = rest if number == first else min(1, rest)
            for digit in reversed(digits[rest - count : rest]):
                text = f"{digit}{',' if thousands and taken and taken % 3 == 0 else ''}{text}"
                taken += 1
    return text

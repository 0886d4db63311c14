"""Checks of a sample: what its state, its calls and its end must be. Pure but for those of Python and of judges."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from core.errors import Invalid, NotFound
from core.events import Json, Record, ToolRequested
from core.replay.evaluation.facts import Checked
from core.replay.moments.moment import part
from core.thread.state import ThreadState

COMPLETED = "run.completed"
MOST_CHARACTERS = 100_000
"""Limit of the text that an expression is searched in."""
REASON_CHARACTERS = 300


class Subject(NamedTuple):
    """The subject of checks: the folded state as JSON, the calls with arguments, and the type of the last event."""

    state: Json
    calls: Sequence[tuple[str, Json]]
    end: str


def subject(state: ThreadState, records: Sequence[Record], end: str, files: Sequence[str] = ()) -> Subject:
    """Returns the subject of a sample: the state after it, and the records of its live part."""
    plain = msgspec.to_builtins({**state.values, "messages": list(state.messages), "end": end, "files": list(files)})
    calls = [(event.name, event.args or {}) for r in records if isinstance(event := r.event, ToolRequested)]
    return Subject(plain, calls, end)


class Exact(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The value at a path is this one."""

    exact: str
    equals: Any

    def problem(self, on: Subject) -> str:
        return _unequal(part(on.state, self.exact), self.equals)


class Regex(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An expression is found in the text at a path."""

    regex: str
    match: str

    def problem(self, on: Subject) -> str:
        text = part(on.state, self.regex)
        text = text if isinstance(text, str) else msgspec.json.encode(text).decode()
        if len(text) > MOST_CHARACTERS:
            return f"the text has {len(text)} characters; {MOST_CHARACTERS} are searched at most"
        return "" if re.search(self.match, text) else f"not found in {_short(text)}"


class JsonPath(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A JSON path has a value; with `all` each item of the list there is this one, with `any` one of them."""

    path: str
    all: Any = UNSET
    any: Any = UNSET

    def problem(self, on: Subject) -> str:
        value = part(on.state, self.path)
        if self.all is UNSET and self.any is UNSET:
            return ""
        if not isinstance(value, list) or not value:
            return f"is no list with items: {_short(value)}"
        if self.any is not UNSET and self.any not in value:
            return f"none of {_short(value)}"
        return "" if self.all is UNSET else next((_unequal(v, self.all) for v in value if v != self.all), "")


class Calls(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Tools that must or must never be called; with an expression on their arguments as `name: expression`."""

    must: list[str | dict[str, str]] = []
    never: list[str | dict[str, str]] = []
    max_calls: int | None = None


class Tools(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The tools that the live part called."""

    tools: Calls

    def problem(self, on: Subject) -> str:
        if missing := [rule for rule in self.tools.must if not _called(rule, on)]:
            return f"not called: {_short(missing[0])}"
        if forbidden := [rule for rule in self.tools.never if _called(rule, on)]:
            return f"called: {_short(forbidden[0])}"
        most = self.tools.max_calls
        return "" if most is None or len(on.calls) <= most else f"{len(on.calls)} calls, more than {most}"


class End(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The run ends so. Without such a check it must be completed."""

    end: str

    def problem(self, on: Subject) -> str:
        return _unequal(on.end, self.end)


class Python(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A function of a file beside the suite, as `checks.py:name`.

    Called with the state and the calls, it returns a bool, or the problem as a text.
    """

    python: str

    def place(self) -> tuple[str, str]:
        """Returns the file and the function."""
        file, _, function = self.python.rpartition(":")
        return file, function


class Judge(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A statement that a model judges; the majority of an odd number of votes counts."""

    judge: str
    model: str
    votes: int = 3


Pure = Exact | Regex | JsonPath | Tools | End
Check = Pure | Python | Judge
_TYPES: Mapping[str, type[Check]] = {
    "exact": Exact,
    "regex": Regex,
    "path": JsonPath,
    "tools": Tools,
    "end": End,
    "python": Python,
    "judge": Judge,
}
MOST_VOTES = 9


def parsed(check: Json) -> Check:
    """Returns a check of a suite. Raises `Invalid`."""
    names = [name for name in _TYPES if name in check]
    if len(names) != 1:
        raise Invalid(f"one of {', '.join(_TYPES)} is needed, got {', '.join(map(str, check)) or 'nothing'}")
    try:
        value: Check = msgspec.convert(check, _TYPES[names[0]])
        _validate(value)
    except (msgspec.ValidationError, re.error) as error:
        raise Invalid(f"{names[0]}: {error}") from None
    return value


def _validate(check: Check) -> None:
    match check:
        case Regex(match=expression):
            re.compile(expression)
        case Tools(tools=calls):
            for rule in (*calls.must, *calls.never):
                for expression in rule.values() if isinstance(rule, dict) else ():
                    re.compile(expression)
            if calls == Calls():
                raise Invalid("tools: must, never or max_calls is needed")
        case Python() if not all(check.place()):
            raise Invalid(f"python: FILE:FUNCTION is expected, got {check.python!r}")
        case Judge(votes=votes) if votes % 2 == 0 or not 1 <= votes <= MOST_VOTES:
            raise Invalid(f"judge: votes is an odd number from 1 to {MOST_VOTES}, got {votes}")


def label(check: Check) -> str:
    """Returns the name of a check in results: what the suite says."""
    return msgspec.json.encode(check).decode()[:REASON_CHARACTERS]


def run_check(check: Pure, on: Subject) -> Checked:
    """Checks a sample. Where a path leads to nothing, the check fails."""
    try:
        problem = check.problem(on)
    except NotFound as error:
        problem = str(error)
    return Checked(label(check), "failed" if problem else "passed", problem[:REASON_CHARACTERS])


def _called(rule: str | dict[str, str], on: Subject) -> bool:
    rules: Mapping[str, str | UnsetType] = {rule: UNSET} if isinstance(rule, str) else rule
    return any(
        name == called and (not isinstance(pattern, str) or re.search(pattern, _arguments(args)) is not None)
        for name, pattern in rules.items()
        for called, args in on.calls
    )


def _arguments(args: Json) -> str:
    """Returns the arguments as text: strings as they are, one a line."""
    values = (v if isinstance(v, str) else msgspec.json.encode(v).decode() for v in args.values())
    return "\n".join(values)[:MOST_CHARACTERS]


def _unequal(value: Any, expected: Any) -> str:
    return "" if value == expected else f"{_short(value)} is not {_short(expected)}"


def _short(value: Any) -> str:
    return (value if isinstance(value, str) else msgspec.json.encode(value).decode())[:120]

"""Phrases: an event in people's words, in English and Chinese. Each event type declares one (`Event.phrase`). Pure.

A phrase names the kind of event (“Run failed”) and has a template for what the event says: plain text with

* `{path}`: a field, also of nested objects and of each object in a list (`{plan.timing.at}`, `{models.name}`).
  Lists are joined by commas, objects stand for their keys;
* `{path:filter}`: the field as one of `FILTERS` writes it;
* `<…>`: a part that is left out if one of the fields in it is empty (missing, "", false, [] or {}; 0 is not empty);
* `<condition?…>`: a part that is also left out if the condition does not hold: `field`, `!field`, `field=text` or
  `field!=text`, several joined by `&`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from itertools import zip_longest
from typing import Any, Literal, NamedTuple, get_args

Language = Literal["en", "zh"]
LANGUAGES: tuple[Language, ...] = get_args(Language)
QUOTED = 90
"""Limit of the characters of a quoted text."""
LONGEST = 2_000
"""Limit of the characters of an event's text."""
UNCUT = 1 << 40
"""Limit of texts that are not shortened: those in a pipe."""
SEQUENCE = re.compile(
    r"\x1b(?:"
    r"\[[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor
    r"|[\]PX^_][^\x07\x1b\x9c\n]{0,4096}(?:\x07|\x1b\\|\x9c)"  # OSC, DCS and the like: titles, clipboard, links
    r"|[ -/]*[0-~])"
)
"""A sequence that commands a terminal."""
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""A character that moves a cursor, or disguises a text."""
SUBJECTS = ("command", "path", "pattern", "query", "url", "prompt", "question")
"""Arguments that say what a tool call is about, the most specific first."""


class Phrase(NamedTuple):
    """The words of an event type: the name of its kind, and the templates of what an event says."""

    en: str
    zh: str
    detail: str = ""
    detail_zh: str = ""
    """The template in Chinese, if it differs by more than punctuation."""

    def name(self, language: Language = "en") -> str:
        """Returns the name of the kind of event."""
        return self.zh if language == "zh" else self.en

    def template(self, language: Language = "en") -> str:
        """Returns the template for what the event says."""
        return self.detail if language == "en" else self.detail_zh or _chinese(self.detail)


def detail(template: str, event: Any, limit: int = QUOTED) -> str:
    """Returns what an event says, on one line without control characters. `limit`: of the characters of a quoted text;
    `UNCUT` for no limit at all.
    """
    text = "".join(_written(part, event, limit) for part in _parsed(template))
    return one_line(text, LONGEST if limit < UNCUT else UNCUT)


def _chinese(template: str) -> str:
    """Returns a template without words with the punctuation of Chinese."""
    return template.replace(", ", "，").replace(": ", "：").replace("; ", "；")


def paths(template: str) -> frozenset[str]:
    """Returns the paths of the fields that a template reads. Raises `ValueError` for what is no template."""
    parts = _parsed(template)
    fields = [field for part in parts for field in (*part.fields, *(condition.field for condition in part.conditions))]
    rest = "".join(text for part in parts for text in part.texts)
    if set("{}<>") & set(rest) or not {field.filter for field in fields} <= {"", *FILTERS}:
        raise ValueError(f"not a template of a phrase: {template!r}")
    return frozenset(field.path for field in fields)


# ── templates ────────────────────────────────────────────────────────────────────────────────────────────────────────


class _Field(NamedTuple):
    path: str
    filter: str

    def text(self, event: Any, limit: int) -> str:
        """Returns the field of an event as text; "" if it is empty."""
        value = event
        for name in self.path.split("."):
            value = _get(value, name)
        try:
            return FILTERS[self.filter](value, limit) if self.filter else plain(value)
        except (AttributeError, TypeError, ValueError):  # a value that is none for this filter
            return plain(value)


class _Condition(NamedTuple):
    field: _Field
    sign: str
    """`` (not empty), `!` (empty), `=` or `!=`."""
    text: str

    def holds(self, event: Any) -> bool:
        text = self.field.text(event, QUOTED)
        equal = text == self.text if "=" in self.sign else not text
        return equal if self.sign in ("=", "!") else not equal


class _Part(NamedTuple):
    """A part of a template: texts with fields between them."""

    optional: bool
    conditions: tuple[_Condition, ...]
    texts: tuple[str, ...]
    fields: tuple[_Field, ...]


_PART = re.compile(r"<(?:([^<>?{}\s]+)\?)?([^<>]*)>|[^<>]+|[<>]")
_FIELD = re.compile(r"\{([\w.]+)(?::(\w+))?\}")
_CONDITION = re.compile(r"(!?)([\w.]+)(?::(\w+))?(?:(!?=)(.*))?")


@functools.cache
def _parsed(template: str) -> tuple[_Part, ...]:
    return tuple(_part(match) for match in _PART.finditer(template))


def _part(match: re.Match[str]) -> _Part:
    optional = match[2] is not None
    conditions = tuple(_condition(text) for text in match[1].split("&")) if match[1] else ()
    pieces = _FIELD.split(match[2] if optional else match[0])
    fields = tuple(_Field(path, name or "") for path, name in zip(pieces[1::3], pieces[2::3], strict=True))
    return _Part(optional, conditions, tuple(pieces[0::3]), fields)


def _condition(text: str) -> _Condition:
    match = _CONDITION.fullmatch(text)
    if match is None:
        raise ValueError(f"not a condition of a phrase: {text!r}")
    return _Condition(_Field(match[2], match[3] or ""), match[4] or match[1], match[5] or "")


def _written(part: _Part, event: Any, limit: int) -> str:
    if not all(condition.holds(event) for condition in part.conditions):
        return ""
    texts = [field.text(event, limit) for field in part.fields]
    if part.optional and not all(texts):
        return ""
    return "".join(text for pair in zip_longest(part.texts, texts, fillvalue="") for text in pair)


def _get(value: Any, name: str) -> Any:
    """Returns a field of an object, or of each object in a list; None if there is none."""
    if isinstance(value, Mapping):
        return value.get(name)
    if hasattr(value, "__struct_fields__"):
        return getattr(value, name) if name in value.__struct_fields__ else None
    return [_get(item, name) for item in value] if isinstance(value, list | tuple) else None


# ── fields as text ───────────────────────────────────────────────────────────────────────────────────────────────────


def clean(text: str) -> str:
    """Removes characters that could move the cursor, change the terminal, or disguise the text."""
    return CONTROL.sub("", SEQUENCE.sub("", text))


def one_line(text: str, limit: int) -> str:
    """Returns the cleaned text on one line of at most `limit` characters."""
    short = " ".join(clean(text[: limit * 8]).split())
    return short if len(short) <= limit else short[: limit - 1].rstrip() + "…"


def text_of(content: Any) -> str:
    """Returns the text of a message's content, which is a string or a list of blocks."""
    if isinstance(content, str):
        return content
    blocks = content if isinstance(content, list) else []
    return "".join(b if isinstance(b, str) else str(b.get("text") or "") for b in blocks if isinstance(b, str | dict))


def subject_of(args: Mapping[str, Any], *, described: bool = False) -> str:
    """Returns what a tool call is about: its command, path or query, "" if it has none. `described`: rather the model's
    own description of it.
    """
    names = ("description", *SUBJECTS) if described else SUBJECTS
    return next((value.strip() for name in names if isinstance(value := args.get(name), str) and value.strip()), "")


def about(args: Mapping[str, Any], limit: int) -> str:
    """Returns the subject of a tool call, from its arguments."""
    if subject := subject_of(args, described=True):
        return one_line(subject, limit)
    if isinstance(files := args.get("filepaths"), list):
        return one_line(", ".join(map(str, files)), limit)
    if isinstance(todos := args.get("todos"), list):
        return f"☑ {sum(todo.get('status') == 'completed' for todo in _objects(todos))}/{len(todos)}"
    return one_line(_json(args), limit) if args else ""


def seconds(milliseconds: int) -> str:
    """Returns a duration: `80 ms`, `2.3 s`."""
    tenths = (milliseconds + 50) // 100
    return f"{milliseconds} ms" if milliseconds < 1000 else f"{tenths // 10}.{tenths % 10} s"


def counted(count: int, noun: str) -> str:
    """Returns how many there are of something: `1 run`, `2 failed runs`, `3 entries`."""
    if count == 1:
        return f"1 {noun}"
    return f"{count} {noun.removesuffix('y')}ies" if re.search("[^aeiou]y$", noun) else f"{count} {noun}s"


def quote(value: Any, limit: int = QUOTED) -> str:
    """Returns a text or a message in quotes, shortened; those of a list one after the other. Empty for none."""
    if isinstance(value, list | tuple):
        return "; ".join(filter(None, (quote(item, limit) for item in value)))
    text = text_of(value.get("content")) if isinstance(value, Mapping) else value
    return f"“{one_line(text, limit)}”" if isinstance(text, str) and text.strip() else ""


def plain(value: Any) -> str:
    """Returns a value as text: lists by commas, of objects the keys; empty for None and false."""
    match value:
        case None | False:
            return ""
        case True:
            return "true"
        case float() if value.is_integer():
            return str(int(value))
        case Mapping():
            return ", ".join(map(str, value))
        case list() | tuple():
            return ", ".join(filter(None, map(plain, value)))
    return str(value)


def calls(message: Any, limit: int = QUOTED) -> str:
    """Returns the tool calls that a message requests: `→ bash(ls)`."""
    requests = _objects(_get(message, "tool_calls"))
    return " ".join(
        f"→ {call.get('name') or '?'}({about(_arguments_of(call), _least(50, limit))})" for call in requests
    )


def decisions(values: Any, limit: int = QUOTED) -> str:
    """Returns the decisions of policies on an answer or a call, with their reasons."""
    texts = [[str(_get(decision, name) or "") for name in ("policy", "action", "text")] for decision in values or ()]
    return " ".join(f"⟨{policy} {action}: {one_line(text, limit)}⟩" for policy, action, text in texts)


def _least(most: int, limit: int) -> int:
    return limit if limit >= UNCUT else min(most, limit)


def _json(value: Any) -> str:
    import msgspec  # the help of the command line, which needs this module, does without

    return msgspec.json.encode(value).decode()


def _objects(values: Any) -> list[Mapping[str, Any]]:
    return [value for value in values if isinstance(value, Mapping)] if isinstance(values, list) else []


def _arguments_of(call: Mapping[str, Any]) -> Mapping[str, Any]:
    args = call.get("args")
    return args if isinstance(args, Mapping) else {}


def _arguments(args: Any, limit: int) -> str:
    return about({name: value for name, value in (args or {}).items() if name != "description"}, limit)


def _hosts(hosts: Any, limit: int) -> str:
    return ", ".join(map(_host, hosts or ()))


def _host(access: Any) -> str:
    refused, sent, received = (_get(access, name) for name in ("refused", "sent", "received"))
    result = f"✗ {refused}" if refused else f"↑ {sent or 0} B ↓ {received or 0} B"
    return f"{_get(access, 'host')}:{_get(access, 'port')} ×{_get(access, 'connections')} ({result})"


def _approvals(interrupts: Any, limit: int) -> str:
    """Returns the calls that questions want approved."""
    requests = [call for value in _get(interrupts, "value") or () for call in _approval_of(value)]
    return ", ".join(f"{call.get('name') or '?'} {about(_arguments_of(call), limit)}".rstrip() for call in requests)


def _questions(interrupts: Any, limit: int) -> str:
    """Returns the questions that are not about approvals."""
    others = [value for value in _get(interrupts, "value") or () if not _approval_of(value)]
    return "; ".join(
        quote(value, limit) if isinstance(value, str) else one_line(_json(value), limit) for value in others
    )


def _approval_of(value: Any) -> list[Mapping[str, Any]]:
    """Returns the calls that a question wants approved; none if it is about something else."""
    approval = isinstance(value, Mapping) and value.get("type") == "approval"
    return _objects(value.get("action_requests")) if approval else []


FILTERS: Mapping[str, Callable[[Any, int], str]] = {
    "quote": quote,
    "last": lambda value, limit: quote((value or ())[-2:], limit),
    "short": lambda value, limit: one_line(value or "", _least(60, limit)),
    "json": lambda value, limit: _json(value) if value else "",
    "count": lambda value, limit: str(len(value or ())),
    "next": lambda value, limit: str(value + 1),
    "signed": lambda value, limit: f"{value:+d}",
    "seconds": lambda value, limit: seconds(value),
    "calls": calls,
    "subject": lambda value, limit: about(value or {}, limit),
    "arguments": _arguments,
    "decisions": decisions,
    "hosts": _hosts,
    "approvals": _approvals,
    "questions": _questions,
}
"""Functions that write a field, by name; they return an empty text if there is nothing to say."""

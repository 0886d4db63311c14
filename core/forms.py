"""Forms that third-party programs have people fill in: a flat object of texts, numbers, yes or no, and choices.

The schema is the restricted JSON schema of the Model Context Protocol's elicitation (revision 2025-11-25). It comes
from a stranger: what is not of that shape is refused, and checking takes time in proportion to its length.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from typing import Any, Literal, NamedTuple
from urllib.parse import urlsplit

import msgspec

from core.errors import Invalid
from core.ids import ordinal
from core.patterns import Pattern

MOST_FIELDS = 50
MOST_OPTIONS = 200
MOST_CHARACTERS = 10_000
"""Limit of a text that is filled in."""
MOST_SHOWN = 500
"""Limit of a label or a description, in characters."""
DECLINED = ("decline", "reject", "cancel")
"""Typed answers that decline a form."""
YES = frozenset(
    ("yes", "y", "ok", "okay", "approve", "approved", "ja", "oui", "sí", "👍", "是", "好", "同意", "批准", "确认")
)
NO = frozenset(("no", "n", "reject", "rejected", "deny", "nein", "non", "👎", "否", "不", "拒绝"))
"""What people type in chats to agree to something, and to refuse it."""
_TRUE = ("true", "yes", "y", "1", "on")
_FALSE = ("false", "no", "n", "0", "off")
_EMAIL = re.compile(r"[^@\s]{1,64}@[^@\s]{1,255}")
_LINE = re.compile(r"\s*([^:=]{1,200}?)\s*[:=]\s*(.*?)\s*")

Kind = Literal["text", "integer", "number", "boolean", "choice", "choices"]


class Option(NamedTuple):
    value: str
    label: str


class Field(NamedTuple):
    """A field of a form."""

    name: str
    kind: Kind
    label: str
    required: bool
    options: Sequence[Option]
    schema: Mapping[str, Any]

    @property
    def line(self) -> str:
        """Returns the field on a line, for people."""
        about = str(self.schema.get("description") or "")[:MOST_SHOWN]
        parts = [f"{self.label} ({self._kind})", *([about] if about and about != self.label else [])]
        if self.options:
            parts.append(" | ".join(option.label for option in self.options))
        return ": ".join(" ".join(part.split()) for part in parts)

    @property
    def _kind(self) -> str:
        kinds = {"boolean": "yes or no", "choice": "one of", "choices": "some of"}
        words = [kinds.get(self.kind, self.kind)]
        words += [] if self.required else ["optional"]
        words += [f"default {_short_text(self.schema['default'])}"] if "default" in self.schema else []
        return ", ".join(words)


def fields(form: Mapping[str, Any]) -> list[Field]:
    """Returns the fields of a form. Raises `Invalid` for a schema that is no form."""
    properties = form.get("properties", {})
    if form.get("type") != "object" or not isinstance(properties, Mapping) or len(properties) > MOST_FIELDS:
        raise Invalid(f"form: an object of at most {MOST_FIELDS} fields is expected")
    required = form.get("required") or ()
    if not isinstance(required, Sequence) or not all(name in properties for name in required):
        raise Invalid("form: required: names a field that it does not have")
    return [_field(str(name), schema, name in required) for name, schema in properties.items()]


def valid_content(form: Mapping[str, Any], content: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a form's content, with the defaults of fields that were left out. Raises `Invalid` with the field."""
    known = fields(form)
    if unknown := [name for name in content if name not in {field.name for field in known}]:
        raise Invalid(f"{str(unknown[0])[:80]}: the form has no such field, but {', '.join(f.name for f in known)}")
    filled = {}
    for field in known:
        value = content.get(field.name, field.schema.get("default"))
        if value is not None:
            filled[field.name] = _fitting(field, value)
        elif field.required:
            raise Invalid(f"{field.name}: is required")
    return filled


def value_of(field: Field, text: str) -> Any:
    """Returns the value that a typed text means for a field; None for an empty one. Raises `Invalid`."""
    text = text.strip()
    if not text:
        return None
    match field.kind:
        case "boolean":
            word = text.casefold()
            if word not in (*_TRUE, *_FALSE):
                raise Invalid(f"{field.name}: yes or no is expected")
            return word in _TRUE
        case "integer" | "number":
            return _fitting(field, _number(field, text))
        case "choices":
            return _fitting(field, [_option(field, part.strip()) for part in text.split(",")])
        case "choice":
            return _fitting(field, _option(field, text))
    return _fitting(field, text)


def typed(form: Mapping[str, Any], text: str) -> dict[str, Any] | None:
    """Returns the content that a typed answer means; None if it declines. Raises `Invalid`.

    It is JSON, or has a line `name: value` for each field, or is the value of the only field.
    """
    if text.strip().casefold() in DECLINED:
        return None
    known = fields(form)
    if text.lstrip().startswith("{"):
        try:
            return valid_content(form, msgspec.json.decode(text, type=dict[str, Any]))
        except msgspec.DecodeError as error:
            raise Invalid(f"not a JSON object: {error}") from None
    lines = [match.groups() for line in text.splitlines() if (match := _LINE.fullmatch(line))]
    named = {name.casefold(): value for name, value in lines}
    by_name = {name: field for field in known for name in (field.name.casefold(), field.label.casefold())}
    if named and named.keys() <= by_name.keys():
        values = {by_name[name].name: value_of(by_name[name], value) for name, value in named.items()}
        return valid_content(form, {name: value for name, value in values.items() if value is not None})
    if len(known) == 1:
        return valid_content(form, {known[0].name: value_of(known[0], text)})
    raise Invalid("a line `name: value` for each field is expected")


def described(form: Mapping[str, Any]) -> str:
    """Returns the fields of a form, one a line, and how to answer by a text."""
    known = fields(form)
    how = "Answer with a line `name: value` for each field" if len(known) > 1 else "Answer with the value"
    return "\n".join([*(f"- {field.line}" for field in known), f"{how}, or `decline`."])


# ── fields ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _field(name: str, schema: Any, required: bool) -> Field:
    if not isinstance(schema, Mapping) or not name:
        raise Invalid(f"form: {name[:80]}: a schema is expected")
    kind, options = _kind(name, schema)
    label = str(schema.get("title") or name)[:MOST_SHOWN]
    field = Field(name, kind, label, required, options, schema)
    if schema.get("default") is not None:
        _fitting(field, schema["default"])
    return field


def _kind(name: str, schema: Mapping[str, Any]) -> tuple[Kind, Sequence[Option]]:
    kind = schema.get("type")
    if kind == "array":
        items = schema.get("items")
        if isinstance(items, Mapping) and (options := _options(name, items)):
            return "choices", options
    elif kind == "string":
        if options := _options(name, schema):
            return "choice", options
        if isinstance(pattern := schema.get("pattern"), str):
            Pattern(pattern)
        return "text", ()
    elif kind in ("integer", "number", "boolean"):
        return kind, ()
    raise Invalid(f"form: {name[:80]}: a text, number, boolean or choice is expected")


def _options(name: str, schema: Mapping[str, Any]) -> Sequence[Option]:
    titled = schema.get("oneOf") or schema.get("anyOf")
    if isinstance(titled, list):
        pairs = [(one.get("const"), one.get("title")) for one in titled if isinstance(one, Mapping)]
    else:
        values, names = schema.get("enum") or [], schema.get("enumNames") or []
        if not isinstance(values, list) or not isinstance(names, list):
            raise Invalid(f"form: {name[:80]}: enum: a list is expected")
        pairs = [(value, names[place] if place < len(names) else value) for place, value in enumerate(values)]
    if len(pairs) > MOST_OPTIONS:
        raise Invalid(f"form: {name[:80]}: has more than {MOST_OPTIONS} options")
    return [Option(str(value), str(label or value)[:MOST_SHOWN]) for value, label in pairs]


def _option(field: Field, text: str) -> str:
    """Returns the value of an option by its value, its label or its number."""
    for option in field.options:
        if text.casefold() in (option.value.casefold(), option.label.casefold()):
            return option.value
    if number := ordinal(text, len(field.options)):
        return field.options[number - 1].value
    return text


def _number(field: Field, text: str) -> int | float:
    try:
        return int(text) if field.kind == "integer" else float(text)
    except ValueError:
        raise Invalid(f"{field.name}: {text[:40]!r} is no {field.kind}") from None


# ── values ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _fitting(field: Field, value: Any) -> Any:
    """Returns a value that fits its field. Raises `Invalid`."""
    values = [option.value for option in field.options]
    match field.kind, value:
        case "boolean", bool():
            return value
        case "integer", int() if not isinstance(value, bool):
            return _between(field, value)
        case "integer", float() if value.is_integer():
            return _between(field, int(value))
        case "number", int() | float() if not isinstance(value, bool):
            return _between(field, value)
        case "choice", str() if value in values:
            return value
        case "choices", list() if all(item in values for item in value):
            return _counted(field, value, "Items", "options")
        case "text", str():
            return _text(field, value)
    expected = f"one of {', '.join(values)}" if values else field._kind
    raise Invalid(f"{field.name}: {expected[:MOST_SHOWN]} is expected")


def _text(field: Field, value: str) -> str:
    if len(value) > MOST_CHARACTERS:
        raise Invalid(f"{field.name}: has more than {MOST_CHARACTERS} characters")
    _counted(field, value, "Length", "characters")
    pattern = field.schema.get("pattern")
    if isinstance(pattern, str) and not Pattern(pattern).found_in(value):
        raise Invalid(f"{field.name}: does not match {pattern[:80]}")
    kind = field.schema.get("format")
    if isinstance(kind, str) and not _is_formatted(kind, value):
        raise Invalid(f"{field.name}: is no {kind[:40]}")
    return value


def _is_formatted(kind: str, value: str) -> bool:
    try:
        match kind:
            case "email":
                return _EMAIL.fullmatch(value) is not None
            case "uri":
                return bool(urlsplit(value).scheme)
            case "date":
                return bool(date.fromisoformat(value))
            case "date-time":
                return bool(datetime.fromisoformat(value))
    except ValueError:
        return False
    return True


def _between(field: Field, value: int | float) -> int | float:
    least, most = (_limit(field, key) for key in ("minimum", "maximum"))
    if value != value or (least is not None and value < least) or (most is not None and value > most):
        raise Invalid(f"{field.name}: must be between {_short_text(least)} and {_short_text(most)}")
    return value


def _counted(field: Field, value: Any, what: str, words: str) -> Any:
    least, most = (_limit(field, key + what) for key in ("min", "max"))
    if (least is not None and len(value) < least) or (most is not None and len(value) > most):
        raise Invalid(f"{field.name}: must have {_short_text(least)} to {_short_text(most)} {words}")
    return value


def _limit(field: Field, key: str) -> float | None:
    limit = field.schema.get(key)
    return limit if isinstance(limit, int | float) and not isinstance(limit, bool) else None


def _short_text(value: Any) -> str:
    return "…" if value is None else str(value)[:80]

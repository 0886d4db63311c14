"""JSON in and out. What is wrong with a body is named with its place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
from aiohttp import web

from core.errors import Invalid
from core.nesting import MOST_LEVELS, too_deep

T = TypeVar("T")
_decoders: dict[Any, msgspec.json.Decoder[Any]] = {}


def decode(raw: bytes, kind: type[T]) -> T:
    """JSON as a struct; unknown fields are ignored. Raises `Invalid`."""
    if too_deep(raw):
        raise Invalid(f"malformed JSON: nested too deeply, more than {MOST_LEVELS} levels")
    try:
        value: T = _decoder(kind).decode(raw)
        return value
    except msgspec.ValidationError as error:
        raise _refusal(error) from None
    except msgspec.DecodeError as error:
        raise Invalid(f"malformed JSON: {_placed(raw, str(error))}") from None
    except UnicodeDecodeError as error:
        raise Invalid(f"malformed JSON: not UTF-8 {_place(raw, error.start)}") from None


def convert(value: Any, kind: type[T]) -> T:
    """A JSON value as a struct. Raises `Invalid`."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise _refusal(error) from None


def _refusal(error: msgspec.ValidationError) -> Invalid:
    return Invalid(str(error).replace("`", ""))


def check(values: Mapping[str, Any], kinds: Mapping[str, Any], where: str) -> None:
    """Checks the fields of an object that have a type. Raises `Invalid`, naming the place below `where`."""
    for name in kinds.keys() & values.keys():
        try:
            msgspec.convert(values[name], kinds[name])
        except msgspec.ValidationError as error:
            reason, _, place = str(error).replace("`", "").partition(" - at $")
            raise Invalid(f"{where}.{name}{place}: {reason[:1].lower()}{reason[1:]}") from None


def _decoder(kind: type[T]) -> msgspec.json.Decoder[T]:
    return _decoders.get(kind) or _decoders.setdefault(kind, msgspec.json.Decoder(kind))


def _placed(raw: bytes, text: str) -> str:
    """msgspec says `… (byte 12)`, or that the input ended too early."""
    reason, _, place = text.removeprefix("JSON is malformed: ").partition(" (byte ")
    at = int(place.rstrip(")")) if place else len(raw)
    return f"{reason[:1].lower()}{reason[1:]} {_place(raw, at)}"


def _place(raw: bytes, at: int) -> str:
    line = raw.count(b"\n", 0, at) + 1
    column = at - (raw.rfind(b"\n", 0, at) + 1) + 1
    return f"at line {line}, column {column}"


def plain(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    """A JSON answer."""
    body = msgspec.json.encode(value)
    return web.Response(status=status, body=body, content_type="application/json", headers=headers)

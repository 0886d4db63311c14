"""Reading requests: bodies and query strings. What is wrong is named with its place."""

from __future__ import annotations

from typing import Any, Literal, TypeVar

import msgspec
from aiohttp import web

from core.errors import Invalid

T = TypeVar("T")
_decoders: dict[Any, msgspec.json.Decoder[Any]] = {}


async def body(request: web.Request, kind: type[T]) -> T:
    """The JSON body as a struct; an empty one counts as `{}`. Unknown fields are ignored. Raises `Invalid`."""
    return decode(await request.read() or b"{}", kind)


def decode(raw: bytes, kind: type[T]) -> T:
    try:
        found: T = _decoder(kind).decode(raw)
        return found
    except msgspec.ValidationError as error:
        raise Invalid(str(error).replace("`", "")) from None
    except msgspec.DecodeError as error:
        raise Invalid(f"malformed JSON: {_placed(raw, str(error))}") from None
    except UnicodeDecodeError as error:
        raise Invalid(f"malformed JSON: not UTF-8 {_place(raw, error.start)}") from None
    except RecursionError:
        raise Invalid("malformed JSON: nested too deeply") from None


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


def number(request: web.Request, name: str, default: int, *, least: int = 0, most: int = 2**63 - 1) -> int:
    """An integer of the query string."""
    text = request.query.get(name)
    return default if text is None else within(name, text, least, most)


def within(name: str, value: int | str, least: int, most: int) -> int:
    """The value as an integer in its limits. Raises `Invalid`."""
    try:
        found = int(value)
    except ValueError:
        raise Invalid(f"{name}: expected an integer, got {str(value)[:40]!r}") from None
    if not least <= found <= most:
        raise Invalid(f"{name}: must be from {least} to {most}, got {found}")
    return found


def flag(request: web.Request, name: str) -> bool:
    """A boolean of the query string: Python's clients send `true`, JavaScript's `1`."""
    match request.query.get(name, "").lower():
        case "1" | "true" | "yes" | "on":
            return True
        case "" | "0" | "false" | "no" | "off":
            return False
        case other:
            raise Invalid(f"{name}: expected a boolean, got {other[:40]!r}")


def names(request: web.Request, name: str) -> list[str]:
    """A list of the query string: repeated keys, one JSON list, or a single value."""
    found: list[str] = []
    for text in request.query.getall(name, []):
        found += decode(text.encode(), list[str]) if text.startswith("[") else [text]
    return [name for name in found if name]


def action(request: web.Request) -> Literal["interrupt", "rollback"]:
    match request.query.get("action") or "interrupt":
        case "interrupt":
            return "interrupt"
        case "rollback":
            return "rollback"
        case other:
            raise Invalid(f"action: interrupt or rollback, got {other[:40]!r}")


def plain(value: Any) -> web.Response:
    """A JSON answer."""
    return web.Response(body=msgspec.json.encode(value), content_type="application/json")

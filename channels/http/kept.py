"""What handlers keep in memory between requests; and what may be kept in a log at all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

import msgspec
from aiohttp import web

from channels.http import live as alive
from channels.http.live import Live, Services
from core.errors import Invalid

T = TypeVar("T")
MOST_DEPTH = 64
MOST_BYTES = 256 * 1024


class Kept(Generic[T]):
    """Something made of the services when it is first asked for."""

    def __init__(self, make: Callable[[Services], T]) -> None:
        self._make = make
        self._made: WeakKeyDictionary[Live, T] = WeakKeyDictionary()

    def of(self, request: web.Request) -> T:
        """That of the request's application."""
        live = alive.of(request)
        found = self._made.get(live)
        if found is None:
            found = self._made[live] = self._make(live.services)
        return found


def storable(value: Any, where: str, most_bytes: int = MOST_BYTES) -> None:
    """Raises `Invalid` if a JSON value is too deep or too big to be kept."""
    level, depth = [value], 0
    while level := [inner for outer in level for inner in _inside(outer)]:
        depth += 1
        if depth > MOST_DEPTH:
            raise Invalid(f"{where}: nested more than {MOST_DEPTH} deep")
    if (size := len(msgspec.json.encode(value))) > most_bytes:
        raise Invalid(f"{where}: at most {most_bytes} bytes as JSON, got {size}")


def _inside(value: Any) -> list[Any]:
    match value:
        case dict():
            return list(value.values())
        case list():
            return value
    return []

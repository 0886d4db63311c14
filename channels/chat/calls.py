"""Certainty after a call over HTTP: it did not leave, it was refused, or nobody knows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from time import monotonic
from typing import Any

import aiohttp

from core import reasons
from core.chat.port import FateUnknown, RateLimited
from core.errors import Unavailable

RETRY_SECONDS = 30.0
"""Pause after a refusal that names none."""
LONGEST_WAIT = 3600.0
"""Longest pause that a platform is granted, in seconds: one that names more would silence an account for good."""
_LOST: tuple[type[Exception], ...] = (aiohttp.ClientError, TimeoutError, OSError)
_NOT_SENT = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, aiohttp.InvalidURL)


def open_session(**options: Any) -> aiohttp.ClientSession:
    """Opens a session that makes no call again by itself: aiohttp repeats a PUT whose answer was lost."""
    session = aiohttp.ClientSession(**options)
    session._retry_connection = False
    return session


@contextmanager
def certainty(what: str, *, effect: bool = True) -> Iterator[None]:
    """Turns failures of a call into `Unavailable`, if it has not left or may be made again, and `FateUnknown`.
    `effect`: people see it. The text has no address: those may hold tokens."""
    try:
        yield
    except _NOT_SENT as error:
        raise Unavailable(f"{what}: no connection: {reasons.lost(error)}") from None
    except _LOST as error:
        raise lost(f"{what}: no answer: {reasons.lost(error)}", effect=effect) from None


def lost(text: str, *, effect: bool) -> Unavailable:
    """Returns the error of a call that left without an answer."""
    return FateUnknown(text) if effect else Unavailable(text)


def retry_after(headers: Mapping[str, str], default: float) -> float:
    """Returns the seconds for which a refused call is to wait (`Retry-After`)."""
    return pause_of(headers.get("Retry-After"), default)


def pause_of(value: object, default: float) -> float:
    """Returns a pause that a platform names, in seconds: at most `LONGEST_WAIT`. The default if it names none."""
    try:
        seconds = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return default
    return min(seconds, LONGEST_WAIT) if seconds > 0 else 0.0


class Waits:
    """The times until which a platform has asked to wait, by what they limit."""

    def __init__(self) -> None:
        self._until: dict[object, float] = {}

    def check(self, limited: object, what: str) -> None:
        """Raises `RateLimited` if it is to wait still."""
        if (seconds := self.rest(limited)) > 0:
            raise RateLimited(f"{what}: the platform has asked to wait", seconds)

    def rest(self, limited: object) -> float:
        """Returns the seconds to wait."""
        return max(0.0, self._until.get(limited, 0.0) - monotonic())

    def note(self, limited: object, seconds: float) -> None:
        now = monotonic()
        self._until = {key: until for key, until in self._until.items() if until > now}
        self._until[limited] = now + seconds

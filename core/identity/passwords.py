"""Passwords: their strength, and their hashes (argon2id, computed in threads, `AT_A_TIME` concurrently)."""

from __future__ import annotations

import functools
import re
import secrets
from collections.abc import Callable
from typing import TypeVar

import anyio
import anyio.to_thread
from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from core.errors import Invalid, Unavailable

T = TypeVar("T")

LEAST, MOST = 8, 1024
"""Length of a password in characters. A check costs 64 MiB and some 50 ms, whatever the length."""
AT_A_TIME = 4
"""Hashes computed concurrently in a process, so that a flood of sign-ins takes neither the memory nor all threads."""
WAIT_SECONDS = 10.0

LEAST_SCORE = 3
"""Least score of zxcvbn, which has 0 to 4: below it, 100 million guesses find the password."""
EXAMINED = 72
"""Characters at the beginning that are examined; what follows makes a password only stronger."""
ABOUT_US = ("sika", "deerflow", "admin", "administrator")


class Passwords:
    """Hashes and verifies passwords. One per process."""

    def __init__(self) -> None:
        self._hasher = PasswordHasher()
        self._limiter = anyio.CapacityLimiter(AT_A_TIME)

    async def hash(self, password: str, *about: str) -> str:
        """Returns the hash. Raises `Invalid` if the password is too weak, `Unavailable` if too many are in work."""
        await self._thread(lambda: strong(password, *about))
        return await self._thread(lambda: self._hasher.hash(password))

    async def verify(self, password_hash: str | None, password: str) -> bool:
        """True if it is the password. Takes as long without a hash, which hides whether there is an account."""
        return await self._thread(lambda: self._matches(password_hash, password[: MOST + 1]))

    def _matches(self, password_hash: str | None, password: str) -> bool:
        placeholder = self._placeholder  # in any case: computing it takes time, too
        try:
            return self._hasher.verify(password_hash or placeholder, password) and password_hash is not None
        except (VerificationError, InvalidHashError):
            return False

    @functools.cached_property
    def _placeholder(self) -> str:
        return self._hasher.hash(secrets.token_urlsafe(32))

    async def _thread(self, work: Callable[[], T]) -> T:
        with anyio.move_on_after(WAIT_SECONDS):
            return await anyio.to_thread.run_sync(work, limiter=self._limiter)
        raise Unavailable("too many people sign in at the moment; try again")


def strong(password: str, *about: str) -> None:
    """Raises `Invalid` for a weak password, with the reason and without the password. `about`: words of the account, as
    its address. Takes some milliseconds, the first call half a second.
    """
    if not LEAST <= len(password) <= MOST:
        raise Invalid(f"password: must have {LEAST} to {MOST} characters")
    from zxcvbn import zxcvbn  # a megabyte of words

    words = [*ABOUT_US, *(word for text in about for word in (text, *re.split(r"[^\w]+", text)))]
    if zxcvbn(password[:EXAMINED], user_inputs=words)["score"] < LEAST_SCORE:
        raise Invalid("password: everybody would try this one; choose another")


def generate() -> str:
    """Returns a temporary password: about 107 bits."""
    return secrets.token_urlsafe(16)[:18]

"""Passwords: their strength, and their hashes (argon2id, computed in threads, `AT_A_TIME` concurrently)."""

from __future__ import annotations

import functools
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

_COMMON = frozenset(
    (
        "password", "password1", "password12", "password123", "password1234", "passw0rd", "p@ssw0rd", "p@ssword",
        "12345678", "123456789", "1234567890", "12345678910", "87654321", "11111111", "00000000", "88888888",
        "123123123", "12341234", "11223344", "1q2w3e4r", "1q2w3e4r5t", "1qaz2wsx", "qwertyui", "qwertyuiop",
        "qwerty123", "qwerty12", "asdfghjkl", "asdfasdf", "zxcvbnm1", "abcd1234", "abc12345", "a1b2c3d4", "aa123456",
        "iloveyou", "sunshine", "princess", "football", "baseball", "superman", "starwars", "trustno1", "whatever",
        "welcome1", "welcome123", "letmein1", "letmein123", "admin123", "admin1234", "administrator", "changeme",
        "changeme1", "changeme123", "computer", "internet", "michelle", "jennifer", "deerflow", "deerflow123",
        "sika1234", "test1234", "testtest", "testing123", "secret123", "default1", "qazwsxedc", "passwort",
    )
)  # fmt: skip


class Passwords:
    """Hashes and verifies passwords. One per process."""

    def __init__(self) -> None:
        self._hasher = PasswordHasher()
        self._limiter = anyio.CapacityLimiter(AT_A_TIME)

    async def hash(self, password: str) -> str:
        """Returns the hash. Raises `Invalid` if the password is too weak, `Unavailable` if too many are in work."""
        strong(password)
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


def strong(password: str) -> None:
    """Raises `Invalid` for a weak password, with the reason and without the password."""
    if not LEAST <= len(password) <= MOST:
        raise Invalid(f"password: must have {LEAST} to {MOST} characters")
    if password.lower() in _COMMON or len(set(password)) == 1:
        raise Invalid("password: everybody would try this one; choose another")


def generate() -> str:
    """Returns a temporary password: about 107 bits."""
    return secrets.token_urlsafe(16)[:18]

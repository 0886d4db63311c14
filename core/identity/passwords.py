"""Passwords: which are good enough, and their hashes (argon2id, made and checked in threads, a few at a time)."""

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
"""Characters of a password. Every one costs the same 64 MiB and some 50 ms to check, whatever its length."""
AT_A_TIME = 4
"""Hashes computed at a time in a process, so that a flood of sign-ins costs neither the memory nor all threads."""
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
    """One per process."""

    def __init__(self) -> None:
        self._hasher = PasswordHasher()
        self._room = anyio.CapacityLimiter(AT_A_TIME)

    async def hash(self, password: str) -> str:
        """Raises `Invalid` if it is too weak, `Unavailable` if too many are being computed."""
        strong(password)
        return await self._thread(lambda: self._hasher.hash(password))

    async def verify(self, hashed: str | None, password: str) -> bool:
        """Whether it is the password. Without a hash it takes as long, so that nobody learns who has an account."""
        return await self._thread(lambda: self._matches(hashed, password[: MOST + 1]))

    def _matches(self, hashed: str | None, password: str) -> bool:
        nobodys = self._nobodys  # in any case: making it takes time, too
        try:
            return self._hasher.verify(hashed or nobodys, password) and hashed is not None
        except (VerificationError, InvalidHashError):
            return False

    @functools.cached_property
    def _nobodys(self) -> str:
        return self._hasher.hash(secrets.token_urlsafe(32))

    async def _thread(self, work: Callable[[], T]) -> T:
        with anyio.move_on_after(WAIT_SECONDS):
            return await anyio.to_thread.run_sync(work, limiter=self._room)
        raise Unavailable("too many people sign in at the moment; try again")


def strong(password: str) -> None:
    """Raises `Invalid`, naming what is missing and never the password."""
    if not LEAST <= len(password) <= MOST:
        raise Invalid(f"password: must have {LEAST} to {MOST} characters")
    if password.lower() in _COMMON or len(set(password)) == 1:
        raise Invalid("password: everybody would try this one; choose another")


def generate() -> str:
    """A password for somebody who will change it: about 107 bits."""
    return secrets.token_urlsafe(16)[:18]

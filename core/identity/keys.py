"""API keys as people see them: `sk-<public id>-<256 random bits>`. Of the random part only a hash is kept."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from typing import NamedTuple

from core.config.settings import Secret

PREFIX = "sk-"
_KEY = re.compile(r"sk-([0-9a-f]{16})-([A-Za-z0-9_-]{43})")


class Presented(NamedTuple):
    """What somebody sent as a key."""

    id: str
    secret: Secret

    def matches(self, digest: str) -> bool:
        """Whether it is the key of this digest, in constant time."""
        return hmac.compare_digest(_digest(self.secret.reveal()), digest)


def make() -> tuple[str, str, Secret]:
    """A new key: its id, its digest, and the key itself."""
    identity, secret = secrets.token_hex(8), secrets.token_urlsafe(32)
    return identity, _digest(secret), Secret(f"sk-{identity}-{secret}")


def parse(text: str) -> Presented | None:
    """None if it is no key of ours."""
    found = _KEY.fullmatch(text)
    return Presented(found[1], Secret(found[2])) if found else None


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()

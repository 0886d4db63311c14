"""The one who asks, as every way in establishes it."""

from __future__ import annotations

from typing import Literal

import msgspec

Role = Literal["admin", "user", "internal"]


class Principal(msgspec.Struct, frozen=True):
    """Who asks. `user` owns what is made; `scopes` limits a key (None: everything the role may do)."""

    user: str
    role: Role = "user"
    scopes: frozenset[str] | None = None
    key: str | None = None
    """Id of the API key that was used."""

    def may(self, scope: str) -> bool:
        """Whether this needs no more than what was granted. `threads:read` is granted by itself and by `threads`."""
        return not scope or self.scopes is None or scope in self.scopes or scope.partition(":")[0] in self.scopes


LOCAL = Principal("default", "admin")
"""Whoever reaches a server without accounts: it listens on loopback only."""

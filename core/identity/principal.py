"""The principal of a request, as every kind of authentication establishes it."""

from __future__ import annotations

from typing import Literal

import msgspec

from core.runs.share import NOBODY

Role = Literal["admin", "user", "internal"]


class Principal(msgspec.Struct, frozen=True):
    """The caller. `user` owns the things it creates; `scopes` limits a key (None: all permissions of the role)."""

    user: str
    role: Role = "user"
    scopes: frozenset[str] | None = None
    key: str | None = None
    """Id of the API key that was used."""

    @property
    def is_admin(self) -> bool:
        """True for an administrator, but by a key only if it was granted `admin`."""
        return self.role == "admin" and self.may("admin")

    def may(self, scope: str) -> bool:
        """True if the scope is granted. `threads:read` is granted by itself, by `threads`, and by `threads:write`: the
        answers to writing have what is read.
        """
        resource, _, action = scope.partition(":")
        granting = {scope, resource, *([f"{resource}:write"] if action == "read" else [])}
        return not scope or self.scopes is None or bool(granting & self.scopes)


LOCAL = Principal(NOBODY, "admin")
"""The principal of all requests to a server without accounts, which listens on loopback only."""

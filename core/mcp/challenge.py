"""The header `WWW-Authenticate` of an MCP server."""

from __future__ import annotations

import re

INSUFFICIENT = "insufficient_scope"
"""Error of a token that is valid and lacks scopes (RFC 6750 §3.1)."""


def challenge_of(header: str, field: str) -> str | None:
    """Returns a parameter of `WWW-Authenticate`."""
    match = re.search(rf'(?:^|[\s,]){field}=(?:"([^"]*)"|([^\s,]+))', header)
    return (match[1] or match[2]) if match else None


def lacking(reason: str) -> str | None:
    """Returns the scopes that the text of a session's end says are missing; None if that is not its reason."""
    _, separator, scope = reason.partition(f"\n{INSUFFICIENT}: ")
    return scope.partition("\n")[0].strip()[:1000] if separator else None

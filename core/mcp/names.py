"""Names of tools of MCP servers for models, which take letters, digits, `_` and `-`, at most 64."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Mapping

MOST = 64
_ODD = re.compile(r"[^A-Za-z0-9_-]")


def prefix_of(server: str) -> str:
    """Returns the beginning of the names of a server's tools."""
    return f"{_ODD.sub('_', server)}_"


def name_of(server: str, tool: str, taken: Collection[str] = ()) -> str:
    """Returns the name of a server's tool. A name that is changed, or `taken`, ends with a hash of the original."""
    plain = f"{server}_{tool}"
    name = _ODD.sub("_", plain)
    if name == plain and len(name) <= MOST and name not in taken:
        return name
    digest = hashlib.blake2b(f"{server}\0{tool}".encode(), digest_size=4).hexdigest()
    return f"{name[: MOST - 9]}_{digest}"


def names_of(tools: Iterable[tuple[str, str]], taken: Collection[str]) -> Mapping[str, tuple[str, str]]:
    """Returns the servers and tools by their names, in the order of the tools."""
    names: dict[str, tuple[str, str]] = {}
    for server, tool in tools:
        names.setdefault(name_of(server, tool, {*taken, *names} if taken or names else ()), (server, tool))
    return names

"""The tools of a server as somebody has seen them, and which of them are described otherwise since.

A server's operator may change what a tool says, or takes, after people have looked at it: a model then follows a text
that nobody has read. So the first list of each configuration of a server counts as seen, and each later one is held
against it until an administrator accepts it. Work goes on meanwhile: most changes are new versions of a server.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from core.ports.mcp_frames import Offer


@dataclass(frozen=True, slots=True)
class Seen:
    """What was seen of the tools of a configured server."""

    config: str
    versions: Mapping[str, str] = field(default_factory=dict)
    """By tool: the `version` that was seen first, or accepted."""
    changed: Sequence[str] = ()
    """Tools of the newest list that are described otherwise, or were not in the list that was seen."""

    def after(self, tools: Iterable[Offer]) -> Seen:
        """Returns the same after a newer list."""
        return replace(
            self, changed=[name for name, text in versions(tools).items() if self.versions.get(name) != text]
        )


def first(config: str, tools: Iterable[Offer]) -> Seen:
    """Returns what was seen with a list that is not held against another one."""
    return Seen(config, versions(tools))


def versions(tools: Iterable[Offer]) -> Mapping[str, str]:
    """Returns the version of each tool by its name."""
    return {tool.name: version(tool.description, {"effect": tool.effect, **tool.schema}) for tool in tools}


def version(description: str, schema: Mapping[str, Any]) -> str:
    """Returns a hash of what a model gets of a tool. Neither white space nor the order of keys counts."""
    listed = msgspec.json.encode([_plain(description), _plain(schema)], order="deterministic")
    return hashlib.sha256(listed).hexdigest()[:16]


def _plain(value: Any) -> Any:
    match value:
        case str():
            return " ".join(value.split())
        case Mapping():
            return {str(key): _plain(part) for key, part in value.items()}
        case list() | tuple():
            return [_plain(part) for part in value]
    return value

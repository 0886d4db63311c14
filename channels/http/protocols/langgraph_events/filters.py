"""A client's subscription to a thread: channels, namespaces, depth, and the position to begin at."""

from __future__ import annotations

import msgspec

from channels.http.protocols.langgraph_events.wire import CHANNELS, Namespace
from channels.http.server.errors import BadRequest
from core.errors import Invalid

PRESENT = frozenset({"lifecycle", "input"})
MOST = 100
"""Channels, and namespaces, of one subscription."""


class SubscribeParams(msgspec.Struct, kw_only=True):
    """A subscription as clients send it."""

    channels: list[str] = []
    """`values`, `updates`, `checkpoints`, `messages`, `tools`, `custom`, `custom:<name>`, `lifecycle`, `input`,
    `tasks`; at least one.
    """
    namespaces: list[list[str]] | None = None
    """Prefixes; a segment without `:` matches whatever comes after one. Default: everything."""
    depth: int | None = None
    """Limit of the segments below a prefix; default: none."""
    since: int | None = None
    """The greatest `seq` that was seen; default: from the beginning."""
    since_event_id: str | None = None
    """The same by the `event_id` that was seen last. One that is not known here: from the beginning."""


class Filter:
    """A subscription, checked."""

    def __init__(self, wanted: SubscribeParams) -> None:
        """Raises `BadRequest`, `Invalid`."""
        if not wanted.channels:
            raise BadRequest("channels: expected at least one")
        for channel in wanted.channels:
            if channel not in CHANNELS and not (channel.startswith("custom:") and channel != "custom:"):
                raise BadRequest(f"channels: one of {', '.join(CHANNELS)}, custom:<name>, got {channel[:40]!r}")
        if max(len(wanted.channels), len(wanted.namespaces or ())) > MOST:
            raise Invalid(f"at most {MOST} channels and {MOST} namespaces")
        for name, value in (("depth", wanted.depth), ("since", wanted.since)):
            if value is not None and value < 0:
                raise Invalid(f"{name}: must not be negative, got {value}")
        self.channels = frozenset(wanted.channels)
        self.since = wanted.since
        self.since_event_id = wanted.since_event_id if wanted.since is None else None
        self._prefixes = [tuple(prefix) for prefix in wanted.namespaces or ()]
        self._depth = wanted.depth

    @property
    def present(self) -> bool:
        """Tells whether it asks how the thread stands and not what happened: see `feed`."""
        return self.since is None and self.since_event_id is None and self.channels == PRESENT

    def wants(self, channel: str, namespace: Namespace) -> bool:
        if channel not in self.channels and not (channel.startswith("custom:") and "custom" in self.channels):
            return False
        return not self._prefixes or any(self._covers(prefix, namespace) for prefix in self._prefixes)

    def _covers(self, prefix: Namespace, namespace: Namespace) -> bool:
        below = len(namespace) - len(prefix)
        if below < 0 or (self._depth is not None and below > self._depth):
            return False
        return all(
            there == here or (":" not in here and there.partition(":")[0] == here)
            for here, there in zip(prefix, namespace, strict=False)
        )

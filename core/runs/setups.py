"""Stores what models get besides the conversation (`core.runs.prompts`)."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterable, Mapping, Sequence
from contextlib import suppress

from cachetools import LRUCache

from core.config.redaction import redactor
from core.errors import Conflict
from core.events import Aggregate, Event, Record, SetupErased, SetupRecorded
from core.log.repository import Repository
from core.log.store import EventLog
from core.runs.prompts import OF_THREAD, SETUP, Part

KNOWN = 4096
"""Limit of the hashes of stored contents that a process remembers; a forgotten one costs one refused append."""
SETUPS = 256
"""Limit of the setups whose hashes a process remembers."""
KEPT_BYTES = 4 << 20
"""Limit of the events whose hashes by thread are kept in memory."""

Hashes = frozenset[str]


def content_hash(content: str) -> str:
    """Returns the SHA-256 by which a content is stored, in hexadecimal digits."""
    return hashlib.sha256(redactor.known(content).encode()).hexdigest()


def hashes(records: Iterable[Record], state: Hashes = frozenset()) -> Hashes:
    """Folds the log of a thread's contents to the hashes of those that it holds."""
    for event in (record.event for record in records):
        match event:
            case SetupRecorded(content=content):
                state |= {hashlib.sha256(content.encode()).hexdigest()}
            case SetupErased():
                state = frozenset()
    return state


def of_threads(log: EventLog) -> Repository[Hashes]:
    """Returns the contents of threads."""
    return Repository(log, OF_THREAD, hashes, frozenset(), cache_bytes=KEPT_BYTES)


async def erase(contents: Repository[Hashes], thread: str, *, actor: str, seconds: float) -> bool:
    """Erases the contents of a thread. May be repeated. Returns False if `seconds` passed before the end.

    Raises `Unavailable`.
    """

    def decide(state: Hashes) -> Sequence[Event]:
        return [SetupErased()] if state else []

    await contents.decide(thread, decide, actor=actor)
    return await contents.erase(thread, seconds=seconds)


class Setups:
    """Stores contents once. A setup whose hashes are known costs no append, no read and no hashing."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._of_threads = of_threads(log)
        self._stored: LRUCache[str, None] = LRUCache(KNOWN)
        self._setups: LRUCache[Hashable, tuple[dict[str, str], object]] = LRUCache(SETUPS)

    def known(self, key: Hashable) -> dict[str, str] | None:
        """Returns the hashes of a setup that this process has stored, by part."""
        hit = self._setups.get(key)
        return hit[0] if hit else None

    async def store(self, key: Hashable, contents: Mapping[Part, str], keep: object, actor: str) -> dict[str, str]:
        """Stores contents for all, and returns their hashes. `keep` holds what the key names by identity.

        Raises `Unavailable`.
        """
        by_part: dict[str, str] = {part: content_hash(content) for part, content in contents.items()}
        for part, content in contents.items():
            await self._store(part, content, by_part[part], actor)
        self._setups[key] = by_part, keep
        return by_part

    async def store_for(self, thread: str, part: Part, content: str, actor: str) -> str:
        """Stores a content that holds something of a thread's user, and returns its hash. Raises `Unavailable`."""
        event = SetupRecorded(part=part, content=redactor.known(content))
        sha256 = hashlib.sha256(event.content.encode()).hexdigest()

        def decide(state: Hashes) -> Sequence[Event]:
            return [] if sha256 in state else [event]

        await self._of_threads.decide(thread, decide, actor=actor)
        return sha256

    async def _store(self, part: Part, content: str, sha256: str, actor: str) -> None:
        if sha256 in self._stored:
            return
        event = SetupRecorded(part=part, content=redactor.known(content))
        with suppress(Conflict):  # it is there: another process was first
            await self._log.append(Aggregate(SETUP, sha256), [event], expected=0, actor=actor)
        self._stored[sha256] = None

"""What models get besides the conversation: the system prompt, the tools, the model's parameters.

Each is stored once, as the only event of a log of its own that its SHA-256 names: `setup/<sha256>`. `run.started` names
them (`RunStarted.setup`). So the prompts of two runs can be compared word by word, and a request can be made again.
What is stored has been redacted, and the hash is that of the redacted text.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Hashable, Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Literal

from core.config.redaction import redactor
from core.errors import Conflict, Invalid, NotFound
from core.events import Aggregate, RunStarted, SetupRecorded
from core.log.store import EventLog
from core.replay.causes import Read

KIND = "setup"
"""Kind of the logs with one content each."""
Part = Literal["prompt", "tools", "model"]
PARTS: tuple[Part, ...] = ("prompt", "tools", "model")
KNOWN = 4096
"""Limit of the hashes of stored contents that a process remembers; a forgotten one costs one refused append."""
SETUPS = 256
"""Limit of the setups whose hashes a process remembers."""


def content_hash(content: str) -> str:
    """Returns the SHA-256 by which a content is stored, in hexadecimal digits."""
    return hashlib.sha256(redactor.known(content).encode()).hexdigest()


class Setups:
    """Stores contents once. A setup whose hashes are known costs no append, no read and no hashing."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._stored: OrderedDict[str, None] = OrderedDict()
        self._setups: OrderedDict[Hashable, tuple[dict[str, str], object]] = OrderedDict()

    def known(self, key: Hashable) -> dict[str, str] | None:
        """Returns the hashes of a setup that this process has stored, by part."""
        hit = self._setups.get(key)
        return hit[0] if hit else None

    async def store(self, key: Hashable, contents: Mapping[Part, str], keep: object, actor: str) -> dict[str, str]:
        """Stores the contents of a setup and returns their hashes. `keep` holds what the key names by identity.

        Raises `Unavailable`.
        """
        hashes: dict[str, str] = {part: content_hash(content) for part, content in contents.items()}
        for part, content in contents.items():
            await self._store(part, content, hashes[part], actor)
        self._setups[key] = hashes, keep
        while len(self._setups) > SETUPS:
            self._setups.popitem(last=False)
        return hashes

    async def _store(self, part: Part, content: str, sha256: str, actor: str) -> None:
        if sha256 in self._stored:
            return
        event = SetupRecorded(part=part, content=redactor.known(content))
        with suppress(Conflict):  # it is there: another process was first
            await self._log.append(Aggregate(KIND, sha256), [event], expected=0, actor=actor)
        self._stored[sha256] = None
        while len(self._stored) > KNOWN:
            self._stored.popitem(last=False)


async def content(read: Read, sha256: str) -> str:
    """Returns a stored content. Raises `NotFound`, and `Invalid` if it does not match its hash."""
    records = await read(Aggregate(KIND, sha256))
    event = records[0].event if records else None
    if not isinstance(event, SetupRecorded):
        raise NotFound(f"{KIND} {sha256}: nothing in the log; runs of earlier versions did not record it")
    if hashlib.sha256(event.content.encode()).hexdigest() != sha256:
        raise Invalid(f"{KIND} {sha256}: the content does not match its hash")
    return event.content


async def sent(read: Read, started: RunStarted) -> dict[str, str]:
    """Returns the recorded contents of a run, by part; empty for runs of earlier versions. Raises `Invalid`."""
    return {part: await content(read, started.setup[part]) for part in PARTS if part in started.setup}


async def differences(read: Read, left: RunStarted | None, right: RunStarted | None) -> list[tuple[str, str, str]]:
    """Returns the contents that two runs do not share: the part, and both texts. Raises `NotFound` and `Invalid`."""
    before, after = (started.setup if started else {} for started in (left, right))
    parts = [part for part in PARTS if part in before and part in after and before[part] != after[part]]
    return [(part, await content(read, before[part]), await content(read, after[part])) for part in parts]


@lru_cache(maxsize=1)
def release() -> str:
    """Returns the version of Sika; empty where it is not installed as a package."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("sika")
    except PackageNotFoundError:
        return ""

"""Files on their way between a platform and a thread: kept on the bus until the thread has them.

They lie in the bucket of the log's big bodies, under the aggregate of their conversation. So what erases a conversation
(`EventLog.erase`) overwrites its files too, those of interrupted uploads included.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator
from pathlib import Path

from core.bus.connection import Bus
from core.bus.errors import STREAM_NOT_FOUND, ApiError
from core.bus.streams import erase_all, messages
from core.errors import Invalid, NotFound
from core.events import Aggregate
from core.ids import uuid7
from core.log.blobs import CHUNK_BYTES

_PLANE = "blobs"


class Objects:
    """The files of conversations. An object's name tells its conversation and the hash of its content."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def put(self, conversation: Aggregate, name: str, path: Path) -> str:
        """Stores the file at `path`. Returns the name of the object. Raises `Unavailable`, and `Invalid` if the file
        (`name` in the error) was changed meanwhile.
        """
        digest = await asyncio.to_thread(_digest, path)
        identity = f"{conversation.kind}.{conversation.id}.{digest}.{uuid7()}"
        stored = hashlib.sha256()
        with await asyncio.to_thread(path.open, "rb") as file:
            while chunk := await asyncio.to_thread(file.read, CHUNK_BYTES):
                stored.update(chunk)
                await self._bus.store(self._bus.names.chunks(identity), chunk)
        if stored.hexdigest() != digest:
            await self.remove(identity)
            raise Invalid(f"{name}: was changed while it was stored")
        return identity

    async def chunks(self, name: str) -> AsyncGenerator[bytes]:
        """Yields the content of an object. Raises `NotFound`, possibly after chunks, if the object was removed or
        damaged, and `Unavailable`."""
        expected, digest = _parts(name)[2], hashlib.sha256()
        try:
            async for chunk in messages(self._bus, _PLANE, self._bus.names.chunks(name)):
                digest.update(chunk.data)
                yield chunk.data
        except ApiError as error:
            if error.err_code != STREAM_NOT_FOUND:
                raise
        if digest.hexdigest() != expected:
            raise NotFound(f"object {name}: was removed, or is not complete")

    async def remove(self, name: str) -> None:
        """Overwrites an object on the disk and deletes it. A missing one is no error. Raises `Unavailable`."""
        _parts(name)
        try:
            await erase_all(self._bus, _PLANE, self._bus.names.chunks(name))
        except ApiError as error:
            if error.err_code != STREAM_NOT_FOUND:
                raise


def _parts(name: str) -> list[str]:
    """Returns the kind and id of the conversation, the hash, and the upload. Raises `Invalid`: a name is a subject."""
    parts = name.split(".")
    if len(parts) != 4 or not all(part.replace("-", "").replace("_", "").isalnum() for part in parts):
        raise Invalid(f"{name[:80]!r} is not the name of an object")
    return parts


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

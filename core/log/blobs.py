"""Bodies too big for the log, in JetStream's object store.

JetStream's client library is not used for it. Its deletion, and its clean-up after a failed upload, purge a subject,
and what was purged stays on the disk and can no longer be erased. So chunks are published here. Their subject names the
aggregate, so that erasure finds them all, those of interrupted uploads too. The library's reader waits for ever for the
first chunk of a body that is being erased.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from core.bus.connection import Bus
from core.bus.errors import STREAM_NOT_FOUND, ApiError
from core.bus.streams import Stored, erase, erase_all, find, messages
from core.cache import ByteCache
from core.errors import Invalid, Unavailable
from core.events import Aggregate, Blob, Record
from core.ids import now, uuid7

CACHE_BYTES = 32 << 20
"""Limit of the cache of bodies."""
CHUNK_BYTES = 128 * 1024
RETRY_SECONDS = 0.2
_PLANE = "blobs"


class Blobs:
    """The bodies of one process's events, named by aggregate and hash."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._recent: ByteCache[str, bytes] = ByteCache(CACHE_BYTES)
        self._fetching: dict[str, asyncio.Future[bytes]] = {}
        """Downloads in progress: several listeners fetch the same bodies."""

    # ── put ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def put(self, aggregate: Aggregate, body: bytes, deadline: float) -> Blob:
        """Stores a body. Retries until a `deadline` of the loop's clock. Raises `Unavailable`."""
        blob = Blob(sha256_of(body), len(body))
        while True:
            try:
                await self._upload(aggregate, blob, body)
                return blob
            except Unavailable:
                if asyncio.get_running_loop().time() > deadline:
                    raise
            await asyncio.sleep(RETRY_SECONDS)

    async def _upload(self, aggregate: Aggregate, blob: Blob, body: bytes) -> None:
        """Stores the chunks, then the object's description. Each upload has a subject of its own (`nuid`)."""
        name = _name(aggregate, blob.sha256)
        nuid = f"{name}.{uuid7()}"
        for start in range(0, len(body), CHUNK_BYTES):
            await self._bus.store(self._bus.names.chunks(nuid), body[start : start + CHUNK_BYTES])
        description = msgspec.json.encode(self._description(name, nuid, body))
        await self._bus.store(self._bus.names.blob(name), description, {"Nats-Rollup": "sub"})

    def _description(self, name: str, nuid: str, body: bytes) -> dict[str, Any]:
        digest = base64.urlsafe_b64encode(hashlib.sha256(body).digest()).decode()
        return {
            "name": name,
            "bucket": self._bus.names.blobs,
            "nuid": nuid,
            "size": len(body),
            "chunks": -(-len(body) // CHUNK_BYTES),
            "digest": f"SHA-256={digest}",
            "mtime": now(),
            "options": {"max_chunk_size": CHUNK_BYTES},
        }

    # ── get ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def get(self, record: Record) -> bytes:
        """Returns a record's body. Raises `Invalid` if it is lost or damaged, `Unavailable`."""
        assert record.head.blob
        name = _name(record.aggregate, record.head.blob.sha256)
        body = self._recent.get(name)
        while body is None and (fetching := self._fetching.get(name)):
            await asyncio.wait([fetching])
            body = self._recent.get(name)
        if body is None:
            self._fetching[name] = asyncio.get_running_loop().create_future()
            try:
                body = await self._download(name, record)
                self._recent.put(name, body, len(body))
            finally:
                self._fetching.pop(name).cancel()
        return body

    async def _download(self, name: str, record: Record) -> bytes:
        assert record.head.blob
        body = b""
        with _stream_may_be_missing():
            description = await find(self._bus, _PLANE, {"last_by_subj": self._bus.names.blob(name)})
            if description is not None:
                chunks = messages(self._bus, _PLANE, self._bus.names.chunks(_nuid(description)))
                body = b"".join([chunk.data async for chunk in chunks])
        if not body:
            raise Invalid(f"event {record.id}: its body {name} is not in the object store")
        if sha256_of(body) != record.head.blob.sha256:
            raise Invalid(f"event {record.id}: its body does not match its hash")
        return body

    # ── erase ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def erase(self, aggregate: Aggregate, hashes: Collection[str]) -> None:
        """Overwrites bodies of an aggregate on the disk and deletes them; missing ones are no error."""
        for sha256 in hashes:
            name = _name(aggregate, sha256)
            self._recent.drop(name)
            with _stream_may_be_missing():
                description = await find(self._bus, _PLANE, {"last_by_subj": self._bus.names.blob(name)})
                if description is None:
                    continue
                await erase_all(self._bus, _PLANE, self._bus.names.chunks(_nuid(description)))
                await erase(self._bus, _PLANE, description.seq)

    async def erase_rest(self, aggregate: Aggregate) -> None:
        """Erases chunks that no event names: of uploads that were interrupted, and of appends that failed."""
        with _stream_may_be_missing():
            await erase_all(self._bus, _PLANE, self._bus.names.chunks(f"{_name(aggregate, '*')}.*"))


@contextmanager
def _stream_may_be_missing() -> Iterator[None]:
    try:
        yield
    except ApiError as error:
        if error.err_code != STREAM_NOT_FOUND:
            raise


def sha256_of(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def _name(aggregate: Aggregate, sha256: str) -> str:
    return f"{aggregate.kind}.{aggregate.id}.{sha256}"


def _nuid(description: Stored) -> str:
    return str(msgspec.json.decode(description.data)["nuid"])

"""Pages: what is long past of a thread, encoded and compressed. See `core.thread.past`.

JSON and not msgpack: facts may hold integers of any size, which msgpack cannot say; and compressed, it is no bigger.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from threading import Lock
from typing import Any, Generic, TypeVar

import msgspec

from core.cache import ByteCache
from core.events import Json
from core.thread.entries import Commit, Run

T = TypeVar("T")

DECODED_BYTES = 2 << 20
"""Limit of the encoded size of the pages that stay decoded, of commits and of runs each. Decoded they take four times
as much, so both some 17 MB.
"""
COMPRESSED_BYTES = 512 * 1024
"""A bigger page stays as it is: compressing it would hold up others."""


class CommitPage(msgspec.Struct, frozen=True, eq=False, gc=False, array_like=True, tag="commits"):
    """Commits that follow each other. `first`: the sequence of the first."""

    first: int
    data: bytes


class RunPage(msgspec.Struct, frozen=True, eq=False, gc=False, array_like=True, tag="runs"):
    """Runs that were requested one after the other and have ended. `answers`: the id of the last message of each."""

    ids: tuple[str, ...]
    answers: tuple[str, ...]
    undone: tuple[str, ...]
    """Ids of those that were rolled back."""
    first: int
    """Sequence at which the first was requested."""
    last: int
    """Sequence at which the last of them to end ended."""
    data: bytes


class Frame(msgspec.Struct, frozen=True, eq=False, gc=False, array_like=True, tag="frame"):
    """The values at the commit `index`."""

    index: int
    data: bytes


Page = CommitPage | RunPage | Frame

encode = msgspec.json.Encoder().encode
_commits = msgspec.json.Decoder(list[Commit])
_runs = msgspec.json.Decoder(list[Run])
decode_values = msgspec.json.Decoder(Json).decode


def packed(items: Any) -> bytes:
    data = encode(items)
    return zlib.compress(data, 1) if len(data) <= COMPRESSED_BYTES else data


def unpacked(data: bytes) -> bytes:
    return data if data[:1] in b"[{" else zlib.decompress(data)


class _Decoded(Generic[T]):
    """The decoded form of the pages used last. Pages are decoded in several threads."""

    def __init__(self, decode: Callable[[bytes], T]) -> None:
        self._decode = decode
        self._recent: ByteCache[Page, T] = ByteCache(DECODED_BYTES)
        self._lock = Lock()

    def get(self, page: Page) -> T:
        with self._lock:
            items = self._recent.get(page)
        if items is None:
            data = unpacked(page.data)
            items = self._decode(data)
            with self._lock:
                self._recent.put(page, items, len(data))
        return items

    def clear(self) -> None:
        with self._lock:
            self._recent = ByteCache(DECODED_BYTES)


decoded_commits = _Decoded(_commits.decode)
decoded_runs = _Decoded(_runs.decode)


def forget() -> None:
    """Keeps no page decoded: pages do not know their thread, and one of them may have been erased."""
    decoded_commits.clear()
    decoded_runs.clear()

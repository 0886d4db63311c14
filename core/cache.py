"""A cache that is bounded in bytes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

GIANT = 4
"""A value of more than a GIANT-th of the limit is a giant: it is stored apart, and evicts no entry."""


class ByteCache(Generic[K, V]):
    """Keeps the values used last, up to `limit` bytes, and besides the last giant."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.size = 0
        """Bytes of the entries, without the giant."""
        self._entries: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._giant: tuple[K, V] | None = None

    def get(self, key: K) -> V | None:
        """Returns the cached value, or None; it counts as used."""
        if self._giant is not None and self._giant[0] == key:
            return self._giant[1]
        if key not in self._entries:
            return None
        self._entries.move_to_end(key)
        return self._entries[key][0]

    def put(self, key: K, value: V, size: int) -> None:
        self.drop(key)
        if size * GIANT > self.limit:
            self._giant = (key, value)
            return
        self._entries[key] = (value, size)
        self.size += size
        while self.size > self.limit:
            _, (_, freed) = self._entries.popitem(last=False)
            self.size -= freed

    def drop(self, key: K) -> None:
        if self._giant is not None and self._giant[0] == key:
            self._giant = None
        _, size = self._entries.pop(key, (None, 0))
        self.size -= size

    def __iter__(self) -> Iterator[K]:
        """Iterates over the keys, least recently used first, the giant's last."""
        yield from self._entries
        if self._giant is not None:
            yield self._giant[0]

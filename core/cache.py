"""A cache that is bounded in bytes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

GIANT = 4
"""A value of more than a GIANT-th of the limit is a giant: it is stored apart, and evicts no entry."""
GIANTS = 2
"""Limit of the giants together, in limits of the cache. The last one stays, whatever its size."""


class ByteCache(Generic[K, V]):
    """Keeps the values used last, up to `limit` bytes, and besides the giants used last."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._entries: _Newest[K, V] = _Newest(limit)
        self._giants: _Newest[K, V] = _Newest(GIANTS * limit, least=1)

    @property
    def size(self) -> int:
        """Bytes of the entries, without the giants."""
        return self._entries.size

    def get(self, key: K) -> V | None:
        """Returns the cached value, or None; it counts as used."""
        found = self._giants.get(key) or self._entries.get(key)
        return None if found is None else found[0]

    def put(self, key: K, value: V, size: int) -> None:
        self.drop(key)
        (self._giants if size * GIANT > self.limit else self._entries).put(key, value, size)

    def drop(self, key: K) -> None:
        self._giants.drop(key)
        self._entries.drop(key)

    def __iter__(self) -> Iterator[K]:
        """Iterates over the keys that are there now, least recently used first, those of the giants last."""
        return iter([*self._entries.values, *self._giants.values])


class _Newest(Generic[K, V]):
    """The values used last, up to a number of bytes, but at least so many."""

    def __init__(self, limit: int, least: int = 0) -> None:
        self.values: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self.size = 0
        self._limit, self._least = limit, least

    def __len__(self) -> int:
        return len(self.values)

    def get(self, key: K) -> tuple[V, int] | None:
        entry = self.values.get(key)
        if entry is not None:
            self.values.move_to_end(key)
        return entry

    def put(self, key: K, value: V, size: int) -> None:
        self.values[key] = (value, size)
        self.size += size
        while self.size > self._limit and len(self.values) > self._least:
            _, (_, freed) = self.values.popitem(last=False)
            self.size -= freed

    def drop(self, key: K) -> None:
        _, size = self.values.pop(key, (None, 0))
        self.size -= size

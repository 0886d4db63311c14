"""A cache that is bounded in bytes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

GIANT = 4
"""A value of more than the GIANT-th part of the bound is a giant: it is kept beside the others, and evicts none."""


class ByteCache(Generic[K, V]):
    """The values used last, up to so many bytes. Of the giants among them one is kept: the last."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.size = 0
        """Bytes of all that is kept, but for the giant."""
        self._kept: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._giant: tuple[K, V] | None = None

    def get(self, key: K) -> V | None:
        """The value, if it is kept; it counts as used."""
        if self._giant is not None and self._giant[0] == key:
            return self._giant[1]
        if key not in self._kept:
            return None
        self._kept.move_to_end(key)
        return self._kept[key][0]

    def put(self, key: K, value: V, size: int) -> None:
        self.drop(key)
        if size * GIANT > self.limit:
            self._giant = (key, value)
            return
        self._kept[key] = (value, size)
        self.size += size
        while self.size > self.limit:
            _, (_, freed) = self._kept.popitem(last=False)
            self.size -= freed

    def drop(self, key: K) -> None:
        if self._giant is not None and self._giant[0] == key:
            self._giant = None
        _, size = self._kept.pop(key, (None, 0))
        self.size -= size

    def __iter__(self) -> Iterator[K]:
        """The keys, the one used longest ago first, the giant's last."""
        yield from self._kept
        if self._giant is not None:
            yield self._giant[0]

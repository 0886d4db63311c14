"""The store: items of a user's agents and programs beside the threads, in namespaces, as a fold over its events.

A replaced value stays in the log until the whole aggregate is erased (`EventLog.erase`), with all values it ever had.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from core.errors import Invalid, Refused
from core.events import Event, Json, Record
from core.ids import now
from core.log.repository import Repository
from core.log.snapshots import Parts
from core.log.store import EventLog
from core.phrases import Phrase

KIND = "store"
MOST_ITEMS = 100_000
"""Limit of items of a user. A replica that reads them has them all in memory."""
MOST_BYTES = 64 * 1024 * 1024
"""Limit of the bytes of a user's values, as JSON."""
MOST_VALUE_BYTES = 256 * 1024
MOST_LABELS = 32
MOST_CHARACTERS = 512
"""Limit of characters of a label, or of a key."""
SWEPT = 100
"""Limit of expired items that are removed for a new one."""
PART_BYTES = 256 * 1024
"""Bytes of items that are encoded in a piece, each with its names and times (`ITEM_BYTES`) beside its value."""
ITEM_BYTES = 256

Namespace = tuple[str, ...]


class ItemPut(Event, frozen=True):
    """An item has this value from here on."""

    phrase = Phrase(
        "Item stored",
        "条目已存储",
        "{namespace} {key}<, until {expires}>",
        "{namespace} {key}<，至 {expires}>",
    )
    namespace: list[str]
    key: str
    value: Json
    expires: str | None = None
    """Time of its expiry, ISO 8601."""


class ItemRemoved(Event, frozen=True):
    """The item was removed: on request, or because it had expired and its space was needed."""

    phrase = Phrase("Item removed", "条目已移除", "{namespace} {key}")
    namespace: list[str]
    key: str


class Item(NamedTuple):
    namespace: Namespace
    key: str
    value: Json
    created_at: str
    updated_at: str
    expires: str | None
    size: int
    """Bytes of the value as JSON."""

    def alive(self, now: str) -> bool:
        return self.expires is None or self.expires > now


class Store(NamedTuple):
    """A user's items by namespace and key. States share the namespaces that do not differ."""

    spaces: Mapping[Namespace, Mapping[str, Item]] = {}
    total: int = 0
    size: int = 0

    def get(self, namespace: Sequence[str], key: str, now: str) -> Item | None:
        """Returns the item, unless it has expired."""
        item = self.spaces.get(tuple(namespace), {}).get(key)
        return item if item is not None and item.alive(now) else None

    def under(self, prefix: Sequence[str], now: str) -> Iterator[Item]:
        """Yields the items in a namespace and in those below it."""
        labels = tuple(prefix)
        for namespace, items in self.spaces.items():
            if namespace[: len(labels)] == labels:
                yield from (item for item in items.values() if item.alive(now))


def fold(records: Iterable[Record], state: Store) -> Store:
    """Returns the store after these records. Pure and total. The cost is proportional to the written items, plus one
    copy of each namespace written to.
    """
    spaces, total, size = dict(state.spaces), state.total, state.size
    thawed: dict[Namespace, dict[str, Item]] = {}
    for record in records:
        event = record.event
        if not isinstance(event, ItemPut | ItemRemoved):
            continue
        namespace = tuple(event.namespace)
        if namespace not in thawed:
            thawed[namespace] = dict(spaces.get(namespace, {}))
            spaces[namespace] = thawed[namespace]
        items = thawed[namespace]
        old = items.pop(event.key, None) if isinstance(event, ItemRemoved) else items.get(event.key)
        if old is not None:
            total, size = total - 1, size - old.size
        if isinstance(event, ItemPut):
            since = old.created_at if old is not None and old.alive(record.at) else record.at
            new = Item(namespace, event.key, event.value, since, record.at, event.expires, weight(event.value))
            items[event.key] = new
            total, size = total + 1, size + new.size
    for namespace, items in thawed.items():
        if not items:
            del spaces[namespace]
    return Store(spaces, total, size)


def _split(store: Store) -> Iterator[list[Item]]:
    """Yields the items in parts of about `PART_BYTES`."""
    part, size = list[Item](), 0
    for items in store.spaces.values():
        for item in items.values():
            part.append(item)
            size += item.size + ITEM_BYTES
            if size > PART_BYTES:
                yield part
                part, size = [], 0
    yield part


def _join(parts: Iterable[list[Item]]) -> Store:
    spaces: dict[Namespace, dict[str, Item]] = {}
    for part in parts:
        for item in part:
            spaces.setdefault(item.namespace, {})[item.key] = item
    items = [item for space in spaces.values() for item in space.values()]
    return Store(spaces, len(items), sum(item.size for item in items))


_FORM = Parts(list[Item], _split, _join, __name__)


def aggregates(log: EventLog, snapshots: Path | None = None) -> Repository[Store]:
    """Returns the repository of the users' stores, by user. As stores are large, its cache is bounded by one.
    `snapshots`: the directory where they are kept, if they are.
    """
    return Repository(log, KIND, fold, Store(), cache_bytes=MOST_BYTES, form=_FORM, directory=snapshots)


class Stores:
    """The users' stores: read, and decided on by one channel (`actor`)."""

    def __init__(self, stores: Repository[Store], *, actor: str) -> None:
        self._stores = stores
        self._actor = actor

    async def of(self, user: str) -> Store:
        return await self._stores.load(user)

    async def put(self, user: str, item: ItemPut) -> None:
        """Puts an item. Raises `Refused` if the store is full."""
        await self._stores.decide(user, lambda store: put(store, item, now()), actor=self._actor)

    async def remove(self, user: str, namespace: Sequence[str], key: str) -> None:
        """Removes an item, if it exists."""
        await self._stores.decide(user, lambda store: remove(store, namespace, key), actor=self._actor)


# ── decisions ────────────────────────────────────────────────────────────────────────────────────────────────────────


def put(store: Store, item: ItemPut, now: str) -> list[Event]:
    """Returns the events that put an item. If the store is full, expired items go first. Raises `Refused`."""
    size = weight(item.value)
    old = store.spaces.get(tuple(item.namespace), {}).get(item.key)
    count = store.total + (old is None) - MOST_ITEMS
    room = store.size + size - (old.size if old else 0) - MOST_BYTES
    swept: list[Event] = []
    if count > 0 or room > 0:
        for over in _expired(store, now):
            if (count <= 0 and room <= 0) or len(swept) == SWEPT:
                break
            if over is not old:
                swept.append(ItemRemoved(namespace=list(over.namespace), key=over.key))
                count, room = count - 1, room - over.size
    if count > 0 or room > 0:
        raise Refused(f"the store is full: at most {MOST_ITEMS} items, and {MOST_BYTES} bytes of values")
    return [*swept, item]


def remove(store: Store, namespace: Sequence[str], key: str) -> list[Event]:
    exists = key in store.spaces.get(tuple(namespace), {})
    return [ItemRemoved(namespace=list(namespace), key=key)] if exists else []


def _expired(store: Store, now: str) -> Iterator[Item]:
    return (item for items in store.spaces.values() for item in items.values() if not item.alive(now))


def valid_namespace(namespace: Sequence[str], where: str = "namespace", *, least: int = 1) -> Namespace:
    """Returns the namespace if it is valid. Raises `Invalid`."""
    if not least <= len(namespace) <= MOST_LABELS:
        raise Invalid(f"{where}: from {least} to {MOST_LABELS} labels, got {len(namespace)}")
    for place, label in enumerate(namespace):
        if not label or len(label) > MOST_CHARACTERS or "." in label:
            raise Invalid(
                f"{where}[{place}]: a label has 1 to {MOST_CHARACTERS} characters and no dots, got {label[:40]!r}"
            )
    if namespace and namespace[0] == "langgraph":
        raise Invalid(f"{where}[0]: namespaces that begin with 'langgraph' are reserved")
    return tuple(namespace)


def weight(value: Json) -> int:
    """Returns the bytes of a value as JSON."""
    return len(msgspec.json.encode(value))


# ── queries ──────────────────────────────────────────────────────────────────────────────────────────────────────────

Test = Callable[[Any], bool]

_COMPARE: Mapping[str, Callable[[Any, Any], bool]] = {
    "$gt": operator.gt,
    "$gte": operator.ge,
    "$lt": operator.lt,
    "$lte": operator.le,
}


def matching(fields: Mapping[str, Any], where: str = "filter") -> Test:
    """Returns a test for a value's fields: by equality, or by `{"$eq" | "$ne" | "$gt" | "$gte" | "$lt" | "$lte": …}`.

    Objects may have other fields, too. Values that cannot be compared do not match. Raises `Invalid` for an unknown
    operator.
    """
    tests = {name: _test(value, f"{where}.{name[:40]}") for name, value in fields.items()}
    return lambda value: all(test(value.get(name)) for name, test in tests.items())


def _test(expected: Any, where: str) -> Test:
    if not isinstance(expected, dict):
        return lambda value: _same(value, expected)
    if not any(name.startswith("$") for name in expected):
        fields = matching(expected, where)
        return lambda value: isinstance(value, dict) and fields(value)
    tests = [_operator(name, value, where) for name, value in expected.items()]
    return lambda value: all(test(value) for test in tests)


def _operator(name: str, expected: Any, where: str) -> Test:
    match name:
        case "$eq":
            return lambda value: _same(value, expected)
        case "$ne":
            return lambda value: not _same(value, expected)
        case "$gt" | "$gte" | "$lt" | "$lte":
            compare = _COMPARE[name]
            return lambda value: _ordered(value, expected) and compare(value, expected)
    raise Invalid(f"{where}: $eq, $ne, $gt, $gte, $lt or $lte, got {name[:40]!r}")


def _same(left: Any, right: Any) -> bool:
    return isinstance(left, bool) == isinstance(right, bool) and bool(left == right)


def _ordered(left: Any, right: Any) -> bool:
    """True for two numbers, or two strings."""
    kinds = [str if isinstance(v, str) else float if isinstance(v, int | float) else None for v in (left, right)]
    return kinds[0] is not None and kinds[0] is kinds[1]


_WORD = re.compile(r"\w+")


class Hit(NamedTuple):
    item: Item
    score: float | None
    """The share of the query's words in the value or the key; None without a query."""


def search(store: Store, prefix: Sequence[str], fits: Test, query: str | None, now: str) -> list[Hit]:
    """Returns the items below a namespace that fit, newest first. With a query, those with the most of its words come
    first, and items without any of them are left out. Words match as parts of text, in any case; there is no semantic
    search.
    """
    items = [item for item in store.under(prefix, now) if fits(item.value)]
    items.sort(key=lambda item: (item.updated_at, item.namespace, item.key), reverse=True)
    words = list(dict.fromkeys(_WORD.findall((query or "").casefold())))
    if not words:
        return [Hit(item, None) for item in items]
    hits = [Hit(item, _share(words, item)) for item in items]
    return sorted((hit for hit in hits if hit.score), key=lambda hit: -(hit.score or 0))


def _share(words: Sequence[str], item: Item) -> float:
    text = "\n".join([item.key, *_texts(item.value)]).casefold()
    return sum(word in text for word in words) / len(words)


def _texts(value: Any) -> Iterator[str]:
    """Yields the texts in a value: strings, numbers, the names of fields."""
    match value:
        case str():
            yield value
        case dict():
            for name, inner in value.items():
                yield name
                yield from _texts(inner)
        case list():
            for inner in value:
                yield from _texts(inner)
        case int() | float():
            yield str(value)


def namespaces(
    store: Store, prefix: Sequence[str], suffix: Sequence[str], depth: int | None, now: str
) -> list[Namespace]:
    """Returns the namespaces that have items, in order, cut to `depth` labels. `*` matches any label."""
    unique = {
        namespace[:depth]
        for namespace, items in store.spaces.items()
        if len(namespace) >= max(len(prefix), len(suffix))
        and _fits(prefix, namespace[: len(prefix)])
        and _fits(suffix, namespace[len(namespace) - len(suffix) :])
        and any(item.alive(now) for item in items.values())
    }
    return sorted(unique)


def _fits(pattern: Sequence[str], labels: Sequence[str]) -> bool:
    return all(expected in ("*", label) for expected, label in zip(pattern, labels, strict=True))

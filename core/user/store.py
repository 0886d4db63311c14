"""The store: what a user's agents and programs keep beside the threads; namespaces of items, as a fold over its facts.

A value that was put over stays in the log, as everything does, until the whole aggregate is purged: erasing a user
purges it (`EventLog.purge`), and with it every value there ever was.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from core.errors import Invalid, Refused
from core.events import Event, Json, Record
from core.ids import now
from core.log.repository import Repository
from core.log.store import EventLog

KIND = "store"
MOST_ITEMS = 100_000
"""Items of one user. Every replica that is asked about them keeps them all in memory."""
MOST_BYTES = 64 * 1024 * 1024
"""Bytes of all the values of one user, as JSON."""
MOST_VALUE_BYTES = 256 * 1024
MOST_LABELS = 32
MOST_CHARACTERS = 512
"""Of a label, or of a key."""
SWEPT = 100
"""How many items whose time is over make room for a new one, at most."""

Namespace = tuple[str, ...]


class ItemPut(Event, frozen=True):
    """An item has this value from here on."""

    namespace: list[str]
    key: str
    value: Json
    expires: str | None = None
    """When it stops being shown, ISO 8601."""


class ItemRemoved(Event, frozen=True):
    """The item is gone: somebody wished so, or its time was over and its place was needed."""

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

    def shown(self, now: str) -> bool:
        return self.expires is None or self.expires > now


class Store(NamedTuple):
    """A user's items by namespace and key. States share the namespaces that do not differ."""

    spaces: Mapping[Namespace, Mapping[str, Item]] = {}
    total: int = 0
    size: int = 0

    def get(self, namespace: Sequence[str], key: str, now: str) -> Item | None:
        """The item, unless its time is over."""
        found = self.spaces.get(tuple(namespace), {}).get(key)
        return found if found is not None and found.shown(now) else None

    def under(self, prefix: Sequence[str], now: str) -> Iterator[Item]:
        """The items in a namespace and in those below it."""
        wanted = tuple(prefix)
        for namespace, items in self.spaces.items():
            if namespace[: len(wanted)] == wanted:
                yield from (item for item in items.values() if item.shown(now))


def fold(records: Iterable[Record], state: Store) -> Store:
    """The store after these records. Pure and total. Costs what was written, and a copy of the namespaces written to:
    once, however many records there are.
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
            since = old.created_at if old is not None and old.shown(record.at) else record.at
            new = Item(namespace, event.key, event.value, since, record.at, event.expires, weight(event.value))
            items[event.key] = new
            total, size = total + 1, size + new.size
    for namespace, items in thawed.items():
        if not items:
            del spaces[namespace]
    return Store(spaces, total, size)


def aggregates(log: EventLog) -> Repository[Store]:
    """The users' stores, by user. Large ones: few are kept."""
    return Repository(log, KIND, fold, Store(), kept_bytes=MOST_BYTES)


class Stores:
    """The users' stores: read, and decided on by one channel (`actor`)."""

    def __init__(self, log: EventLog, *, actor: str) -> None:
        self._stores = aggregates(log)
        self._actor = actor

    async def of(self, user: str) -> Store:
        return await self._stores.load(user)

    async def put(self, user: str, item: ItemPut) -> None:
        """Raises `Refused` if the store is full."""
        await self._stores.decide(user, lambda store: put(store, item, now()), actor=self._actor)

    async def remove(self, user: str, namespace: Sequence[str], key: str) -> None:
        """Removes an item; one that is not there is fine too."""
        await self._stores.decide(user, lambda store: remove(store, namespace, key), actor=self._actor)


# ── decisions ────────────────────────────────────────────────────────────────────────────────────────────────────────


def put(store: Store, item: ItemPut, now: str) -> list[Event]:
    """The events that put an item. If the store is full, items whose time is over go first. Raises `Refused`."""
    size = weight(item.value)
    old = store.spaces.get(tuple(item.namespace), {}).get(item.key)
    count = store.total + (old is None) - MOST_ITEMS
    room = store.size + size - (old.size if old else 0) - MOST_BYTES
    swept: list[Event] = []
    if count > 0 or room > 0:
        for over in _over(store, now):
            if (count <= 0 and room <= 0) or len(swept) == SWEPT:
                break
            if over is not old:
                swept.append(ItemRemoved(namespace=list(over.namespace), key=over.key))
                count, room = count - 1, room - over.size
    if count > 0 or room > 0:
        raise Refused(f"the store is full: at most {MOST_ITEMS} items, and {MOST_BYTES} bytes of values")
    return [*swept, item]


def remove(store: Store, namespace: Sequence[str], key: str) -> list[Event]:
    known = key in store.spaces.get(tuple(namespace), {})
    return [ItemRemoved(namespace=list(namespace), key=key)] if known else []


def _over(store: Store, now: str) -> Iterator[Item]:
    return (item for items in store.spaces.values() for item in items.values() if not item.shown(now))


def checked(namespace: Sequence[str], where: str = "namespace", *, least: int = 1) -> Namespace:
    """The namespace itself, if it can be one. Raises `Invalid`."""
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
    """Bytes of a value as JSON."""
    return len(msgspec.json.encode(value))


# ── questions ────────────────────────────────────────────────────────────────────────────────────────────────────────

Test = Callable[[Any], bool]

_COMPARE: Mapping[str, Callable[[Any, Any], bool]] = {
    "$gt": operator.gt,
    "$gte": operator.ge,
    "$lt": operator.lt,
    "$lte": operator.le,
}


def matching(wanted: Mapping[str, Any], where: str = "filter") -> Test:
    """Whether a value has the wanted fields: equal, or by `{"$eq" | "$ne" | "$gt" | "$gte" | "$lt" | "$lte": …}`.

    Objects may have more fields than are wanted of them. What cannot be compared does not match. Raises `Invalid` for
    an unknown operator.
    """
    tests = {field: _test(value, f"{where}.{field[:40]}") for field, value in wanted.items()}
    return lambda value: all(test(value.get(field)) for field, test in tests.items())


def _test(wanted: Any, where: str) -> Test:
    if not isinstance(wanted, dict):
        return lambda value: _same(value, wanted)
    if not any(name.startswith("$") for name in wanted):
        fields = matching(wanted, where)
        return lambda value: isinstance(value, dict) and fields(value)
    tests = [_operator(name, value, where) for name, value in wanted.items()]
    return lambda value: all(test(value) for test in tests)


def _operator(name: str, wanted: Any, where: str) -> Test:
    match name:
        case "$eq":
            return lambda value: _same(value, wanted)
        case "$ne":
            return lambda value: not _same(value, wanted)
        case "$gt" | "$gte" | "$lt" | "$lte":
            compare = _COMPARE[name]
            return lambda value: _ordered(value, wanted) and compare(value, wanted)
    raise Invalid(f"{where}: $eq, $ne, $gt, $gte, $lt or $lte, got {name[:40]!r}")


def _same(one: Any, other: Any) -> bool:
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)


def _ordered(one: Any, other: Any) -> bool:
    """Numbers with numbers, strings with strings."""
    kinds = [str if isinstance(v, str) else float if isinstance(v, int | float) else None for v in (one, other)]
    return kinds[0] is not None and kinds[0] is kinds[1]


_WORD = re.compile(r"\w+")


class Hit(NamedTuple):
    item: Item
    score: float | None
    """The share of the query's words that the value or the key has; None without a query."""


def search(store: Store, prefix: Sequence[str], fits: Test, query: str | None, now: str) -> list[Hit]:
    """The items below a namespace that fit, newest first; with a query those that have most of its words first, and
    none that has no word of it. Words are found as parts of text, in any case; there is no search by meaning.
    """
    found = [item for item in store.under(prefix, now) if fits(item.value)]
    found.sort(key=lambda item: (item.updated_at, item.namespace, item.key), reverse=True)
    words = list(dict.fromkeys(_WORD.findall((query or "").casefold())))
    if not words:
        return [Hit(item, None) for item in found]
    hits = [Hit(item, _share(words, item)) for item in found]
    return sorted((hit for hit in hits if hit.score), key=lambda hit: -(hit.score or 0))


def _share(words: Sequence[str], item: Item) -> float:
    text = "\n".join([item.key, *_texts(item.value)]).casefold()
    return sum(word in text for word in words) / len(words)


def _texts(value: Any) -> Iterator[str]:
    """Everything in a value that can be read: strings, numbers, the names of fields."""
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
    """The namespaces that have items, in order, cut to `depth` labels. `*` stands for any one label."""
    found = {
        namespace[:depth]
        for namespace, items in store.spaces.items()
        if len(namespace) >= max(len(prefix), len(suffix))
        and _fits(prefix, namespace[: len(prefix)])
        and _fits(suffix, namespace[len(namespace) - len(suffix) :])
        and any(item.shown(now) for item in items.values())
    }
    return sorted(found)


def _fits(pattern: Sequence[str], labels: Sequence[str]) -> bool:
    return all(wanted in ("*", label) for wanted, label in zip(pattern, labels, strict=True))

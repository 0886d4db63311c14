"""The store: items in namespaces, each user's own."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import anyio.to_thread
import msgspec

from channels.http.endpoints.call import Call
from channels.http.endpoints.endpoint import Limit, Offset, Routes
from channels.http.runs.json_limits import storable
from core import ids
from core.events import Json
from core.user import store as items

Key = Annotated[str, msgspec.Meta(min_length=1, max_length=items.MOST_CHARACTERS)]
Labels = Annotated[list[str], msgspec.Meta(max_length=items.MOST_LABELS)]


class Item(msgspec.Struct):
    namespace: list[str]
    key: str
    value: Json
    created_at: str
    updated_at: str


class FoundItem(Item):
    """`score`: the share of the query's words that were found; null without a query."""

    score: float | None


class FoundItems(msgspec.Struct):
    items: list[FoundItem]


class Namespaces(msgspec.Struct):
    namespaces: list[list[str]]


class PutBody(msgspec.Struct):
    """`ttl`: minutes until the item is not shown any more; what it counts from is the newest put. There is no index to
    be chosen: `index` is ignored.
    """

    namespace: list[str]
    key: Key
    value: dict[str, Any]
    ttl: Annotated[float, msgspec.Meta(gt=0, le=100 * 366 * 24 * 60)] | None = None


class KeyBody(msgspec.Struct):
    namespace: list[str]
    key: Key


class SearchBody(msgspec.Struct):
    namespace_prefix: list[str] = []
    filter: dict[str, Any] | None = None
    limit: Limit = 10
    offset: Offset = 0
    query: str | None = None


class NamespacesBody(msgspec.Struct):
    """`*` in a prefix or suffix stands for any one label."""

    prefix: Labels | None = None
    suffix: Labels | None = None
    max_depth: Annotated[int, msgspec.Meta(ge=1, le=items.MOST_LABELS)] | None = None
    limit: Limit = 100
    offset: Offset = 0


ROUTES = Routes()
_ITEMS = "/store/items"


@ROUTES("PUT", _ITEMS, "store:write", errors=(409,))
async def put(call: Call, body: PutBody) -> None:
    """Store an item, or put a new value over an old one. Namespaces and keys are the user's own."""
    storable(body.value, "value", items.MOST_VALUE_BYTES)
    expires = ids.stamp(datetime.now(UTC) + timedelta(minutes=body.ttl)) if body.ttl is not None else None
    namespace = list(items.valid_namespace(body.namespace))
    await call.services.stores.put(call.user, items.ItemPut(namespace, body.key, body.value, expires))


@ROUTES("GET", _ITEMS, "store:read")
async def get(
    call: Call,
    *,
    namespace: Annotated[str, "Labels, joined by dots"],
    key: Key,
    refresh_ttl: Annotated[str, "Ignored"] = "",
) -> Item | None:
    """An item, or null if there is none. The namespace's labels are joined by dots; `refresh_ttl` is ignored."""
    store = await call.services.stores.of(call.user)
    item = store.get(items.valid_namespace(namespace.split(".")), key, ids.now())
    return _item(item) if item else None


@ROUTES("DELETE", _ITEMS, "store:write")
async def delete(call: Call, body: KeyBody) -> None:
    """Remove an item; one that is not there is fine too."""
    await call.services.stores.remove(call.user, items.valid_namespace(body.namespace), body.key)


@ROUTES("POST", f"{_ITEMS}/search", "store:read")
async def search(call: Call, body: SearchBody) -> FoundItems:
    """Find items in a namespace and below it, newest first. `filter` compares fields of the values, directly or by
    `$eq`, `$ne`, `$gt`, `$gte`, `$lt`, `$lte`. `query` finds words as parts of text and puts what has most of them
    first: there is no search by meaning. `refresh_ttl` is ignored.
    """
    prefix = items.valid_namespace(body.namespace_prefix, "namespace_prefix", least=0)
    storable(body.filter, "filter")
    fits = items.matching(body.filter or {})
    store = await call.services.stores.of(call.user)
    hits = await anyio.to_thread.run_sync(items.search, store, prefix, fits, body.query, ids.now())
    page = hits[body.offset : body.offset + body.limit]
    return FoundItems([FoundItem(**msgspec.structs.asdict(_item(hit.item)), score=hit.score) for hit in page])


@ROUTES("POST", "/store/namespaces", "store:read")
async def namespaces(call: Call, body: NamespacesBody) -> Namespaces:
    """The namespaces that have items, in order."""
    store = await call.services.stores.of(call.user)
    spaces = await anyio.to_thread.run_sync(
        items.namespaces, store, body.prefix or (), body.suffix or (), body.max_depth, ids.now()
    )
    return Namespaces([list(labels) for labels in spaces[body.offset : body.offset + body.limit]])


def _item(item: items.Item) -> Item:
    return Item(list(item.namespace), item.key, item.value, item.created_at, item.updated_at)

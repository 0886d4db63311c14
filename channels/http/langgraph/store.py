"""The store: items in namespaces, each user's own."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import anyio.to_thread
import msgspec
from aiohttp import web

from channels.http import live as alive
from channels.http.bodies import body, plain, within
from channels.http.kept import storable
from channels.http.routes import Param, Route
from core import ids
from core.errors import Invalid
from core.events import Json
from core.user import store as items

MOST_MINUTES = 100 * 366 * 24 * 60


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
    key: str
    value: dict[str, Any]
    ttl: float | None = None


class KeyBody(msgspec.Struct):
    namespace: list[str]
    key: str


class SearchBody(msgspec.Struct):
    namespace_prefix: list[str] = []
    filter: dict[str, Any] | None = None
    limit: int = 10
    offset: int = 0
    query: str | None = None


class NamespacesBody(msgspec.Struct):
    """`*` in a prefix or suffix stands for any one label."""

    prefix: list[str] | None = None
    suffix: list[str] | None = None
    max_depth: int | None = None
    limit: int = 100
    offset: int = 0


async def put(request: web.Request) -> web.Response:
    """Store an item, or put a new value over an old one. Namespaces and keys are the user's own."""
    wanted = await body(request, PutBody)
    storable(wanted.value, "value", items.MOST_VALUE_BYTES)
    item = items.ItemPut(
        namespace=list(items.checked(wanted.namespace)),
        key=_key(wanted.key),
        value=wanted.value,
        expires=_expires(wanted.ttl),
    )
    await alive.of(request).services.stores.put(alive.user(request), item)
    return web.Response(status=204)


async def get(request: web.Request) -> web.Response:
    """An item, or null if there is none. The namespace's labels are joined by dots; `refresh_ttl` is ignored."""
    namespace, key = request.query.get("namespace"), request.query.get("key")
    if not namespace or not key:
        raise Invalid("namespace and key: both are needed")
    store = await alive.of(request).services.stores.of(alive.user(request))
    found = store.get(items.checked(namespace.split(".")), _key(key), ids.now())
    return plain(_item(found) if found else None)


async def delete(request: web.Request) -> web.Response:
    """Remove an item; one that is not there is fine too."""
    wanted = await body(request, KeyBody)
    namespace, key = items.checked(wanted.namespace), _key(wanted.key)
    await alive.of(request).services.stores.remove(alive.user(request), namespace, key)
    return web.Response(status=204)


async def search(request: web.Request) -> web.Response:
    """Find items in a namespace and below it, newest first. `filter` compares fields of the values, directly or by
    `$eq`, `$ne`, `$gt`, `$gte`, `$lt`, `$lte`. `query` finds words as parts of text and puts what has most of them
    first: there is no search by meaning. `refresh_ttl` is ignored.
    """
    wanted = await body(request, SearchBody)
    limit, offset = within("limit", wanted.limit, 1, 1000), within("offset", wanted.offset, 0, 2**31)
    prefix = items.checked(wanted.namespace_prefix, "namespace_prefix", least=0)
    storable(wanted.filter, "filter")
    fits = items.matching(wanted.filter or {})
    store = await alive.of(request).services.stores.of(alive.user(request))
    found = await anyio.to_thread.run_sync(items.search, store, prefix, fits, wanted.query, ids.now())
    page = found[offset : offset + limit]
    return plain({"items": [{**_item(hit.item), "score": hit.score} for hit in page]})


async def namespaces(request: web.Request) -> web.Response:
    """The namespaces that have items, in order."""
    wanted = await body(request, NamespacesBody)
    limit, offset = within("limit", wanted.limit, 1, 1000), within("offset", wanted.offset, 0, 2**31)
    depth = None if wanted.max_depth is None else within("max_depth", wanted.max_depth, 1, items.MOST_LABELS)
    prefix, suffix = _pattern(wanted.prefix, "prefix"), _pattern(wanted.suffix, "suffix")
    store = await alive.of(request).services.stores.of(alive.user(request))
    found = await anyio.to_thread.run_sync(items.namespaces, store, prefix, suffix, depth, ids.now())
    return plain({"namespaces": found[offset : offset + limit]})


def _item(found: items.Item) -> Json:
    return {
        "namespace": found.namespace,
        "key": found.key,
        "value": found.value,
        "created_at": found.created_at,
        "updated_at": found.updated_at,
    }


def _key(key: str) -> str:
    if not 0 < len(key) <= items.MOST_CHARACTERS:
        raise Invalid(f"key: 1 to {items.MOST_CHARACTERS} characters, got {len(key)}")
    return key


def _expires(minutes: float | None) -> str | None:
    if minutes is None:
        return None
    if not 0 < minutes <= MOST_MINUTES:
        raise Invalid(f"ttl: more than 0 minutes and at most {MOST_MINUTES}, got {minutes:g}")
    return ids.stamp(datetime.now(UTC) + timedelta(minutes=minutes))


def _pattern(labels: Sequence[str] | None, where: str) -> Sequence[str]:
    if len(labels or ()) > items.MOST_LABELS:
        raise Invalid(f"{where}: at most {items.MOST_LABELS} labels, got {len(labels or ())}")
    return labels or ()


_ITEMS = "/store/items"
_NAMED = (
    Param("namespace", str, "Labels, joined by dots", required=True),
    Param("key", required=True),
    Param("refresh_ttl", str, "Ignored"),
)
ROUTES = (
    Route("PUT", _ITEMS, put, {204: None}, PutBody, errors=(409,), scope="store:write"),
    Route("GET", _ITEMS, get, {200: Item | None}, query=_NAMED, scope="store:read"),
    Route("DELETE", _ITEMS, delete, {204: None}, KeyBody, scope="store:write"),
    Route("POST", f"{_ITEMS}/search", search, {200: FoundItems}, SearchBody, scope="store:read"),
    Route("POST", "/store/namespaces", namespaces, {200: Namespaces}, NamespacesBody, scope="store:read"),
)

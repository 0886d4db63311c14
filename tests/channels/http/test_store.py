"""The store over HTTP."""

from __future__ import annotations

from typing import Any

import pytest
from langgraph_sdk import get_client

from core.identity.principal import LOCAL
from core.runtime.system import System
from core.user import store
from core.user.store import ItemPut
from tests.channels.http.conftest import Api

pytestmark = pytest.mark.anyio

NOTES = ["users", "ada", "notes"]


async def put(api: Api, key: str, value: Any, namespace: list[str] = NOTES, **more: Any) -> None:
    await api.ask("PUT", "/store/items", {"namespace": namespace, "key": key, "value": value, **more}, status=204)


async def found(api: Api, **body: Any) -> list[str]:
    return [item["key"] for item in (await api.ask("POST", "/store/items/search", body))["items"]]


@pytest.mark.parametrize("mount", ["/api", "/api/langgraph"])
async def test_with_the_sdk(url: str, mount: str) -> None:
    async with get_client(url=url + mount) as client:
        await client.store.put_item(NOTES, "a", {"n": 1})
        first = await client.store.get_item(NOTES, "a")
        assert {name: first[name] for name in ("namespace", "key", "value")} == {
            "namespace": NOTES,
            "key": "a",
            "value": {"n": 1},
        }
        await client.store.put_item(NOTES, "a", {"n": 2}, index=False, ttl=60)
        second = await client.store.get_item(NOTES, "a", refresh_ttl=True)
        assert second["value"] == {"n": 2}
        assert second["created_at"] == first["created_at"]
        assert second["updated_at"] > first["updated_at"]
        items = (await client.store.search_items(["users"], filter={"n": 2}, query="n", limit=5))["items"]
        assert [(item["key"], item.get("score")) for item in items] == [("a", 1.0)]
        spaces = await client.store.list_namespaces(prefix=["users"], max_depth=2)
        assert spaces == {"namespaces": [["users", "ada"]]}
        await client.store.delete_item(NOTES, "a")
        assert await client.store.get_item(NOTES, "a") is None
        await client.store.delete_item(NOTES, "a")
        assert await client.store.list_namespaces() == {"namespaces": []}


@pytest.mark.parametrize(
    ("filter_", "keys"),
    [
        ({}, ["c", "b", "a"]),
        ({"kind": "x"}, ["b", "a"]),
        ({"kind": "x", "n": 1}, ["a"]),
        ({"n": {"$gt": 1}}, ["b"]),
        ({"n": {"$gte": 1, "$lt": 2}}, ["a"]),
        ({"n": {"$lte": 1.0}}, ["a"]),
        ({"n": {"$ne": 1}}, ["c", "b"]),
        ({"n": {"$eq": 1}}, ["a"]),
        ({"n": True}, []),
        ({"n": {"$gt": "0"}}, ["c"]),
        ({"inner": {"deep": {"$gt": 3}}}, ["c"]),
        ({"inner": {"other": None}}, ["c"]),
        ({"missing": None}, ["c", "b", "a"]),
        ({"list": [1, 2]}, ["b"]),
    ],
)
async def test_filters(api: Api, filter_: Any, keys: list[str]) -> None:
    await put(api, "a", {"kind": "x", "n": 1})
    await put(api, "b", {"kind": "x", "n": 2, "list": [1, 2]})
    await put(api, "c", {"kind": "y", "n": "two", "inner": {"deep": 4}})
    assert await found(api, namespace_prefix=["users"], filter=filter_) == keys


async def test_words_prefixes_and_pages(api: Api) -> None:
    await put(api, "tea", {"text": "Ada likes green TEA in the morning"})
    await put(api, "coffee", {"text": "Bob likes coffee"})
    await put(api, "elsewhere", {"text": "tea"}, ["teams", "x"])
    assert await found(api, namespace_prefix=[], query="who likes Tea?") == ["tea", "elsewhere", "coffee"]
    assert await found(api, namespace_prefix=[], query="tea") == ["elsewhere", "tea"]
    assert await found(api, namespace_prefix=["users"], query="tea morning") == ["tea"]
    assert await found(api, namespace_prefix=["users"], query="nothing") == []
    assert await found(api, namespace_prefix=["users", "ad"]) == []
    assert await found(api) == ["elsewhere", "coffee", "tea"]
    assert await found(api, limit=1, offset=1) == ["coffee"]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({}, [["a", "b", "c"], ["a", "x", "c"], ["d"]]),
        ({"prefix": ["a"]}, [["a", "b", "c"], ["a", "x", "c"]]),
        ({"suffix": ["c"]}, [["a", "b", "c"], ["a", "x", "c"]]),
        ({"prefix": ["a", "*", "c"]}, [["a", "b", "c"], ["a", "x", "c"]]),
        ({"suffix": ["x", "*"]}, [["a", "x", "c"]]),
        ({"prefix": ["*", "b"], "suffix": ["c"]}, [["a", "b", "c"]]),
        ({"max_depth": 1}, [["a"], ["d"]]),
        ({"limit": 1, "offset": 2}, [["d"]]),
        ({"prefix": ["a", "b", "c", "d"]}, []),
    ],
)
async def test_namespaces(api: Api, body: Any, expected: list[list[str]]) -> None:
    for namespace in (["a", "b", "c"], ["a", "x", "c"], ["d"]):
        await put(api, "k", {}, namespace)
    assert await api.ask("POST", "/store/namespaces", body) == {"namespaces": expected}


async def test_what_is_over_is_not_shown(api: Api, system: System) -> None:
    old = ItemPut(namespace=["a"], key="old", value={}, expires="2026-01-01T00:00:00.000000+00:00")
    user = LOCAL.user
    made = await store.aggregates(system.log).decide(user, lambda _: [old], actor="http")
    assert made[0].total == 1
    assert await api.ask("GET", "/store/items?namespace=a&key=old") is None
    assert await found(api) == []
    assert await api.ask("POST", "/store/namespaces", {}) == {"namespaces": []}
    await put(api, "old", {"n": 1}, ["a"])
    item = await api.ask("GET", "/store/items?namespace=a&key=old")
    assert item["created_at"] == item["updated_at"]


@pytest.mark.parametrize(
    ("body", "place"),
    [
        ({"namespace": []}, "namespace: "),
        ({"namespace": ["a", ""]}, "namespace[1]"),
        ({"namespace": ["a.b"]}, "namespace[0]"),
        ({"namespace": ["langgraph", "x"]}, "namespace[0]"),
        ({"namespace": ["x" * 600]}, "namespace[0]"),
        ({"namespace": ["x"] * 40}, "namespace: "),
        ({"namespace": "a"}, "$.namespace"),
        ({"key": ""}, "$.key"),
        ({"key": "x" * 600}, "$.key"),
        ({"value": [1]}, "$.value"),
        ({"ttl": 0}, "$.ttl"),
        ({"ttl": 1e300}, "$.ttl"),
    ],
)
async def test_what_cannot_be_put(api: Api, body: Any, place: str) -> None:
    whole = {"namespace": ["a"], "key": "k", "value": {}, **body}
    assert place in (await api.ask("PUT", "/store/items", whole, status=422))["detail"]


async def test_values_have_limits(api: Api) -> None:
    deep: Any = {}
    for _ in range(70):
        deep = {"d": deep}
    body = {"namespace": ["a"], "key": "k", "value": deep}
    assert "value: nested" in (await api.ask("PUT", "/store/items", body, status=422))["detail"]
    wanted = {"namespace_prefix": [], "filter": deep}
    assert "filter: nested" in (await api.ask("POST", "/store/items/search", wanted, status=422))["detail"]
    await put(api, "big number", {"n": 10**40, "text": "\0é\u2028"})
    assert (await api.ask("POST", "/store/items/search", {}))["items"][0]["value"]["n"] == 10**40


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/store/items?namespace=a", None),
        ("GET", "/store/items?key=a", None),
        ("GET", "/store/items?namespace=a..b&key=k", None),
        ("POST", "/store/items/search", {"limit": 0}),
        ("POST", "/store/items/search", {"filter": {"a": {"$in": [1]}}}),
        ("POST", "/store/items/search", {"filter": {"a": {"$gt": 1, "b": 1}}}),
        ("POST", "/store/items/search", {"namespace_prefix": ["a.b"]}),
        ("POST", "/store/namespaces", {"max_depth": 0}),
        ("POST", "/store/namespaces", {"prefix": ["a"] * 100}),
        ("DELETE", "/store/items", {"namespace": [], "key": "k"}),
    ],
)
async def test_what_is_refused(api: Api, method: str, path: str, body: Any) -> None:
    assert (await api.ask(method, path, body, status=422))["code"] == "invalid"

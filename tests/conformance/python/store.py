"""Store items and their namespaces."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from tests.conformance.python.lab import Lab, case, eventually


@case
async def put_and_get(lab: Lab) -> None:
    where = [lab.mark, "people"]
    await lab.client.store.put_item(where, "ada", {"name": "Ada", "born": 1815})
    item: Any = await lab.client.store.get_item(where, "ada")
    assert (item["namespace"], item["key"], item["value"]) == (where, "ada", {"name": "Ada", "born": 1815})
    for name in ("created_at", "updated_at"):
        assert datetime.fromisoformat(item[name]).tzinfo is not None
    await lab.client.store.put_item(where, "ada", {"name": "Ada L."})
    again: Any = await lab.client.store.get_item(where, "ada")
    assert again["value"] == {"name": "Ada L."}
    assert again["created_at"] == item["created_at"]


@case
async def on_the_wire(lab: Lab) -> None:
    item = {"namespace": [lab.mark], "key": "k", "value": {"a": 1}}
    assert await lab.ask("PUT", "/store/items", item, status=204) is None
    params = {"namespace": lab.mark, "key": "k"}
    assert (await lab.ask("GET", "/store/items", params=params))["value"] == {"a": 1}
    assert await lab.ask("GET", "/store/items", params={**params, "key": "none"}) is None
    await lab.ask("DELETE", "/store/items", {"namespace": [lab.mark], "key": "k"}, status=204)
    assert await lab.ask("GET", "/store/items", params=params) is None


@case
async def delete(lab: Lab) -> None:
    await lab.client.store.put_item([lab.mark], "a", {"x": 1})
    await lab.client.store.delete_item([lab.mark], "a")
    assert await lab.client.store.get_item([lab.mark], "a") is None
    await lab.client.store.delete_item([lab.mark], "a")


async def _shelf(lab: Lab) -> None:
    for number in range(5):
        value = {"number": number, "kind": "even" if number % 2 == 0 else "odd", "text": f"item {number}"}
        await lab.client.store.put_item([lab.mark, "a" if number < 3 else "b"], f"k{number}", value)


@case
async def search(lab: Lab) -> None:
    await _shelf(lab)
    found: Any = await lab.client.store.search_items([lab.mark])
    assert {item["key"] for item in found["items"]} == {f"k{n}" for n in range(5)}
    inner = await lab.client.store.search_items([lab.mark, "a"])
    assert {item["key"] for item in inner["items"]} == {"k0", "k1", "k2"}
    even = await lab.client.store.search_items([lab.mark], filter={"kind": "even"})
    assert {item["key"] for item in even["items"]} == {"k0", "k2", "k4"}
    first = await lab.client.store.search_items([lab.mark], limit=2)
    rest = await lab.client.store.search_items([lab.mark], limit=10, offset=2)
    assert len(first["items"]) == 2
    assert [item["key"] for item in first["items"] + rest["items"]] == [item["key"] for item in found["items"]]
    assert (await lab.client.store.search_items([lab.mark + "x"]))["items"] == []


@case
async def search_by_words(lab: Lab) -> None:
    await _shelf(lab)

    async def hits() -> Any:
        return (await lab.client.store.search_items([lab.mark], query="item 3"))["items"]

    assert "k3" in [item["key"] for item in await eventually(hits)]


@case
async def namespaces(lab: Lab) -> None:
    await _shelf(lab)
    await lab.client.store.put_item([lab.mark, "b", "deep", "er"], "k", {})
    every: Any = await lab.client.store.list_namespaces(prefix=[lab.mark])
    assert sorted(every["namespaces"]) == [[lab.mark, "a"], [lab.mark, "b"], [lab.mark, "b", "deep", "er"]]
    short: Any = await lab.client.store.list_namespaces(prefix=[lab.mark], max_depth=2)
    assert sorted(short["namespaces"]) == [[lab.mark, "a"], [lab.mark, "b"]]
    ends: Any = await lab.client.store.list_namespaces(prefix=[lab.mark], suffix=["er"])
    assert ends["namespaces"] == [[lab.mark, "b", "deep", "er"]]
    one: Any = await lab.client.store.list_namespaces(prefix=[lab.mark], limit=1, offset=1)
    assert len(one["namespaces"]) == 1


@case
async def refuses(lab: Lab) -> None:
    for body in (
        {"namespace": "a", "key": "k", "value": {}},
        {"namespace": ["a"], "value": {}},
        {"namespace": ["a"], "key": "k", "value": 1},
    ):
        await lab.ask("PUT", "/store/items", body, status=422)
    await lab.ask("POST", "/store/items/search", {"namespace_prefix": [lab.mark], "limit": -1}, status=422)

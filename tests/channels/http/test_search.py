"""Threads found: every filter, order, page and excerpt; over two replicas; and nothing is loaded in vain."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from channels.http.app import serve
from channels.http.protocols.langgraph.search import _contains
from core.events import Interrupt, ModelCompleted, RunFailed, RunPaused, RunRolledBack
from core.ids import assistant_id
from core.runtime import system as core
from core.runtime.system import System
from core.thread.state import ThreadState
from core.thread.threads import Threads
from core.views import fulltext
from tests.channels.http.conftest import Api, Settings, Worker, services_of
from tests.channels.http.story import ai, human, started
from tests.support.laws import EXAMPLES
from tests.support.nats import Nats, eventually

pytestmark = pytest.mark.anyio


async def found(api: Api, **body: Any) -> list[str]:
    return [thread["thread_id"] for thread in await api.ask("POST", "/threads/search", {"limit": 100, **body})]


async def say(api: Api, thread: str, *texts: str) -> None:
    messages = [human(f"{thread}-{number}", text) for number, text in enumerate(texts)]
    await api.ask("POST", "/threads", {"thread_id": thread})
    await api.ask("POST", f"/threads/{thread}/state", {"values": {"messages": messages}})


@pytest.mark.parametrize(
    "metadata",
    [{"a.b": 1}, {"🧦 x": "y"}, {"a": {"c": [1, {"b": None}], "b": 2.5}}, {"a": []}, {"'; --": "\"'"}, {"a" * 9000: 1}],
)
async def test_whatever_metadata_are_created_with_finds_them(api: Api, metadata: Any) -> None:
    await api.ask("POST", "/threads", {"thread_id": "one", "metadata": metadata})
    await api.ask("POST", "/threads", {"thread_id": "other", "metadata": {"a": {"c": 1}}})
    turned = json.loads(json.dumps(metadata, sort_keys=True))
    assert await found(api, metadata=turned) == ["one"]
    assert await api.ask("POST", "/threads/count", {"metadata": turned}) == 1


async def test_metadata_pages_and_order(api: Api) -> None:
    for number in range(5):
        await api.ask(
            "POST", "/threads", {"thread_id": f"t-{number}", "metadata": {"odd": number % 2 == 1, "n": number}}
        )
    assert await found(api, metadata={"odd": True}) == ["t-3", "t-1"]
    ask = {"limit": 2, "offset": 1, "sort_by": "thread_id", "sort_order": "asc", "select": ["thread_id", "metadata"]}
    async with api.session.post(f"{api.url}/api/threads/search", json=ask) as response:
        assert response.headers["X-Pagination-Total"] == "5"
        assert response.headers["X-Pagination-Next"] == "3"
        assert await response.json() == [
            {"thread_id": "t-1", "metadata": {"odd": True, "n": 1}},
            {"thread_id": "t-2", "metadata": {"odd": False, "n": 2}},
        ]
    async with api.session.post(f"{api.url}/api/threads/search", json={**ask, "offset": 3}) as response:
        assert "X-Pagination-Next" not in response.headers
    assert await api.ask("POST", "/threads/count", {}) == 5
    assert await api.ask("POST", "/threads/count", {"metadata": {"odd": False}}) == 3
    assert await found(api, ids=["t-4", "nope"], status="idle") == ["t-4"]
    assert await found(api, ids=[]) == []
    await api.ask("DELETE", "/threads/t-2", status=204)
    assert await api.ask("POST", "/threads/count") == 4


async def test_the_state_moves_a_thread_only_when_it_changes(api: Api, worker: Worker) -> None:
    for name in ("a", "b", "c"):
        await say(api, name, "hi")
    await api.ask("PATCH", "/threads/a", {"metadata": {"x": 1}})
    assert await found(api, sort_by="updated_at") == ["a", "c", "b"]
    assert await found(api, sort_by="state_updated_at") == ["c", "b", "a"]
    run = await api.run("b")
    assert await found(api, sort_by="state_updated_at") == ["c", "b", "a"]
    await worker.start("b", run)
    assert await found(api, sort_by="state_updated_at") == ["b", "c", "a"]
    for thread in await api.ask("POST", "/threads/search", {}):
        assert thread == await api.ask("GET", f"/threads/{thread['thread_id']}")


async def test_hits_are_the_threads(api: Api, worker: Worker) -> None:
    """With values, interrupts and errors; Agent Chat UI shows the first message of each."""
    failed, paused, done = [await api.thread() for _ in range(3)]
    await worker.write(failed, await api.run(failed), started(), RunFailed(error="E", text="broke"))
    asked = RunPaused(next=["tools"], interrupts=[Interrupt("i", "sure?")])
    await worker.write(paused, await api.run(paused), started(), asked)
    await worker.perform(done, await api.run(done), "answer")
    hits = {hit["thread_id"]: hit for hit in await api.ask("POST", "/threads/search", {})}
    for name in (failed, paused, done):
        assert hits[name] == await api.ask("GET", f"/threads/{name}")
    assert hits[done]["values"]["messages"][0]["content"] == "hi"
    assert hits[done]["metadata"] == {"graph_id": "lead_agent", "assistant_id": assistant_id("lead_agent")}
    for status, name in (("error", failed), ("interrupted", paused), ("idle", done)):
        assert await found(api, status=status) == [name]
    assert await found(api, metadata={"assistant_id": assistant_id("lead_agent"), "graph_id": "lead_agent"}) != []
    assert await found(api, metadata={"assistant_id": "another"}) == []


async def test_threads_of_the_default_assistant_are_not_those_of_others(api: Api, worker: Worker) -> None:
    mine = (await api.ask("POST", "/assistants", {"graph_id": "lead_agent", "name": "Mine"}))["assistant_id"]
    default = assistant_id("lead_agent")
    for name, body in (("new", None), ("default", {}), ("mine", {"assistant_id": mine})):
        await api.ask("POST", "/threads", {"thread_id": name})
        if body is not None:
            await worker.perform(name, await api.run(name, **body))
    await api.ask("POST", "/threads", {"thread_id": "made", "assistant_id": mine})
    assert await found(api, metadata={"assistant_id": mine}, sort_by="thread_id") == ["mine", "made"]
    assert await found(api, metadata={"assistant_id": default}, sort_by="thread_id") == ["new", "default"]
    both = {"assistant_id": default, "graph_id": "lead_agent"}
    assert await api.ask("POST", "/threads/count", {"metadata": both}) == 2


async def test_a_thread_that_cannot_be_shown_takes_no_other_along(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "bad", "c"):
        await say(api, name, "hi")
    shown = {name: await api.ask("GET", f"/threads/{name}") for name in ("a", "c")}
    load = Threads.load

    async def broken(self: Threads, thread_id: str, **options: Any) -> ThreadState:
        if thread_id == "bad":
            raise TypeError("a fold with a defect")
        return await load(self, thread_id, **options)

    monkeypatch.setattr(Threads, "load", broken)
    hits = {hit["thread_id"]: hit for hit in await api.ask("POST", "/threads/search", {})}
    assert {name: hits[name] for name in shown} == shown
    assert (hits["bad"]["status"], hits["bad"]["values"]) == ("idle", {})
    assert hits["bad"]["error"] == {
        "error": "Unreadable",
        "message": "The thread's state cannot be read: its events do not fit together",
    }


async def test_only_what_is_selected_is_loaded(api: Api, worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    idle, failed = [await api.thread() for _ in range(2)]
    await worker.perform(idle, await api.run(idle))
    await worker.write(failed, await api.run(failed), started(), RunFailed(error="E", text="broke"))
    loaded: list[str] = []
    load = Threads.load

    async def counted(self: Threads, thread_id: str, **options: Any) -> ThreadState:
        loaded.append(thread_id)
        return await load(self, thread_id, **options)

    monkeypatch.setattr(Threads, "load", counted)

    async def ask(**body: Any) -> set[str]:
        loaded.clear()
        await api.ask("POST", "/threads/search", body)
        return set(loaded)

    assert await ask(select=["thread_id", "updated_at", "metadata", "status", "created_at"]) == set()
    assert await ask(select=["interrupts", "error"]) == {failed}
    assert await ask(select=["values"]) == await ask() == {idle, failed}
    assert await ask(select=["status"], extract={"a": "metadata.a"}) == set()
    assert await ask(select=["status"], extract={"a": "values.title"}) == {idle, failed}
    await api.ask("POST", "/threads/count", {"query": "hi"})
    hits = await api.ask("POST", "/threads/search", {"select": ["interrupts", "error"]})
    assert [hit["error"] for hit in hits] == [{"error": "E", "message": "broke"}, None]


# ── values ──────────────────────────────────────────────────────────────────────────────────────────────────────────

VALUES: dict[str, Any] = {
    "text": {"title": "Otters"},
    "long": {"title": "x" * 300},
    "longer": {"title": "x" * 300 + "y"},
    "null": {"title": None},
    "true": {"title": True},
    "one": {"title": 1},
    "list": {"title": ["a", {"b": [1, 2]}]},
    "object": {"title": {"a": {"b": 1}, "c": []}},
    "two": {"title": "Voles", "note": 5},
}
WANTED: list[tuple[Any, list[str]]] = [
    *[(values, [name]) for name, values in VALUES.items()],
    ({"title": {"a": {}}}, ["object"]),
    ({"title": {"a": {"b": 1}}}, ["object"]),
    ({"title": {"a": {"b": 2}}}, []),
    ({"title": {"b": 1}}, []),
    ({"title": ["a"]}, ["list"]),
    ({"title": [{"b": [2]}]}, ["list"]),
    ({"title": []}, ["list"]),
    ({"title": {}}, ["object"]),
    ({"title": "otters"}, []),
    ({"title": 0}, []),
    ({"none": None}, []),
    ({"title": "Voles", "note": 6}, []),
    ({"note": 5}, ["two"]),
    ({"note": 5.0}, ["two"]),
]


async def test_values(api: Api) -> None:
    for name, values in VALUES.items():
        await api.ask("POST", "/threads", {"thread_id": name})
        await api.ask("POST", f"/threads/{name}/state", {"values": values})
    for wanted, names in WANTED:
        assert (wanted, await found(api, values=wanted)) == (wanted, names)
        assert await api.ask("POST", "/threads/count", {"values": wanted}) == len(names)
    assert await found(api, values={"title": "Otters"}, metadata={"a": 1}) == []


async def test_values_are_those_of_the_head(api: Api, worker: Worker) -> None:
    """What was overwritten, rolled back, or is on another branch does not count; and pages are exact."""
    await api.ask("POST", "/threads", {"thread_id": "a"})
    first = await api.ask("POST", "/threads/a/state", {"values": {"title": "old"}})
    await api.ask("POST", "/threads/a/state", {"values": {"title": "new"}})
    assert (await found(api, values={"title": "old"}), await found(api, values={"title": "new"})) == ([], ["a"])
    await api.ask("POST", "/threads/a/state", {"values": {"other": 1}, "checkpoint": first["checkpoint"]})
    assert (await found(api, values={"title": "old"}), await found(api, values={"title": "new"})) == (["a"], [])
    run = await api.run("a", input={"title": "run", "messages": ["x"]})
    await worker.start("a", run)
    assert await found(api, values={"title": "run"}) == ["a"]
    await worker.write("a", run, RunRolledBack())
    assert (await found(api, values={"title": "run"}), await found(api, values={"title": "old"})) == ([], ["a"])
    for number in range(12):
        await api.ask("POST", "/threads", {"thread_id": f"t{number}"})
        await api.ask("POST", f"/threads/t{number}/state", {"values": {"kind": "x"}})
        if number % 2:
            await api.ask("POST", f"/threads/t{number}/state", {"values": {"kind": "y"}})
    ask = {"values": {"kind": "x"}, "limit": 2, "offset": 2, "sort_by": "created_at", "sort_order": "asc"}
    async with api.session.post(f"{api.url}/api/threads/search", json=ask) as response:
        assert [thread["thread_id"] for thread in await response.json()] == ["t4", "t6"]
        assert (response.headers["X-Pagination-Total"], response.headers["X-Pagination-Next"]) == ("6", "4")
    assert await api.ask("POST", "/threads/count", {"values": {"kind": "x"}}) == 6


JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["", "a"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b"]), inner, max_size=2),
    max_leaves=6,
)


@settings(max_examples=4 * EXAMPLES, deadline=None)
@given(JSON, JSON)
def test_containing(one: Any, other: Any) -> None:
    assert _contains(one, one)
    if _contains(one, other) and not isinstance(one, list | dict):
        assert one == other
    if isinstance(one, dict):
        assert _contains({**one, "more": other}, one)
    if isinstance(one, list):
        assert _contains([other, *one], one)


# ── words ───────────────────────────────────────────────────────────────────────────────────────────────────────────

TEXTS = {
    "otters": "Two otters, holding hands; they don't let go.",
    "cafe": "Ein Café in Zürich",
    "chinese": "今天天气很好，我们去公园吧",
    "japanese": "データベースを検索する",
    "korean": "데이터베이스에서 검색합니다",
    "thai": "สวัสดีครับ ยินดีต้อนรับ",
    "code": "def otter(): return {'a': 1}  # C++",
    "mixed": "GPT模型的price",
}
WORDS: list[tuple[str, list[str]]] = [
    ("otters", ["otters"]),
    ("otter", ["code", "otters"]),
    ("otter ", ["code"]),
    ("OTTERS hands", ["otters"]),
    ("hands otters", ["otters"]),
    ("otters café", []),
    ("cafe zurich", ["cafe"]),
    ("天气", ["chinese"]),
    ("天很", []),
    ("公园 天气", ["chinese"]),
    ("検索", ["japanese"]),
    ("ベース", ["japanese"]),
    ("검색", ["korean"]),
    ("ยินดี", ["thai"]),
    ("模型", ["mixed"]),
    ("gpt模型", ["mixed"]),
    ("price", ["mixed"]),
    ("don't", ["otters"]),
    ('"otters', ["otters"]),
    ("otters*", ["otters"]),
    ("otters AND", []),
    ("otters OR cafe", []),
    ("(otters", ["otters"]),
    ("text:otters", []),
    ("otters\0hands", ["otters"]),
    ("c++ ", ["code"]),
    ("***", []),
    ("' \" ; --", []),
    ("NEAR(otters hands)", []),
    ("^otters", ["otters"]),
    ("{text}", []),
    ("天\x1f气", ["chinese"]),
    ("x " * 400, []),
]


async def test_words(api: Api) -> None:
    for name, text in TEXTS.items():
        await say(api, name, text)
    for query, names in WORDS:
        assert (query, sorted(await found(api, query=query))) == (query, names)
        assert await api.ask("POST", "/threads/count", {"query": query}) == len(names)
    assert len(await found(api, query="")) == len(TEXTS)


@settings(max_examples=4 * EXAMPLES, deadline=None)
@given(st.text(max_size=40))
def test_no_query_is_a_syntax_error(query: str) -> None:
    with closing(sqlite3.connect(":memory:")) as db:
        db.execute("CREATE VIRTUAL TABLE t USING fts5(text, tokenize = 'unicode61 remove_diacritics 2')")
        db.execute("INSERT INTO t VALUES ('some words')")
        if words := fulltext.expression(query):
            db.execute("SELECT * FROM t WHERE t MATCH ?", (words,)).fetchall()


async def test_words_come_and_go_with_the_messages(api: Api, worker: Worker) -> None:
    path = "/threads/a/state"
    await say(api, "a", "apples", "pears")
    await api.ask("POST", path, {"values": {"title": "Fruit salad"}})
    assert [await found(api, query=word) for word in ("apples", "pears", "salad")] == [["a"]] * 3
    await api.ask("POST", path, {"values": {"messages": [human("a-0", "plums")]}})
    await api.ask("POST", path, {"values": {"messages": [{"type": "remove", "id": "a-1"}], "title": "Fruit"}})
    assert [await found(api, query=word) for word in ("apples", "pears", "salad")] == [[]] * 3
    assert [await found(api, query=word) for word in ("plums", "fruit")] == [["a"]] * 2
    run = await api.run("a", input={"messages": [{"role": "user", "content": "cherries", "id": "a-0"}]})
    await worker.write("a", run, started(), ModelCompleted(message=ai("m", "grapes")))
    assert [await found(api, query=word) for word in ("plums", "cherries", "grapes")] == [[], ["a"], ["a"]]
    await worker.write("a", run, RunRolledBack())
    assert [await found(api, query=word) for word in ("plums", "cherries", "grapes")] == [["a"], [], []]
    run = await api.run("a", input={"messages": ["never begun"]})
    assert await found(api, query="never begun") == ["a"]
    await worker.write("a", run, RunRolledBack())
    assert await found(api, query="never begun") == []
    everything = [{"type": "remove", "id": "__remove_all__"}, human("a-9", "figs")]
    await api.ask("POST", path, {"values": {"messages": everything}})
    assert [await found(api, query=word) for word in ("plums", "figs", "fruit")] == [[], ["a"], ["a"]]
    await api.ask("DELETE", "/threads/a", status=204)
    assert [await found(api, query=word) for word in ("figs", "fruit")] == [[], []]


async def test_highlights(api: Api) -> None:
    await say(api, "a", "An otter. " + "Filler. " * 50, "今天天气很好", "No such animal", *["otter again"] * 5)
    await api.ask("POST", "/threads/a/state", {"values": {"title": "About otters"}})
    [hit] = await api.ask("POST", "/threads/search", {"query": "otter"})
    assert hit["highlights"] == [
        {"message_id": None, "text": "About otters"},
        {"message_id": "a-7", "text": "otter again"},
        {"message_id": "a-6", "text": "otter again"},
    ]
    [hit] = await api.ask("POST", "/threads/search", {"query": "天气", "select": ["highlights"]})
    assert hit == {"highlights": [{"message_id": "a-1", "text": "今天天气很好"}]}
    [hit] = await api.ask("POST", "/threads/search", {"query": "An otter.", "select": ["thread_id"]})
    assert hit == {"thread_id": "a"}


# ── excerpts ────────────────────────────────────────────────────────────────────────────────────────────────────────

PATHS: list[tuple[str, Any]] = [
    ("values.messages[-1].content", "pears"),
    ("values.messages[0].type", "human"),
    ("values.messages[0].additional_kwargs", {}),
    ("values.messages[9].content", None),
    ("values.messages.content", None),
    ("values.title", "T"),
    ("values.title.x", None),
    ("values[0]", None),
    ("metadata.a", {"b": [1, {"c": 2}]}),
    ("metadata.a.b[1].c", 2),
    ("metadata.a.b[-2]", 1),
    ("status", "idle"),
    ("nothing", None),
]


async def test_extract(api: Api) -> None:
    await say(api, "a", "apples", "pears")
    await api.ask("POST", "/threads/a/state", {"values": {"title": "T"}})
    await api.ask("PATCH", "/threads/a", {"metadata": {"a": {"b": [1, {"c": 2}]}}})
    for path, value in PATHS:
        body = {"select": ["thread_id"], "extract": {"x": path}}
        assert (path, await api.ask("POST", "/threads/search", body)) == (
            path,
            [{"thread_id": "a", "extracted": {"x": value}}],
        )
    [hit] = await api.ask("POST", "/threads/search", {"extract": {"x": "status", "y": "values.title"}})
    assert hit["extracted"] == {"x": "idle", "y": "T"}


@pytest.mark.parametrize(
    "ask",
    [
        {"limit": 0},
        {"limit": 1001},
        {"offset": -1},
        {"sort_by": "colour"},
        {"sort_order": "up"},
        {"status": "odd"},
        {"metadata": {"": 1}},
        {"values": {"messages": [{"content": "x"}]}},
        {"ids": ["x"] * 10_001},
        {"query": "x" * 1001},
        {"query": 5},
        {"extract": {f"x{number}": "status" for number in range(11)}},
        *(
            {"extract": {"x": path}}
            for path in ("", ".", "a..b", "a[", "a[x]", "a[1", "[0]", ".a", "a.", "a[1]b]", "a]")
        ),
    ],
)
async def test_search_refuses(api: Api, ask: Any) -> None:
    await api.ask("POST", "/threads/search", ask, status=422)


# ── replicas ────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_another_replica_finds_it_at_once(
    api: Api, config: Settings, worker: Worker, system: System, nats: Nats, tmp_path: Path
) -> None:
    endpoint = nats.endpoint(system.bus.names.prefix)
    async with (
        core.start(endpoint, tmp_path / "other.db", lease_seconds=5, slots=4) as second,
        serve(services_of(second, config), "127.0.0.1", 0) as port,
        aiohttp.ClientSession() as session,
    ):
        await eventually(lambda: second.views.search(user="nobody"))
        other = Api(session, f"http://127.0.0.1:{port}")
        for number in range(1, 30):
            writer, reader = (api, other) if number % 2 else (other, api)
            name = f"t{number}"
            await writer.ask("POST", "/threads", {"thread_id": name, "metadata": {"n": number}})
            assert await found(reader, metadata={"n": number}) == [name]
            await writer.ask("POST", f"/threads/{name}/state", {"values": {"title": f"title{number}x"}})
            assert await found(reader, query=f"title{number}x") == [name]
            assert await reader.ask("POST", "/threads/count", {"values": {"title": f"title{number}x"}}) == 1
        await api.ask("DELETE", "/threads/t1", status=204)
        assert await found(other, ids=["t1"]) == []
        assert await other.ask("POST", "/threads/count") == 28


async def test_the_search_rows_can_be_rebuilt(api: Api) -> None:
    await api.thread()
    assert await api.ask("POST", "/threads/count") == 1
    assert await api.ask("POST", "/projections/rebuild", status=202)

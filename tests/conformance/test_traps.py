"""The traps that clients of this protocol have fallen into elsewhere, each a test: §9 of the protocol's description."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from tests.conformance.python.lab import AGENT, Frame, Lab, contents, eventually, lab, untimed
from tests.conformance.python.streams import said
from tests.conformance.site import Site, site
from tests.support.nats import Node, running

ANSWER = "Hello to you, too."
PAGE = "http://page.example"


@pytest.fixture
async def there(server: Site) -> AsyncIterator[Lab]:
    async with lab(server.urls, server.models) as given:
        yield given


def asking(given: Lab, model: str = "hello", text: str = "Hi", **more: Any) -> dict[str, Any]:
    return {"assistant_id": AGENT, **given.asked(model, text), **more}


async def streamed(given: Lab, thread: str, model: str = "hello", **more: Any) -> list[Frame]:
    return await given.frames("POST", f"/threads/{thread}/runs/stream", asking(given, model, **more))


def of(frames: list[Frame], event: str) -> list[Any]:
    return [frame.data for frame in frames if frame.event == event]


def run_of(frames: list[Frame]) -> str:
    return str(frames[0].data["run_id"])


async def raw_of(given: Lab, method: str, path: str, body: Any = None, **headers: str) -> bytes:
    arguments: dict[str, Any] = {} if body is None else {"json": body}
    response = await given.http.request(method, path, headers=headers, **arguments)
    assert response.status_code == 200, response.text
    return response.content


# ── 1 ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("model", ["hello", "works", "breaks", "asks"])
async def test_01_the_end_is_visible_before_the_last_byte(there: Lab, model: str) -> None:
    """The status of the run, its last checkpoint, the thread: all final when the last event is read, for every end."""
    for _ in range(5):
        thread, last = await there.thread(), None
        path = f"/threads/{thread}/runs/stream"
        run = ""
        async for frame in there.frames_of("POST", path, asking(there, model)):
            run = run or frame.data["run_id"]
            last = frame.data if frame.event == "values" else last
            if frame.event == "end":  # and not only when the connection closes
                status = await there.status(thread, run)
                history = await there.client.threads.get_history(thread, limit=1)
                found = await there.client.threads.get(thread)
        assert status == ("error" if model == "breaks" else "success")
        assert found["status"] == {"breaks": "error", "asks": "interrupted"}.get(model, "idle")
        assert last is not None
        assert untimed(history[0]["values"]["messages"]) == untimed(last["messages"])


async def test_01_of_a_cancelled_run(there: Lab) -> None:
    thread = await there.thread()
    run = (await there.client.runs.create(thread, AGENT, **there.asked("gated")))["run_id"]
    statuses: list[str] = []

    async def watch() -> None:
        async for frame in there.frames_of("GET", f"/threads/{thread}/runs/{run}/stream", last="-1"):
            if frame.event == "end":
                statuses.append(await there.status(thread, run))

    watching = asyncio.create_task(watch())
    await there.reached()
    await there.client.runs.cancel(thread, run)
    await watching
    assert statuses == ["interrupted"]


# ── 2 ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_02_one_message_has_one_id(there: Lab) -> None:
    thread, mine = await there.thread(), str(uuid.uuid4())
    body = asking(there, "works", stream_mode=["values", "updates", "messages-tuple"])
    body["input"]["messages"][0]["id"] = mine
    frames = await there.frames("POST", f"/threads/{thread}/runs/stream", body)
    final = of(frames, "values")[-1]["messages"]
    ids = [message["id"] for message in final]
    assert ids[0] == mine
    assert all(ids)
    assert len(set(ids)) == len(ids)
    assert {message["id"] for message, _ in of(frames, "messages")} == set(ids[1:])
    updated = [m["id"] for update in of(frames, "updates") for node in update.values() for m in node["messages"]]
    assert updated == ids[1:]
    for values in of(frames, "values"):
        assert [message["id"] for message in values["messages"]] == ids[: len(values["messages"])]


# ── 3 ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.long(keep=4)
@pytest.mark.parametrize("cursor", ["-1", "0", "1795198184224-0", "x", "9" * 200, "99999999999-0-0", "é", "{}"])
@pytest.mark.parametrize("over", [True, False], ids=["over", "at work"])
async def test_03_cursors_that_mean_nothing_here(there: Lab, cursor: str, over: bool) -> None:
    thread = await there.thread()
    run = (await there.client.runs.create(thread, AGENT, **there.asked("hello" if over else "gated")))["run_id"]
    await (there.ended(thread, run) if over else there.reached())
    await there.release()
    headers = [(b"Last-Event-ID", cursor.encode())]
    async with there.http.stream("GET", f"/threads/{thread}/runs/{run}/stream", headers=headers) as response:
        assert response.status_code == 200
        raw = (await response.aread()).decode()
    assert "event: metadata" in raw
    assert "event: end" in raw


# ── 4 ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_04_ids_are_unique_and_the_stream_is_kept(there: Lab) -> None:
    """Also in a burst, and over many runs of a thread."""
    thread = await there.thread()
    seen: list[str] = []
    streams = []
    for model in ("tokens-50", "works"):
        frames = await streamed(there, thread, model, stream_mode=["values", "messages-tuple", "updates", "tasks"])
        seen += [frame.id for frame in frames]
        streams.append(frames)
    assert all(seen)
    assert len(set(seen)) == len(seen)
    for frames in streams:
        path = f"/threads/{thread}/runs/{run_of(frames)}/stream"
        again = await there.frames("GET", path, last="-1")
        assert said(again) == said(frames)
        assert [one for one in again if one.event != "messages"] == [one for one in frames if one.event != "messages"]


async def test_04_a_slow_reader_gets_the_end(there: Lab) -> None:
    """One that reads nothing until long after the run has ended, over a socket that holds little."""
    thread = await there.thread()
    run = (
        await there.client.runs.create(
            thread, AGENT, stream_mode=["messages-tuple", "values"], **there.asked("tokens-2000-delay-0.1")
        )
    )["run_id"]
    where = urlsplit(there.urls[0])
    with socket.socket() as wire:
        wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        wire.connect((where.hostname, where.port))
        fields = f"Host: {where.netloc}\r\nLast-Event-ID: -1\r\nConnection: close"
        wire.sendall(f"GET /api/threads/{thread}/runs/{run}/stream HTTP/1.1\r\n{fields}\r\n\r\n".encode())
        assert await there.ended(thread, run) == "success"
        wire.settimeout(60)
        raw = await asyncio.to_thread(_drained, wire)
    assert b"event: end" in raw[-200:]
    final = (await there.texts(thread))[-1]
    assert (
        "".join(json.loads(data)[0]["content"] for data in re.findall(rb"event: messages\ndata: (.*)\n", raw)) == final
    )


def _drained(wire: socket.socket) -> bytes:
    found = bytearray()
    while piece := wire.recv(65536):
        found += piece
    # The chunks' own lines; the tests' texts have none that look like them.
    return re.sub(rb"\r\n[0-9a-f]+\r\n", b"", bytes(found))


# ── 5 ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("mount", ["/api", "/api/langgraph"])
@pytest.mark.parametrize("entry", ["/runs", "/runs/stream", "/runs/wait"])
async def test_05_where_things_are(there: Lab, mount: str, entry: str) -> None:
    """Paths without the mount; nothing after the run's id; and pages of other origins may read them."""
    thread = await there.thread()
    url = f"{there.urls[0]}{mount}/threads/{thread}{entry}"
    response = await there.http.post(url, json=asking(there), headers={"Origin": PAGE})
    assert response.status_code == 200
    run = str(response.headers["content-location"]).rpartition("/")[2]
    uuid.UUID(run)
    assert response.headers["content-location"] == f"/threads/{thread}/runs/{run}"
    if entry != "/runs":
        assert (
            response.headers["location"] == f"/threads/{thread}/runs/{run}/{'stream' if 'stream' in entry else 'join'}"
        )
    exposed = response.headers["access-control-expose-headers"].lower()
    assert {"content-location", "location"} <= {name.strip() for name in exposed.split(",")}
    assert response.headers["access-control-allow-origin"] == PAGE
    assert (await there.http.get(f"{there.urls[0]}{mount}/threads/{thread}/runs/{run}")).status_code == 200


async def test_05_pages_learn_of_further_hits(there: Lab) -> None:
    response = await there.http.post("/threads/search", json={"limit": 1}, headers={"Origin": PAGE})
    exposed = response.headers["access-control-expose-headers"].lower()
    assert "x-pagination-total" in exposed
    assert "x-pagination-next" in exposed


# ── 6 ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_06_nothing_is_200_and_empty(there: Lab) -> None:
    """`response.json()` of an empty body breaks the JavaScript client."""
    thread, _ = await there.said()
    [run] = await there.client.runs.list(thread)
    run_id, item = run["run_id"], {"namespace": [there.mark], "key": "k"}
    minimal = {"Prefer": "return=minimal"}
    calls: list[tuple[str, str, Any, dict[str, str]]] = [
        ("PATCH", f"/threads/{thread}", {"metadata": {"a": 1}}, minimal),
        ("POST", f"/threads/{thread}/state", {"values": {"title": "T"}}, {}),
        ("PUT", "/store/items", {**item, "value": {}}, {}),
        ("GET", f"/store/items?namespace={there.mark}&key=none", None, {}),
        ("DELETE", "/store/items", item, {}),
        ("GET", f"/threads/{thread}/runs/{run_id}/join", None, {}),
        ("DELETE", f"/threads/{thread}/runs/{run_id}", None, {}),
        ("POST", f"/threads/{thread}/copy", None, {}),
        ("POST", "/threads/prune", {"thread_ids": []}, {}),
        ("DELETE", f"/threads/{thread}", None, {}),
        ("POST", "/runs/cancel", {"status": "pending"}, {}),
    ]
    for method, path, body, headers in calls:
        arguments: dict[str, Any] = {} if body is None else {"json": body}
        response = await there.http.request(method, path, headers=headers, **arguments)
        assert response.status_code in (200, 202, 204), (method, path, response.text)
        assert bool(response.content) == (response.status_code == 200), (method, path)


# ── 7 ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("entry", ["/runs", "/runs/stream", "/runs/wait"])
async def test_07_the_same_request_again(there: Lab, entry: str) -> None:
    """Proxies and older clients send a POST again: a message of the same id is one message."""
    thread, body = await there.thread(), asking(there, multitask_strategy="enqueue")
    body["input"]["messages"][0]["id"] = "mine"
    for _ in range(2):
        response = await there.http.post(f"/threads/{thread}{entry}", json=body)
        assert response.status_code == 200
    for run in await there.client.runs.list(thread):
        assert await there.ended(thread, run["run_id"]) == "success"
    assert (await there.texts(thread)).count("Hi") == 1


def test_07_a_5xx_means_that_there_is_no_run(tmp_path: Path) -> None:
    """A client that gets one asks again, four times. Here the bus goes away while runs are asked for, and returns."""
    with running(tmp_path / "bus") as nats, site(tmp_path, nats={"url": nats.url}) as its:
        asyncio.run(_asked_without_a_bus(its, nats.nodes[0]))


async def _asked_without_a_bus(its: Site, bus: Node) -> None:
    async with lab(its.urls, its.models) as given:
        thread, _ = await given.said()
        bus.stop()
        body = asking(given, multitask_strategy="enqueue")
        entries = [f"/threads/{thread}{entry}" for entry in ("/runs", "/runs/stream", "/runs/wait")] * 2
        requests = [asyncio.create_task(given.http.post(entry, json=body, timeout=60)) for entry in entries]
        await asyncio.sleep(0.5)
        bus.launch()
        bus.wait_ready()
        answers = [response.status_code for response in await asyncio.gather(*requests)]
        assert set(answers) <= {200, 503}
        assert len(await given.client.runs.list(thread)) == 1 + answers.count(200)


# ── 8 ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "query",
    [
        "stream_mode=values&stream_mode=updates",
        "stream_mode=%5B%22values%22%2C%22updates%22%5D",
        "stream_mode=values&stream_mode=%5B%22updates%22%5D",
    ],
)
async def test_08_lists_in_both_encodings(there: Lab, query: str) -> None:
    thread = await there.thread()
    frames = await streamed(there, thread, stream_mode=["messages-tuple"])
    path = f"/threads/{thread}/runs/{run_of(frames)}/stream?{query}"
    assert {frame.event for frame in await there.frames("GET", path, last="-1")} == {
        "metadata",
        "values",
        "updates",
        "end",
    }


@pytest.mark.parametrize(("word", "waits"), [("1", True), ("true", True), ("0", False), ("false", False), ("", False)])
async def test_08_booleans_in_both_spellings(there: Lab, word: str, waits: bool) -> None:
    thread = await there.thread()
    run = (await there.client.runs.create(thread, AGENT, **there.asked("gated")))["run_id"]
    await there.reached()
    response = await there.http.post(f"/threads/{thread}/runs/{run}/cancel?wait={word}")
    assert (response.status_code == 202) != waits
    assert await there.ended(thread, run) == "interrupted"


# ── 9 ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("raise_error", [None, True, False])
async def test_09_a_failure_is_200(there: Lab, raise_error: bool | None) -> None:
    thread = await there.thread()
    more: dict[str, Any] = {} if raise_error is None else {"raise_error": raise_error}
    answer = await there.ask("POST", f"/threads/{thread}/runs/wait", asking(there, "breaks", **more))
    assert set(answer) == {"__error__"}
    assert all(isinstance(answer["__error__"][name], str) for name in ("error", "message"))


# ── 10 ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_10_after_a_cancel_comes_a_new_turn(there: Lab) -> None:
    thread = await there.thread()
    run = (await there.client.runs.create(thread, AGENT, **there.asked("gated")))["run_id"]
    await there.reached()
    await there.client.runs.cancel(thread, run, wait=True)
    found: Any = await there.client.threads.get(thread)
    assert found["interrupts"] == {}
    await there.said(thread=thread, text="Next")
    assert (await there.texts(thread))[-2:] == ["Next", ANSWER]
    assert (await there.client.threads.get(thread))["status"] == "idle"


# ── 11 ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_11_cancelled_in_the_middle_of_a_tool(there: Lab) -> None:
    """Every tool call has an answer then, so that a provider takes the conversation."""
    thread = await there.thread()
    run = (await there.client.runs.create(thread, AGENT, **there.asked("holds")))["run_id"]

    async def held() -> bool:
        return len(await there.texts(thread)) == 2

    await eventually(held)
    await there.client.runs.cancel(thread, run, wait=True)
    values: Any = (await there.client.threads.get_state(thread))["values"]
    calls = [call["id"] for message in values["messages"] for call in message.get("tool_calls", [])]
    answered = [message["tool_call_id"] for message in values["messages"] if message["type"] == "tool"]
    assert calls
    assert sorted(calls) == sorted(answered)
    _, values = await there.said(thread=thread)
    assert contents(values)[-1] == ANSWER


async def test_11_what_was_said_is_kept(there: Lab) -> None:
    """What people have seen of an answer is in the state after a cancel."""
    thread = await there.thread()
    run = (await there.client.runs.create(thread, AGENT, stream_mode=["messages-tuple"], **there.asked("gated")))[
        "run_id"
    ]
    seen: list[Frame] = []
    async for frame in there.frames_of("GET", f"/threads/{thread}/runs/{run}/stream", last="-1"):
        seen.append(frame)
        if "".join(said(seen).values()) == "one two ":
            await there.client.runs.cancel(thread, run)
    assert (await there.texts(thread))[1] == "one two "
    assert said(seen) == {(await there.client.threads.get_state(thread))["values"]["messages"][1]["id"]: "one two "}


# ── 12 ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_12_data_is_one_line(there: Lab) -> None:
    thread = await there.thread()
    body = asking(there, "separators", text="x\u2028y\r\nz", stream_mode=["values", "messages-tuple", "updates"])
    raw = await raw_of(there, "POST", f"/threads/{thread}/runs/stream", body)
    for found in ("\u2028", "\u2029", "\u0085"):
        assert found.encode() not in raw
    assert b"\r" not in raw.replace(b"\r\n", b"")
    text = raw.decode()
    for block in re.split(r"\r?\n\r?\n", text.strip()):
        assert len(block.splitlines()) <= 3, block
    messages = [json.loads(data) for data in re.findall(r"event: values\r?\ndata: (.*?)\r?\n", text)][-1]["messages"]
    assert messages[0]["content"].startswith("x\u2028y\r\nz")
    assert messages[1]["content"] == "a\u2028b\u2029c\u0085d\r\ne 😀 f"
    chunks = [json.loads(data)[0]["content"] for data in re.findall(r"event: messages\r?\ndata: (.*?)\r?\n", text)]
    assert "".join(chunks) == messages[1]["content"]


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
async def test_12_what_is_not_json(there: Lab, number: str) -> None:
    """It is refused, or at least nothing that comes out has it."""
    thread = await there.thread()
    raw = f'{{"values": {{"title": "T", "x": {number}}}, "metadata": {{"x": {number}}}}}'.encode()
    for method, path in (("POST", f"/threads/{thread}/state"), ("PATCH", f"/threads/{thread}")):
        response = await there.http.request(method, path, content=raw, headers={"Content-Type": "application/json"})
        assert response.status_code in (200, 422)
    for path in (f"/threads/{thread}", f"/threads/{thread}/state"):
        text = (await there.http.get(path)).text
        assert not re.search(r"\b(NaN|Infinity)\b", text)


# ── 13 ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_13_heartbeats_are_comments_and_no_id_is_empty(there: Lab) -> None:
    thread = await there.thread()
    raw = b""
    body = asking(there, "gated", stream_mode=["values", "messages-tuple"])
    async with there.http.stream("POST", f"/threads/{thread}/runs/stream", json=body) as response:
        async for piece in response.aiter_bytes():
            raw += piece
            if raw.count(b": heartbeat\n\n") == 3:
                await there.release()
    blocks = [block for block in raw.decode().split("\n\n") if block]
    beats = [block for block in blocks if block.startswith(":")]
    assert set(beats) == {": heartbeat"}
    for block in blocks:
        lines = block.split("\n")
        assert "id: " not in lines
        assert "id:" not in lines
        if block not in beats:
            assert [line.split(":")[0] for line in lines] in (["event", "data", "id"], ["event", "data"])


async def test_13_a_wait_is_kept_alive_by_white_space(there: Lab) -> None:
    thread = await there.thread()
    raw = b""
    async with there.http.stream("POST", f"/threads/{thread}/runs/wait", json=asking(there, "gated")) as response:
        async for piece in response.aiter_bytes():
            raw += piece
            if raw == b"\n\n\n":
                await there.release()
    assert raw.startswith(b"\n\n\n")
    assert json.loads(raw)["messages"]


# ── 14 ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("subgraphs", [True, False])
async def test_14_a_join_is_as_the_run_was_asked_for(there: Lab, subgraphs: bool) -> None:
    """`joinStream` says neither the modes nor whether subgraphs are wanted."""
    thread = await there.thread()
    modes = ["values", "updates", "messages-tuple"]
    frames = await streamed(there, thread, "works", stream_mode=modes, stream_subgraphs=subgraphs)
    again = await there.frames("GET", f"/threads/{thread}/runs/{run_of(frames)}/stream", last="-1")
    assert list(dict.fromkeys(frame.event for frame in again)) == list(dict.fromkeys(frame.event for frame in frames))
    assert subgraphs or not [frame for frame in again if "|" in frame.event]


# ── 15 ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("model", ["works", "breaks-late", "asks", "endless", "gated"])
async def test_15_the_last_values_are_the_state(there: Lab, model: str) -> None:
    """However the run ends: a page goes on showing them."""
    thread = await there.thread()
    asked = there.asked(model, stream_mode=["values"], config={"recursion_limit": 6})
    run = (await there.client.runs.create(thread, AGENT, **asked))["run_id"]
    if model == "gated":
        await there.reached()
        await there.client.runs.cancel(thread, run)
    path = f"/threads/{thread}/runs/{run}/stream"
    live = await there.frames("GET", path, last="-1")
    again = await there.frames("GET", path, last="-1")
    state: Any = await there.client.threads.get_state(thread)
    for frames in (live, again):
        assert untimed(of(frames, "values")[-1]["messages"]) == untimed(state["values"]["messages"])
    assert live == again


# ── 16 ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_16_a_question_is_everywhere(there: Lab) -> None:
    thread = await there.thread()
    frames = await streamed(there, thread, "asks", stream_mode=["values", "updates"])
    told = [frame for frame in frames if frame.data and "__interrupt__" in frame.data]
    assert told
    identity = told[-1].data["__interrupt__"][0]["id"]
    state = await there.ask("GET", f"/threads/{thread}/state")
    [found] = await there.ask("POST", "/threads/search", {"ids": [thread]})
    places = {
        "tasks": [one for task in state["tasks"] for one in task["interrupts"]],
        "state": state["interrupts"],
        "history": [
            one
            for task in (await there.ask("POST", f"/threads/{thread}/history", {"limit": 1}))[0]["tasks"]
            for one in task["interrupts"]
        ],
        "thread": [
            one for asked in (await there.ask("GET", f"/threads/{thread}"))["interrupts"].values() for one in asked
        ],
        "search": [one for asked in found["interrupts"].values() for one in asked],
    }
    expected = [(identity, {"question": "proceed?"})]
    assert {name: [(one["id"], one["value"]) for one in asked] for name, asked in places.items()} == dict.fromkeys(
        places, expected
    )


# ── 17 ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("entry", ["/runs", "/runs/stream", "/runs/wait"])
@pytest.mark.parametrize(
    ("strategy", "first"), [("reject", "running"), ("interrupt", "interrupted"), ("rollback", None)]
)
async def test_17_strategies_hold_for_every_way_in(there: Lab, entry: str, strategy: str, first: str | None) -> None:
    thread = await there.thread()
    run = (await there.client.runs.create(thread, AGENT, **there.asked("gated")))["run_id"]
    await there.reached()
    body = asking(there, text="Second", multitask_strategy=strategy)
    response = await there.http.post(f"/threads/{thread}{entry}", json=body)
    assert response.status_code == (409 if strategy == "reject" else 200)
    if strategy != "reject":
        newest = (await there.client.runs.list(thread))[0]["run_id"]
        assert await there.ended(thread, newest) == "success"
    found = await there.http.get(f"/threads/{thread}/runs/{run}")
    assert (found.json()["status"] if first else found.status_code) == (first or 404)
    await there.release()


# ── 18 ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_18_cancel_many_by_a_thread_and_a_status(there: Lab) -> None:
    thread = await there.thread()
    run = (await there.client.runs.create(thread, AGENT, **there.asked("gated")))["run_id"]
    await there.reached()
    problem = await there.ask("POST", "/runs/cancel", {"thread_id": thread, "status": "running"}, status=422)
    assert problem["detail"]
    assert await there.status(thread, run) == "running"
    await there.release()


# ── 19, 20 ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_19_open_streams_are_in_nobodys_way(there: Lab) -> None:
    thread = await there.thread()
    run = (await there.client.runs.create(thread, AGENT, **there.asked("gated")))["run_id"]
    await there.reached()
    async with _open(there, f"/threads/{thread}/runs/{run}/stream", 100):
        elsewhere, _ = await there.said()
        for path in (f"/threads/{thread}", f"/threads/{thread}/state", f"/threads/{elsewhere}/runs"):
            await there.ask("GET", path)
        await there.ask("POST", "/threads/search", {"limit": 1})
    await there.release()


@asynccontextmanager
async def _open(given: Lab, path: str, count: int) -> AsyncIterator[None]:
    """Streams that are open and read from."""
    limits = httpx.Limits(max_connections=count)
    async with httpx.AsyncClient(base_url=given.http.base_url, limits=limits, timeout=20) as client:
        answers = [client.build_request("GET", path, headers={"Last-Event-ID": "-1"}) for _ in range(count)]
        responses = await asyncio.gather(*(client.send(request, stream=True) for request in answers))
        assert {response.status_code for response in responses} == {200}
        yield
        for response in responses:
            await response.aclose()


async def test_20_one_user_does_not_wait_for_another(there: Lab) -> None:
    """Many runs that take their time, then one that does not."""
    slow = [await there.thread() for _ in range(30)]
    runs = [(await there.client.runs.create(thread, AGENT, **there.asked("gated")))["run_id"] for thread in slow]
    await there.said()
    assert {await there.status(thread, run) for thread, run in zip(slow, runs, strict=True)} <= {"pending", "running"}
    await there.release()
    assert {await there.ended(thread, run) for thread, run in zip(slow, runs, strict=True)} == {"success"}


# ── 21 ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_21_every_node_that_ran_has_an_update(there: Lab) -> None:
    thread = await there.thread()
    frames = await streamed(there, thread, "works", stream_mode=["updates", "tasks"])
    ran = [task["name"] for task in of(frames, "tasks") if "result" in task]
    assert [node for update in of(frames, "updates") for node in update] == ran


# ── 22 ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("entry", ["/runs/stream", "/runs/wait"])
async def test_22_the_thread_is_free_before_the_answer_ends(there: Lab, entry: str) -> None:
    thread = await there.thread()
    for _ in range(10):
        response = await there.http.post(f"/threads/{thread}{entry}", json=asking(there, multitask_strategy="reject"))
        assert response.status_code == 200, response.text


async def test_22_at_the_end_event_already(there: Lab) -> None:
    thread = await there.thread()
    for _ in range(5):
        async for frame in there.frames_of("POST", f"/threads/{thread}/runs/stream", asking(there)):
            if frame.event == "end":
                body = asking(there, multitask_strategy="reject")
                await there.ask("POST", f"/threads/{thread}/runs/wait", body)


# ── and one of our own ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def young(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A server whose log has just begun."""
    with site(tmp_path_factory.mktemp("young")) as started:
        yield started


async def test_checkpoint_ids_sort_by_time(young: Site) -> None:
    """`useStream` compares them as strings to find the branch to show; so do people's scripts."""
    async with lab(young.urls, young.models) as given:
        thread = await given.thread()
        for number in range(12):
            await given.client.threads.update_state(thread, {"title": str(number)})
        history = await given.client.threads.get_history(thread, limit=100)
    ids = [str(state["checkpoint"]["checkpoint_id"]) for state in history]
    assert ids == sorted(ids, reverse=True)
    assert len(ids) == 12

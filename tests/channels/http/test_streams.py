"""Streams on the wire: live, late, resumed, slow, left."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import pytest
from aiohttp import web

from channels.http.app import Services, serve
from channels.http.server import live
from core.events import ModelCompleted, RunCancelled, RunCompleted, RunFailed, ToolCompleted, ToolRequested, thread
from core.ids import uuid7
from core.runs.previews import Progress
from core.runtime import system as core
from core.runtime.system import System
from tests.channels.http.conftest import Api, Settings, Worker, services_of
from tests.channels.http.story import ai, answer, call, started
from tests.support.nats import Nats, eventually, read

pytestmark = pytest.mark.anyio

MODES = ["values", "messages-tuple", "updates", "custom"]
FROM_THE_BEGINNING = "Host: localhost\r\nLast-Event-ID: -1\r\n\r\n"
ASK = {"input": {"messages": [{"role": "user", "content": "hi", "id": "h1"}]}, "stream_mode": MODES}


def text_of(events: Sequence[tuple[str, Any, str]]) -> str:
    return "".join(d[0]["content"] for e, d, _ in events if e == "messages" and d[0]["type"] == "AIMessageChunk")


async def say(worker: Worker, run: str, message: str, text: str, size: int = 2) -> None:
    """Show a text as it is being made."""
    previewer = worker.system.pump.message(run, message, after=worker.newest[run])
    for begin in range(0, len(text), size):
        await previewer.add("text", text[begin : begin + size])
        await previewer.flush()


async def test_live(api: Api, system: System, worker: Worker) -> None:
    thread_id = await api.thread()
    async with api.stream("POST", f"/threads/{thread_id}/runs/stream", ASK) as stream:
        headers = stream.response.headers
        assert headers["Content-Type"].startswith("text/event-stream")
        assert headers["Cache-Control"] == "no-store, no-transform"
        [(name, data, identity)] = await stream.until("metadata")
        run = data["run_id"]
        assert headers["Content-Location"] == f"/threads/{thread_id}/runs/{run}"
        assert headers["Location"] == f"/threads/{thread_id}/runs/{run}/stream"
        assert (name, data["thread_id"], identity.split("-")[1:]) == ("metadata", thread_id, ["0", "0"])
        await worker.start(thread_id, run)
        [(_, values, _)] = await stream.until("values")
        assert [m["id"] for m in values["messages"]] == ["h1"]
        await say(worker, run, "m1", "Hello wor")
        live_part = await stream.until("messages")
        await worker.write(thread_id, run, ModelCompleted(message=ai("m1", "Hello world")))
        live_part += await stream.until("values")
        assert text_of(live_part) == "Hello world"
        await worker.write(thread_id, run, RunCompleted())
        [(event, _, identity)] = await stream.rest()
        assert event == "end"
    for path in ("stream", "join"):
        last = {"Last-Event-ID": identity}
        async with api.stream("GET", f"/threads/{thread_id}/runs/{run}/{path}", **last) as stream:
            assert stream.response.status == 204, "an EventSource would come back for ever"
            assert stream.response.headers["Content-Type"] == "text/event-stream", "for clients that look at it"
    last["Accept"] = "*/*"  # as the SDK in JavaScript, which takes an answer without a body for an error
    async with api.stream("GET", f"/threads/{thread_id}/runs/{run}/stream", **last) as stream:
        assert (stream.response.status, await stream.rest()) == (200, [])


@pytest.mark.parametrize("slot", [0, 15, 16, 9999])
async def test_204_only_after_the_last_frame(api: Api, system: System, worker: Worker, slot: int) -> None:
    thread_id, run, seen = await record(api, system, worker)
    ended = int(seen[-1][2].split("-")[0])
    async with api.stream(
        "GET", f"/threads/{thread_id}/runs/{run}/stream", **{"Last-Event-ID": f"{ended}-0-{slot}"}
    ) as stream:
        assert stream.response.status == (204 if slot >= 16 else 200)


async def test_no_204_for_a_place_in_another_run(api: Api, system: System, worker: Worker) -> None:
    thread_id, _, seen = await record(api, system, worker)
    second = await api.run(thread_id, stream_mode=MODES)
    await worker.perform(thread_id, second)
    async with api.stream(
        "GET", f"/threads/{thread_id}/runs/{second}/stream", **{"Last-Event-ID": seen[-1][2]}
    ) as stream:
        assert stream.response.status == 200
        assert (await stream.rest())[-1][0] == "end"


async def test_both_mounts_and_an_unknown_thread_that_is_to_be_made(api: Api, worker: Worker) -> None:
    path = "/langgraph/threads/new-thread/runs/stream"
    async with api.stream("POST", path, {**ASK, "if_not_exists": "create"}) as stream:
        [(_, data, _)] = await stream.until("metadata")
        await worker.perform("new-thread", data["run_id"])
        assert [e for e, _, _ in await stream.rest()][-1] == "end"
    assert (await api.ask("GET", "/threads/new-thread"))["metadata"]["graph_id"] == "lead_agent"


async def test_the_status_is_final_and_the_thread_free_before_the_end(api: Api, worker: Worker) -> None:
    thread_id = await api.thread()
    async with api.stream("POST", f"/threads/{thread_id}/runs/stream", ASK) as stream:
        [(_, data, _)] = await stream.until("metadata")
        await worker.perform(thread_id, data["run_id"])
        await stream.until("end")
        assert (await api.ask("GET", f"/threads/{thread_id}/runs/{data['run_id']}"))["status"] == "success"
        await api.run(thread_id, multitask_strategy="reject")


async def record(api: Api, system: System, worker: Worker) -> tuple[str, str, list[tuple[str, Any, str]]]:
    """A run with tools, as one client saw it live."""
    thread_id = await api.thread()
    async with api.stream("POST", f"/threads/{thread_id}/runs/stream", ASK) as stream:
        seen = await stream.until("metadata")
        run = seen[0][1]["run_id"]
        await worker.start(thread_id, run)
        await say(worker, run, "m1", "Looking around")
        seen += await stream.until("messages")
        await worker.write(
            thread_id,
            run,
            ModelCompleted(message=ai("m1", "Looking around", call("c1", "ls", path="/"))),
            ToolRequested(call_id="c1", name="ls", effect="pure"),
        )
        await system.pump.progress(run, Progress(call_id="c1", name="ls", text="…"))
        seen += await stream.until("custom")
        await worker.write(thread_id, run, ToolCompleted(call_id="c1", message=answer("c1", "ls", "a")))
        await say(worker, run, "m2", "There is a")
        seen += await stream.until("messages")
        await worker.write(thread_id, run, ModelCompleted(message=ai("m2", "There is a.")), RunCompleted())
        seen += await stream.rest()
    return thread_id, run, seen


async def test_resume_at_every_frame(api: Api, system: System, worker: Worker) -> None:
    thread_id, run, seen = await record(api, system, worker)
    facts = [one for one in seen if one[2].split("-")[1:2] == ["0"]]
    assert [e for e, _, _ in facts if e != "messages"] == [
        "metadata", "values", "updates", "values", "updates", "values", "updates", "values", "end",
    ]  # fmt: skip
    for place, (_, _, identity) in enumerate(seen):
        if not identity:
            continue
        async with api.stream(
            "GET", f"/threads/{thread_id}/runs/{run}/stream", **{"Last-Event-ID": identity}
        ) as stream:
            assert stream.response.status == (204 if seen[place][0] == "end" else 200)
            rest = await stream.rest()
        left = [one for one in seen[place + 1 :] if one in facts]
        assert [one for one in rest if one[2].split("-")[1] == "0"] == left, identity
        assert text_of(seen[: place + 1]) + text_of(rest) == "Looking aroundThere is a."


@pytest.mark.parametrize("last", ["-1", "0", "garbage", "99999999-0-0", "1-2-3"])
async def test_unknown_ids_begin_at_the_beginning(api: Api, system: System, worker: Worker, last: str) -> None:
    thread_id, run, seen = await record(api, system, worker)
    for method in ("GET", "POST"):
        async with api.stream(method, f"/threads/{thread_id}/runs/{run}/stream", **{"Last-Event-ID": last}) as stream:
            rest = await stream.rest()
        assert rest[0] == seen[0]
        assert text_of(rest) == text_of(seen)
        assert [e for e, _, _ in rest].count("metadata") == 1
        assert rest[-1] == seen[-1]


async def test_without_an_id_a_finished_run_ends_at_once(api: Api, system: System, worker: Worker) -> None:
    thread_id, run, _ = await record(api, system, worker)
    async with api.stream("GET", f"/threads/{thread_id}/runs/{run}/stream") as stream:
        assert [e for e, _, _ in await stream.rest()] == ["end"]


async def test_late_join_shows_the_open_message_from_its_beginning(api: Api, system: System, worker: Worker) -> None:
    thread_id = await api.thread()
    run = await api.run(thread_id, stream_mode=MODES)
    await worker.start(thread_id, run)
    await say(worker, run, "m1", "Hello wor")
    await system.bus.nc.flush()
    async with api.stream("GET", f"/threads/{thread_id}/runs/{run}/stream") as stream:
        seen: list[Any] = []
        while text_of(seen) != "Hello wor":
            seen += await stream.until("messages")
        await worker.finish(thread_id, run, "Hello world")
        seen += await stream.rest()
    assert {e for e, _, _ in seen} == {"messages", "updates", "values", "end"}


async def test_late_join_without_a_preview_stream(api: Api, system: System, worker: Worker) -> None:
    thread_id = await api.thread()
    run = await api.run(thread_id, stream_mode=MODES)
    await worker.start(thread_id, run)
    await system.bus.api(f"STREAM.DELETE.{system.bus.names.stream('tok')}")
    async with api.stream("GET", f"/threads/{thread_id}/runs/{run}/stream", **{"Last-Event-ID": "-1"}) as stream:
        seen = await stream.until("values")
        await worker.finish(thread_id, run)
        assert text_of(seen + await stream.rest()) == "Hello"


async def test_many_cuts_of_a_live_run_give_the_text_once(api: Api, system: System, worker: Worker) -> None:
    """A client that loses its connection again and again, while the text comes and previews get lost."""
    text = "".join(random.Random(1).choices("abcdefg hij", k=400))
    thread_id = await api.thread()
    run = await api.run(thread_id, stream_mode=MODES)
    seen: list[tuple[str, Any, str]] = []
    last = "-1"

    async def work() -> None:
        await worker.start(thread_id, run)
        await say(worker, run, "m1", text[:300], size=3)
        await worker.write(thread_id, run, ModelCompleted(message=ai("m1", text)), RunCompleted())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(work)
        dice = random.Random(2)
        while not seen or seen[-1][0] != "end":
            path = f"/threads/{thread_id}/runs/{run}/stream"
            async with api.stream("GET", path, **{"Last-Event-ID": last}) as stream:
                for _ in range(dice.randint(1, 20)):
                    one = await stream.next()
                    if one is None:
                        break
                    seen.append(one)
                    last = one[2] or last
    assert text_of(seen) == text
    assert [e for e, _, _ in seen if e != "messages"] == ["metadata", "values", "updates", "values", "end"]


async def test_failure(api: Api, worker: Worker) -> None:
    thread_id = await api.thread()
    async with api.stream("POST", f"/threads/{thread_id}/runs/stream", ASK) as stream:
        run = (await stream.until("metadata"))[0][1]["run_id"]
        await worker.write(thread_id, run, started(), RunFailed(error="RateLimitError", text="slow down"))
        *_, error, end = await stream.rest()
    assert error[:2] == ("error", {"error": "RateLimitError", "message": "slow down", "name": "RateLimitError"})
    assert end[:2] == ("end", None)


async def test_heartbeats_go_on(api: Api, worker: Worker) -> None:
    thread_id = await api.thread()
    async with api.stream("POST", f"/threads/{thread_id}/runs/stream", ASK) as stream:
        run = (await stream.until("metadata"))[0][1]["run_id"]
        await stream.hear(beats=4)
        await worker.perform(thread_id, run)
        await stream.rest()


@pytest.mark.parametrize(("setting", "expected"), [("cancel", "interrupt"), ("continue", None)])
@pytest.mark.parametrize("kind", ["stream", "wait"])
async def test_on_disconnect(api: Api, worker: Worker, setting: str, expected: str | None, kind: str) -> None:
    thread_id = await api.thread()
    ask = {**ASK, "on_disconnect": setting}
    async with api.session.post(f"{api.url}/api/threads/{thread_id}/runs/{kind}", json=ask) as response:
        await response.content.readany()
        run = await worker.requested(thread_id)
        response.close()
    if expected:
        assert await worker.cancelled(thread_id) == expected
    else:
        await anyio.sleep(0.3)
        assert (await worker.requested(thread_id)).cancel is None
    assert run.id == (await worker.requested(thread_id)).id


async def test_a_reader_that_leaves_cancels_only_if_it_says_so(api: Api, worker: Worker) -> None:
    thread_id = await api.thread()
    run = await api.run(thread_id)
    async with api.stream("GET", f"/threads/{thread_id}/runs/{run}/stream?cancel_on_disconnect=1"):
        pass
    assert await worker.cancelled(thread_id) == "interrupt"


async def test_a_slow_client_loses_nothing(api: Api, url: str, worker: Worker) -> None:
    """More than socket and buffers hold, sent while nobody reads."""
    thread_id = await api.thread()
    run = await api.run(thread_id, stream_mode=["updates", "messages-tuple"])
    port = int(url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port)) as raw:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        raw.sendall(f"GET /api/threads/{thread_id}/runs/{run}/stream HTTP/1.1\r\n{FROM_THE_BEGINNING}".encode())
        await worker.start(thread_id, run)
        for number in range(150):
            message = ai(f"m{number}", "x" * 20_000, call(f"c{number}", "t"))
            done = ToolCompleted(call_id=f"c{number}", message=answer(f"c{number}", "t", "ok"))
            await worker.write(thread_id, run, ModelCompleted(message=message), done)
        await worker.write(thread_id, run, RunCompleted())
        raw.settimeout(60)
        received = await asyncio.to_thread(_read_to_end, raw)
    assert received.count(b"event: updates") == 300
    assert b"event: end" in received


def _read_to_end(raw: socket.socket) -> bytes:
    received = b""
    while not received.endswith(b"0\r\n\r\n"):
        data = raw.recv(65536)
        if not data:
            break
        received += data
    return received


async def test_a_client_that_never_reads_is_disconnected_and_can_resume(
    api: Api, url: str, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "STALLED_SECONDS", 0.3)
    thread_id = await api.thread()
    run = await api.run(thread_id, stream_mode=["values"])
    with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2]))) as raw:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        raw.sendall(f"GET /api/threads/{thread_id}/runs/{run}/stream HTTP/1.1\r\n{FROM_THE_BEGINNING}".encode())
        await worker.start(thread_id, run)
        for number in range(30):
            message = ai(f"m{number}", "x" * 40_000, call(f"c{number}", "t"))
            done = ToolCompleted(call_id=f"c{number}", message=answer(f"c{number}", "t", "ok"))
            await worker.write(thread_id, run, ModelCompleted(message=message), done)
        await anyio.sleep(1)
        raw.settimeout(60)
        with suppress(ConnectionResetError):
            assert b"event: end" not in await asyncio.to_thread(_read_to_end, raw)
    monkeypatch.setattr(live, "STALLED_SECONDS", 60)  # who reads on a busy machine is only slow
    await worker.write(thread_id, run, RunCompleted())
    async with api.stream("GET", f"/threads/{thread_id}/runs/{run}/stream", **{"Last-Event-ID": "-1"}) as stream:
        assert (await stream.rest())[-1][0] == "end"


async def test_a_server_that_stops_neither_ends_nor_cancels_the_run(
    services: Services, config: Settings, worker: Worker, api: Api
) -> None:
    thread_id = await api.thread()
    cleanup = AsyncExitStack()
    async with serve(services, "127.0.0.1", 0) as port:
        other = Api(api.session, f"http://127.0.0.1:{port}")
        path, ask = f"/threads/{thread_id}/runs/stream", {**ASK, "on_disconnect": "cancel"}
        stream = await cleanup.enter_async_context(other.stream("POST", path, ask))
        run = (await stream.until("metadata"))[0][1]["run_id"]
    with pytest.raises(aiohttp.ClientError):
        await stream.until("end")
    await cleanup.aclose()
    assert (await worker.requested(thread_id)).cancel is None
    await worker.perform(thread_id, run)
    async with api.stream("GET", f"/threads/{thread_id}/runs/{run}/stream", **{"Last-Event-ID": "-1"}) as again:
        assert (await again.rest())[-1][0] == "end"


async def test_a_stream_that_ends_with_its_server_ends_with_a_whole_frame(
    services: Services, worker: Worker, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also for a client that has more to read than its socket holds: it knows where to go on."""
    write, requests = live.Outlet.write, list[web.Request]()

    async def recorded(outlet: live.Outlet, data: bytes) -> None:
        requests.append(outlet._request)
        await write(outlet, data)

    monkeypatch.setattr(live.Outlet, "write", recorded)
    thread_id = await api.thread()
    run = await api.run(thread_id, stream_mode=["updates"])
    with socket.socket() as raw:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        raw.settimeout(60)
        async with serve(services, "127.0.0.1", 0) as port:
            raw.connect(("127.0.0.1", port))
            raw.sendall(f"GET /api/threads/{thread_id}/runs/{run}/stream HTTP/1.1\r\n{FROM_THE_BEGINNING}".encode())
            await worker.start(thread_id, run)

            async def one_more() -> bool:
                message = ai(uuid7(), "x" * 20_000)
                await worker.write(thread_id, run, ModelCompleted(message=message))
                transport = requests[-1].transport if requests else None
                return isinstance(transport, asyncio.WriteTransport) and transport.get_write_buffer_size() > 0

            await eventually(one_more)
        received = await asyncio.to_thread(_read_to_end, raw)
    assert b"event: updates" in received
    assert b"event: end" not in received
    assert received.endswith(b"\n\n\r\n"), received[-200:]


async def test_action_cancels_first(api: Api, worker: Worker) -> None:
    thread_id = await api.thread()
    run = await api.run(thread_id)
    await worker.start(thread_id, run)
    async with api.stream("POST", f"/threads/{thread_id}/runs/{run}/stream?action=interrupt") as stream:
        assert (await worker.requested(thread_id)).cancel == "interrupt"
        await worker.write(thread_id, run, RunCancelled())
        assert [e for e, _, _ in await stream.rest()] == ["end"]


async def test_an_enqueued_run_waits_its_turn(api: Api, worker: Worker) -> None:
    thread_id = await api.thread()
    first = await api.run(thread_id)
    await worker.start(thread_id, first)
    ask = {**ASK, "multitask_strategy": "enqueue", "stream_mode": "values"}
    async with api.stream("POST", f"/threads/{thread_id}/runs/stream", ask) as stream:
        second = (await stream.until("metadata"))[0][1]["run_id"]
        await worker.finish(thread_id, first, "one")
        await worker.perform(thread_id, second, "two")
        values = [data for event, data, _ in await stream.rest() if event == "values"]
    assert [m["content"] for m in values[-1]["messages"]] == ["hi", "one", "hi", "two"]
    assert len(values) == 2


async def test_the_log_itself(api: Api, system: System, worker: Worker) -> None:
    thread_id, _, _ = await record(api, system, worker)
    records = await read(system.log, thread(thread_id))
    listed = await api.ask("GET", f"/threads/{thread_id}/log?after={records[1].seq}")
    assert [(one["seq"], one["type"]) for one in listed] == [(r.seq, r.type) for r in records[2:]]
    async with api.stream(
        "GET", f"/threads/{thread_id}/log?follow=1", **{"Last-Event-ID": str(records[2].seq)}
    ) as stream:
        for one in records[3:]:
            event, data, identity = await stream.next() or ("", {}, "")
            assert (event, identity, data["id"]) == (one.type, str(one.seq), one.id)
        await system.intake.annotate(thread_id, {"a": 1})
        last = (await stream.until("thread.annotated"))[-1]
        assert last[1]["metadata"] == {"a": 1}
    async with api.stream("GET", f"/threads/{thread_id}/log", Accept="text/event-stream") as stream:
        assert len(await stream.rest()) == len(records) + 1


async def test_any_replica_streams_resumes_and_cancels(
    nats: Nats, system: System, config: Settings, api: Api, worker: Worker, tmp_path: Path
) -> None:
    """The run is asked for at one process, and watched, resumed and stopped at another."""
    endpoint = nats.endpoint(system.bus.names.prefix)
    async with (
        core.start(endpoint, tmp_path / "other.db", lease_seconds=5, slots=4) as second,
        serve(services_of(second, config), "127.0.0.1", 0) as port,
    ):
        await eventually(lambda: second.views.search(user="nobody"))
        other = Api(api.session, f"http://127.0.0.1:{port}")
        thread_id = await api.thread()
        run = await api.run(thread_id, stream_mode=MODES)
        path = f"/threads/{thread_id}/runs/{run}"
        async with other.stream("GET", f"{path}/stream", **{"Last-Event-ID": "-1"}) as stream:
            await worker.start(thread_id, run)
            seen = await stream.until("values")
            await say(worker, run, "m1", "Hello wor")
            seen += await stream.until("messages")
        await other.ask("POST", f"{path}/cancel", status=202)
        assert await worker.cancelled(thread_id) == "interrupt"
        await worker.write(thread_id, run, ModelCompleted(message=ai("m1", "Hello world")), RunCancelled())
        async with other.stream("GET", f"{path}/stream", **{"Last-Event-ID": seen[-1][2]}) as stream:
            seen += await stream.rest()
        assert text_of(seen) == "Hello world"
        assert (await other.ask("GET", path))["status"] == "interrupted"


async def test_the_checkpoint_before_the_first_input_is_announced(api: Api, worker: Worker) -> None:
    """Every parent that a stream names was announced before, and nothing twice, from wherever it is read."""
    thread = await api.thread()
    runs = [await api.run(thread, stream_mode=["checkpoints", "debug"])]
    await worker.perform(thread, runs[0])
    [root] = [s for s in await api.ask("GET", f"/threads/{thread}/history") if s["parent_checkpoint"] is None]
    runs.append(await api.run(thread, stream_mode=["checkpoints", "debug"], checkpoint_id=root["checkpoint_id"]))
    await worker.perform(thread, runs[1])
    announced: list[str] = []
    for run in runs:
        async with api.stream("GET", f"/threads/{thread}/runs/{run}/stream", **{"Last-Event-ID": "-1"}) as stream:
            frames = await stream.rest()
        assert len({frame[2] for frame in frames}) == len(frames)
        shown = [data for event, data, _ in frames if event == "checkpoints"]
        assert shown == [
            data["payload"] for event, data, _ in frames if event == "debug" and data["type"] == "checkpoint"
        ]
        for one in shown:
            assert one["parent_config"] is None or one["parent_config"]["configurable"]["checkpoint_id"] in announced
            announced.append(one["config"]["configurable"]["checkpoint_id"])
        for index, frame in enumerate(frames):
            async with api.stream(
                "GET", f"/threads/{thread}/runs/{run}/stream", **{"Last-Event-ID": frame[2]}
            ) as stream:
                assert await stream.rest() == frames[index + 1 :]
    assert announced.count(root["checkpoint_id"]) == 1
    assert announced[0] == root["checkpoint_id"]
    async with api.stream("POST", f"/threads/{thread}/stream/events", {"channels": ["checkpoints"]}) as stream:
        told = [one[1]["params"]["data"] for one in [await stream.next() for _ in announced] if one is not None]
    assert [one["id"] for one in told] == announced
    assert [one.get("parent_id") for one in told][:2] == [None, root["checkpoint_id"]]

"""The routes of the thread-centric protocol on the wire: commands, server-sent events, WebSockets."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import anyio
import pytest

from channels.http.protocols.langgraph_events import feed
from channels.http.protocols.langgraph_events.tape import Tape
from channels.http.protocols.langgraph_events.wire import CHANNELS, place
from core.events import (
    Interrupt,
    ModelCompleted,
    RunCancelled,
    RunCompleted,
    RunPaused,
    ToolCompleted,
    ToolRequested,
)
from core.ids import uuid7
from core.runs.previews import Pump
from core.runtime.system import System
from tests.channels.http.conftest import Api, Stream, Worker
from tests.channels.http.story import ai, answer, call, pieces

pytestmark = pytest.mark.anyio

INPUT: dict[str, Any] = {"messages": [{"role": "user", "content": "hi", "id": "h1"}]}
TEXT = "Where the river bends, an old heron waits; it has all the time there is."
ALL: dict[str, Any] = {"channels": list(CHANNELS)}


async def command(api: Api, thread: str, method: str, params: Any = None, *, status: int = 200) -> Any:
    return await api.ask(
        "POST", f"/threads/{thread}/commands", {"id": 7, "method": method, "params": params or {}}, status=status
    )


async def begun(api: Api, worker: Worker, thread: str | None = None, **params: Any) -> tuple[str, str]:
    """A run that a worker is at."""
    thread = thread or uuid7()
    answer = await command(api, thread, "run.start", {"assistant_id": "lead_agent", "input": INPUT, **params})
    assert answer["type"] == "success", answer
    await worker.start(thread, answer["result"]["run_id"])
    return thread, answer["result"]["run_id"]


def events(api: Api, thread: str, **body: Any) -> Stream:
    return api.stream("POST", f"/threads/{thread}/stream/events", body or ALL)


async def until(stream: Stream, phase: str) -> list[dict[str, Any]]:
    """The events up to an end of a run."""
    found = []
    while one := await stream.next():
        assert one[0] == one[1]["method"]
        assert one[2] == (str(one[1]["seq"]) if "seq" in one[1] else "")
        found.append(one[1])
        if one[1]["method"] == "lifecycle" and one[1]["params"]["data"]["event"] == phase:
            return found
    raise AssertionError(f"ended without {phase}: {found}")


async def show(worker: Worker, run: str, event: ModelCompleted, size: int = 3, upto: int | None = None) -> None:
    pump = Pump(worker.system.bus)
    for preview in pieces(event, size, worker.newest[run])[:upto]:
        await pump.publish(run, preview)
    await worker.system.bus.nc.flush()


# ── commands ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_run_start_makes_the_thread(api: Api, worker: Worker) -> None:
    thread = uuid7()
    params = {"assistant_id": "lead_agent", "input": INPUT, "metadata": {"a": 1}, "config": {"recursion_limit": 7}}
    answer = await command(api, thread, "run.start", params)
    run = await worker.requested(thread)
    assert answer["result"] == {"run_id": run.id}
    assert answer["meta"] == {"applied_through_seq": place(run.requested_seq)}
    assert (run.request.metadata, run.request.config, run.request.multitask) == (
        {"a": 1},
        {"recursion_limit": 7},
        "interrupt",
    )
    assert (await api.ask("GET", f"/threads/{thread}"))["metadata"]["graph_id"] == "lead_agent"


@pytest.mark.parametrize("name", ["multitask_strategy", "multitaskStrategy"])
async def test_a_strategy(api: Api, worker: Worker, name: str) -> None:
    thread, _ = await begun(api, worker)
    answer = await command(api, thread, "run.start", {"assistant_id": "lead_agent", "input": INPUT, name: "reject"})
    assert (answer["error"], answer["message"]) == ("unknown_error", f"Thread {thread} already has an active run")


async def paused(api: Api, worker: Worker) -> str:
    thread, run = await begun(api, worker, context={"model_name": "demo"}, config={"tags": ["t"]})
    asked = ModelCompleted(message=ai("m1", "May I?", call("c1", "rm", path="/"), call("c2", "rm", path="/a")))
    intents = [ToolRequested(call_id=one, name="rm", effect="once") for one in ("c1", "c2")]
    questions = [Interrupt(id=f"q{n}", value="really?", call_id=f"c{n}") for n in (1, 2)]
    await worker.write(thread, run, asked, *intents, RunPaused(next=["tools"], interrupts=questions))
    return thread


async def test_input_of_an_interrupted_thread_is_the_answer(api: Api, worker: Worker) -> None:
    thread = await paused(api, worker)
    await command(api, thread, "run.start", {"assistant_id": "lead_agent", "input": {"approve": True}})
    request = (await worker.requested(thread, 2)).request
    assert request.input is None
    assert request.resume is not None
    assert request.resume.value == {"approve": True}


@pytest.mark.parametrize(
    ("params", "value"),
    [
        ({"interrupt_id": "q1", "namespace": [], "response": "yes"}, {"q1": "yes"}),
        (
            {"responses": [{"interrupt_id": "q1", "response": 1}, {"interrupt_id": "q2", "response": 2}]},
            {"q1": 1, "q2": 2},
        ),
    ],
)
async def test_answers_go_on_with_the_run(api: Api, worker: Worker, params: Any, value: Any) -> None:
    thread = await paused(api, worker)
    assert (await command(api, thread, "input.respond", params))["result"] == {}
    request = (await worker.requested(thread, 2)).request
    assert request.resume is not None
    assert request.resume.value == value
    assert request.context["model_name"] == "demo"
    assert request.config == {"tags": ["t"]}
    again = await command(api, thread, "input.respond", params)
    assert (again["type"], again["error"], again["id"]) == ("error", "no_such_interrupt", 7)


@pytest.mark.parametrize(
    ("method", "params", "code"),
    [
        ("run.stop", {}, "unknown_command"),
        ("run.start", {}, "invalid_argument"),
        ("run.start", {"assistant_id": "nobody"}, "invalid_argument"),
        ("run.start", {"assistant_id": "lead_agent", "input": "hi"}, "invalid_argument"),
        ("run.start", {"assistant_id": "lead_agent", "input": {"messages": [1]}}, "invalid_argument"),
        (
            "run.start",
            {"assistant_id": "lead_agent", "config": {"configurable": {"checkpoint_id": "x"}}},
            "invalid_argument",
        ),
        ("run.start", {"assistant_id": "lead_agent", "checkpoint_id": "77"}, "invalid_argument"),
        ("run.start", {"assistant_id": "lead_agent", "metadata": {"deliver": "C1"}}, "invalid_argument"),
        ("input.respond", {}, "invalid_argument"),
        ("input.respond", {"responses": []}, "invalid_argument"),
        ("input.respond", {"responses": {}}, "invalid_argument"),
        ("input.respond", {"interrupt_id": "q1", "response": 1}, "no_such_interrupt"),
        ("agent.getTree", {}, "no_such_run"),
        ("agent.getTree", {"run_id": 5}, "no_such_run"),
        ("subscription.subscribe", {"channels": ["values"]}, "unsupported"),
    ],
)
async def test_what_cannot_be_done(api: Api, method: str, params: Any, code: str) -> None:
    answer = await command(api, await api.thread(), method, params)
    assert (answer["type"], answer["id"], answer["error"]) == ("error", 7, code)


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b'{"id":1}', b'{"id":"1","method":"x"}', b'{"id":1,"method":2}', b"\xff"]
)
async def test_what_is_no_command(api: Api, body: bytes) -> None:
    error = await api.ask("POST", f"/threads/{uuid7()}/commands", body, status=400)
    assert error["code"] == "bad_request"


async def test_the_tree(api: Api, worker: Worker) -> None:
    thread, run = await begun(api, worker)
    for event, status in ((None, "running"), (RunCompleted(), "completed")):
        if event:
            await worker.write(thread, run, event)
        tree = (await command(api, thread, "agent.getTree", {"run_id": run}))["result"]["tree"]
        assert tree == {"namespace": [], "status": status, "graph_name": "lead_agent", "children": []}


# ── whose ────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_threads_of_others_do_not_exist(api: Api, system: System) -> None:
    thread = uuid7()
    await system.intake.create_thread(thread, user="somebody")
    await command(api, thread, "run.start", {"assistant_id": "lead_agent", "input": INPUT}, status=404)
    for method in ("input.respond", "agent.getTree"):
        await command(api, thread, method, {"interrupt_id": "q"}, status=404)
    for one in (thread, uuid7()):
        await api.ask("POST", f"/threads/{one}/stream/events", ALL, status=404)
    async with socket(api, thread) as ws:
        assert (await ask(ws, "subscription.subscribe", ALL))["type"] == "success"
        assert (await ws.receive(10)).data == 4404


async def test_a_socket_may_wait_for_its_thread(api: Api, worker: Worker, system: System) -> None:
    mine, theirs = uuid7(), uuid7()
    async with socket(api, mine) as ws, socket(api, theirs) as other:
        for one in (ws, other):
            assert (await ask(one, "subscription.subscribe", {"channels": ["lifecycle"]}))["type"] == "success"
        await begun(api, worker, mine)
        assert len(await heard(ws, "running")) == 1
        await system.intake.create_thread(theirs, user="somebody")
        assert (await other.receive(10)).data == 4404


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({}, 400),
        ({"channels": []}, 400),
        ({"channels": ["everything"]}, 400),
        ({"channels": ["values"], "since": -1}, 422),
        ({"channels": "values"}, 422),
        ({"channels": ["values"], "namespaces": ["a"]}, 422),
    ],
)
async def test_what_cannot_be_subscribed_to(api: Api, body: Any, status: int) -> None:
    thread = await api.thread()
    await api.ask("POST", f"/threads/{thread}/stream/events", body, status=status)
    async with socket(api, thread) as ws:
        assert (await ask(ws, "subscription.subscribe", body))["error"] == "invalid_argument"


# ── server-sent events ───────────────────────────────────────────────────────────────────────────────────────────────


async def test_one_stream_over_many_runs(api: Api, worker: Worker) -> None:
    thread = await api.thread()
    async with events(api, thread) as stream:
        for count in (1, 2):
            _, run = await begun(api, worker, thread)
            await worker.finish(thread, run, f"answer {count}")
            told = await until(stream, "completed")
            assert told[0]["event_id"] == f"synth:{run}:lc||running"
            assert told[-1]["event_id"] == f"synth:{run}:lc||completed"
            [text] = [one["params"]["data"]["content"]["text"] for one in told if one["event_id"].endswith(":0:finish")]
            assert text == f"answer {count}"
    async with events(api, thread) as stream:
        assert (await until(stream, "completed"))[0]["method"] == "lifecycle"
        assert (await until(stream, "completed"))[-1] == told[-1]


async def test_it_beats(api: Api) -> None:
    async with events(api, await api.thread()) as stream:
        with anyio.fail_after(60):
            while stream.beats < 3:
                await stream.response.content.readline()
                stream.beats += 1


async def test_previews_are_shown_at_once_and_to_those_who_come_late(api: Api, worker: Worker) -> None:
    said = ModelCompleted(message=ai("m1", TEXT))
    thread, run = await begun(api, worker)
    async with events(api, thread, channels=["messages", "lifecycle"]) as first:
        assert (await first.next() or [""])[0] == "lifecycle"
        await show(worker, run, said, upto=10)
        seen = [one[1] for one in [await first.next() for _ in range(7)] if one]
        async with events(api, thread, channels=["messages", "lifecycle"]) as late:
            assert [one[1] for one in [await late.next() for _ in range(8)] if one][1:] == seen
            assert "".join(one["params"]["data"]["delta"]["text"] for one in seen[2:]) == TEXT[:20]
            await worker.write(thread, run, said, RunCompleted())
            assert await until(first, "completed") == await until(late, "completed")


async def test_a_cut_stream_goes_on(api: Api, worker: Worker) -> None:
    """Wherever it is cut, and whatever happened meanwhile: nothing numbered twice, no text lost or doubled."""
    said = ModelCompleted(message=ai("m1", TEXT, additional_kwargs={"reasoning_content": "Let me see."}))
    thread, run = await begun(api, worker)
    await show(worker, run, said, upto=12)
    seen: dict[str, Any] = {}
    since = -1
    for cut in range(1, 40):
        if cut == 10:
            await show(worker, run, said)
        if cut == 20:
            await worker.write(thread, run, said, RunCompleted())
        if cut == 30:
            _, second = await begun(api, worker, thread)
            await worker.finish(thread, second, "Again.")
        async with events(api, thread, **ALL, **({"since": since} if since >= 0 else {})) as stream:
            for _ in range(cut):
                with anyio.move_on_after(0.5):
                    one = (await stream.next() or ("", {}))[1]
                    if "seq" in one:
                        assert one["seq"] > since
                        since = max(since, one["seq"])
                    seen.setdefault(one["event_id"], one)
                    continue
                break
    data = [one["params"]["data"] for one in seen.values() if one["method"] == "messages"]
    deltas = [one["delta"] for one in data if one["event"] == "content-block-delta" and one["id"] == "m1"]
    assert "".join(one.get("text", "") for one in deltas) == TEXT
    assert "".join(one.get("reasoning", "") for one in deltas) == "Let me see."
    numbers = [one["seq"] for one in seen.values() if "seq" in one]
    async with events(api, thread) as stream:
        read = [*await until(stream, "completed"), *await until(stream, "completed")]
    assert numbers == [one["seq"] for one in read if "seq" in one]
    assert {one["event_id"] for one in read} == set(seen)


async def talk_of_all_kinds(api: Api, worker: Worker) -> str:
    """A thread with tools, a question that was answered, and a second turn."""
    thread, run = await begun(api, worker)
    await worker.write(thread, run, ModelCompleted(message=ai("m1", "I look.", call("c1", "ls"))))
    await worker.write(thread, run, ToolRequested(call_id="c1", name="ls", effect="pure"))
    await worker.write(thread, run, ToolCompleted(call_id="c1", message=answer("c1", "ls", "a")))
    await worker.write(thread, run, ModelCompleted(message=ai("m2", "May I?", call("c2", "ask"))))
    await worker.write(thread, run, ToolRequested(call_id="c2", name="ask", effect="pure"))
    await worker.write(thread, run, RunPaused(next=["tools"], interrupts=[Interrupt(id="i1", value="?", call_id="c2")]))
    _, second = await begun(api, worker, thread)
    await worker.write(thread, second, ToolCompleted(call_id="c2", message=answer("c2", "ask", "yes")))
    await worker.write(thread, second, ModelCompleted(message=ai("m3", "Thanks.")), RunCompleted())
    return thread


@pytest.mark.parametrize("by", ["since_event_id", "Last-Event-ID", "Last-Event-ID of the frame"])
async def test_after_each_event(api: Api, worker: Worker, by: str) -> None:
    """Whichever event a client names: all that is later comes, and no numbered one that is not."""
    thread = await talk_of_all_kinds(api, worker)
    async with events(api, thread) as stream:
        every = await until(stream, "completed")
    assert len([one for one in every if "seq" not in one]) > 5
    assert {one["event_id"].partition(":")[0] for one in every} > {"synth", "m1"}
    for index, one in enumerate(every[:-1]):
        if "seq" not in one and by == "Last-Event-ID of the frame":
            continue
        name = str(one["seq"]) if by == "Last-Event-ID of the frame" else one["event_id"]
        in_body = by == "since_event_id"
        body = {**ALL, **({by: name} if in_body else {})}
        headers = {} if in_body else {"Last-Event-ID": name}
        async with api.stream("POST", f"/threads/{thread}/stream/events", body, **headers) as stream:
            rest = await until(stream, "completed")
        assert rest[-(len(every) - index - 1) :] == every[index + 1 :], one["event_id"]
        seen = max((before["seq"] for before in every[: index + 1] if "seq" in before), default=-1)
        assert all(later["seq"] > seen for later in rest if "seq" in later), one["event_id"]
        if "seq" in one:
            assert len(rest) == len(every) - index - 1


@pytest.mark.parametrize(
    "name",
    ["-1", "0", "x", "9" * 30, "99999999999-3", "0-0", "synth:nobody:lc||running", "synth:nobody:input||i1",
     "m9:finish", "m9:0:3", "::", "synth::lc||", "\ud83e\udd80:start"],
)  # fmt: skip
async def test_events_that_nobody_knows(api: Api, worker: Worker, name: str) -> None:
    thread = await talk_of_all_kinds(api, worker)
    async with events(api, thread) as stream:
        every = await until(stream, "completed")
    async with events(api, thread, **ALL, since_event_id=name) as stream:
        assert await until(stream, "completed") == every


async def test_a_cursor_of_another_log_begins_anew(api: Api, worker: Worker) -> None:
    thread, run = await begun(api, worker)
    await worker.write(thread, run, RunCompleted())
    async with events(api, thread, channels=["lifecycle"], since=2**50) as stream:
        assert len(await until(stream, "completed")) == 2


async def test_of_a_long_past_only_the_last_values_are_sent(
    api: Api, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "SNAPSHOTS", 3)
    thread, run = await begun(api, worker)
    await worker.write(thread, run, *(ModelCompleted(message=ai(f"m{n}", str(n))) for n in range(5)), RunCompleted())
    async with events(api, thread) as stream:
        told = await until(stream, "completed")
    assert [len(one["params"]["data"]["messages"]) for one in told if one["method"] == "values"] == [4, 5, 6]
    assert len([one for one in told if one["event_id"].endswith(":finish") and "seq" in one]) == 5
    async with events(api, thread, **ALL, since=told[0]["seq"]) as stream:
        rest = await until(stream, "completed")
    assert len([one for one in rest if one["method"] == "values"]) == 6


class TestPresent:
    """`lifecycle` and `input` alone: how the thread stands."""

    WANTED = {"channels": ["input", "lifecycle"]}  # noqa: RUF012

    async def test_what_is_open(self, api: Api, worker: Worker) -> None:
        thread, run = await begun(api, worker)
        await worker.write(thread, run, RunCancelled())
        _, second = await begun(api, worker, thread)
        async with events(api, thread, **self.WANTED) as stream:
            told = await stream.next()
            assert told is not None
            assert told[1]["event_id"] == f"synth:{second}:lc||running"

    async def test_what_waits(self, api: Api, worker: Worker) -> None:
        thread = await paused(api, worker)
        async with events(api, thread, **self.WANTED) as stream:
            told = await until(stream, "interrupted")
        assert [one["method"] for one in told] == ["lifecycle", "input.requested", "input.requested", "lifecycle"]

    async def test_a_run_that_was_over_too_soon(self, api: Api, worker: Worker) -> None:
        thread, run = await begun(api, worker)
        await worker.write(thread, run, RunCompleted())
        async with events(api, thread, **self.WANTED) as stream:
            assert [one["event_id"] for one in await until(stream, "completed")] == [
                f"synth:{run}:lc||running",
                f"synth:{run}:lc||completed",
            ]

    async def test_a_past_that_does_not_matter(self, api: Api, worker: Worker) -> None:
        thread, run = await begun(api, worker)
        await worker.write(thread, run, RunCompleted())
        async with events(api, thread, **self.WANTED) as stream:
            _, second = await begun(api, worker, thread)
            await anyio.sleep(feed.RECALL_SECONDS + 0.2)
            await worker.write(thread, second, RunCompleted())
            assert [one["event_id"] for one in await until(stream, "completed")] == [
                f"synth:{second}:lc||running",
                f"synth:{second}:lc||completed",
            ]


async def test_a_deleted_thread_ends_its_streams(api: Api, worker: Worker) -> None:
    thread = await api.thread()
    async with events(api, thread) as stream, socket(api, thread) as ws:
        assert (await ask(ws, "subscription.subscribe", ALL))["type"] == "success"
        await api.ask("DELETE", f"/threads/{thread}", status=204)
        [(name, data, _)] = await stream.rest()
        assert (name, data["type"], data["id"]) == ("error", "error", None)
        assert (await ws.receive_json(timeout=60))["type"] == "error"
        assert (await ws.receive(10)).data == 4404


# ── WebSocket ────────────────────────────────────────────────────────────────────────────────────────────────────────


@asynccontextmanager
async def socket(api: Api, thread: str, **more: Any) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
    async with api.session.ws_connect(f"{api.url}/api/threads/{thread}/stream/events", **more) as ws:
        yield ws


async def ask(ws: aiohttp.ClientWebSocketResponse, method: str, params: Any = None) -> Any:
    """The answer to a command; events before it are passed over."""
    await ws.send_json({"id": 3, "method": method, "params": params or {}})
    while True:
        answer = await ws.receive_json(timeout=60)
        if answer["type"] != "event":
            assert answer["id"] == 3
            return answer


async def heard(ws: aiohttp.ClientWebSocketResponse, phase: str) -> list[Any]:
    found: list[Any] = []
    while not found or found[-1]["params"]["data"].get("event") != phase or found[-1]["method"] != "lifecycle":
        found.append(await ws.receive_json(timeout=60))
    return found


async def test_a_defect_of_a_translator_ends_the_connection(
    api: Api, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With an error, on either transport: a stream that only went silent would be waited for without end."""
    thread = await api.thread()

    def broken(*_: object) -> None:
        raise RuntimeError("a defect")

    async with events(api, thread) as stream, socket(api, thread) as ws:
        assert (await ask(ws, "subscription.subscribe", ALL))["type"] == "success"
        monkeypatch.setattr(Tape, "fact", broken)
        await api.ask("POST", f"/threads/{thread}/state", {"values": {"title": "T"}})
        with pytest.raises(aiohttp.ClientError):
            await stream.rest()
        assert (await ws.receive(5)).data == aiohttp.WSCloseCode.INTERNAL_ERROR


async def test_a_socket_does_everything(api: Api, worker: Worker) -> None:
    thread = uuid7()
    async with socket(api, thread) as ws:
        run = (await ask(ws, "run.start", {"assistant_id": "lead_agent", "input": INPUT}))["result"]["run_id"]
        first = (await ask(ws, "subscription.subscribe", {"channels": ["lifecycle"]}))["result"]["subscription_id"]
        await worker.start(thread, run)
        assert [one["method"] for one in await heard(ws, "running")] == ["lifecycle"]
        said = ModelCompleted(message=ai("m1", TEXT))
        await show(worker, run, said, upto=10)
        assert (await ask(ws, "subscription.subscribe", {"channels": ["messages"]}))["type"] == "success"
        replayed = [await ws.receive_json(timeout=60) for _ in range(7)]
        assert "".join(one["params"]["data"]["delta"]["text"] for one in replayed[2:]) == TEXT[:20]
        await worker.write(thread, run, said, RunCompleted())
        rest = await heard(ws, "completed")
        deltas = [
            one["params"]["data"]["delta"]["text"] for one in [*replayed, *rest] if "delta" in one["params"]["data"]
        ]
        assert "".join(deltas) == TEXT
        assert (await ask(ws, "subscription.unsubscribe", {"subscription_id": first}))["type"] == "success"
        again = await ask(ws, "subscription.unsubscribe", {"subscription_id": first})
        assert again["error"] == "no_such_subscription"
        second = (await ask(ws, "run.start", {"assistant_id": "lead_agent", "input": INPUT}))["result"]["run_id"]
        await worker.start(thread, second)
        await show(worker, second, ModelCompleted(message=ai("m2", TEXT)), upto=2)
        assert (await ws.receive_json(timeout=60))["params"]["data"]["event"] == "message-start"


async def test_an_event_that_several_subscriptions_want_is_sent_once(api: Api, worker: Worker) -> None:
    thread, run = await begun(api, worker)
    async with socket(api, thread) as ws:
        for _ in range(3):
            assert (await ask(ws, "subscription.subscribe", {"channels": ["lifecycle"]}))["type"] == "success"
            assert [one["params"]["data"]["event"] for one in await heard(ws, "running")] == ["running"]
        await worker.write(thread, run, RunCompleted())
        await heard(ws, "completed")
        assert (await ask(ws, "agent.getTree"))["result"]["tree"]["status"] == "completed"


@pytest.mark.parametrize("raw", ["", "[]", '{"id":"a","method":"x"}'])
async def test_noise_on_a_socket(api: Api, raw: str) -> None:
    async with socket(api, await api.thread()) as ws:
        await ws.send_str(raw)
        answer = await ws.receive_json(timeout=60)
        assert (answer["type"], answer["id"], answer["error"]) == ("error", None, "invalid_argument")
        assert (await ask(ws, "nothing"))["error"] == "unknown_command"


@pytest.mark.parametrize(("origin", "status"), [("https://evil.example", 403), (None, 101), ("same", 101)])
async def test_pages_of_others_cannot_open_a_socket(api: Api, origin: str | None, status: int) -> None:
    headers = {} if origin is None else {"Origin": api.url if origin == "same" else origin}
    try:
        async with socket(api, await api.thread(), headers=headers) as ws:
            got = 101 if not ws.closed else 0
    except aiohttp.WSServerHandshakeError as error:
        got = error.status
    assert got == status


async def test_a_get_without_a_socket(api: Api) -> None:
    await api.ask("GET", f"/threads/{await api.thread()}/stream/events", status=400)


async def test_a_client_that_does_not_read_loses_no_fact(api: Api, worker: Worker) -> None:
    thread, run = await begun(api, worker)
    async with events(api, thread, channels=["messages", "lifecycle"]) as stream:
        assert await stream.next()
        for count in range(60):
            await worker.write(thread, run, ModelCompleted(message=ai(f"m{count}", "x" * 20_000)))
        await worker.write(thread, run, RunCompleted())
        told = await until(stream, "completed")
    finished = [one for one in told if one["event_id"].endswith(":finish") and "seq" in one]
    assert len(finished) == 60

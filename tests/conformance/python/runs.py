"""Runs: asked for, waited for, joined, listed, stopped, removed; with and without a thread."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any

import httpx

from tests.conformance.python.errors import ENTRIES, entered
from tests.conformance.python.lab import (
    AGENT,
    Lab,
    Skipped,
    case,
    contents,
    eventually,
    line,
    needs,
    raises,
    table,
)

FIELDS = {
    "run_id",
    "thread_id",
    "assistant_id",
    "status",
    "metadata",
    "created_at",
    "updated_at",
    "multitask_strategy",
    "kwargs",
}
ANSWER = "Hello to you, too."


@case
async def create(lab: Lab) -> None:
    thread = await lab.thread()
    told: list[Any] = []
    run: Any = await lab.client.runs.create(
        thread, AGENT, metadata={"mark": lab.mark}, on_run_created=told.append, **lab.asked()
    )
    assert set(run) >= FIELDS
    assert run["thread_id"] == thread
    assert run["metadata"]["mark"] == lab.mark
    assert run["status"] in ("pending", "running")
    assert told == [{"run_id": run["run_id"], "thread_id": thread}]
    uuid.UUID(run["run_id"])
    uuid.UUID(run["assistant_id"])
    assert await lab.ended(thread, run["run_id"]) == "success"
    done: Any = await lab.client.runs.get(thread, run["run_id"])
    assert done["kwargs"]["input"]["messages"]
    assert datetime.fromisoformat(done["updated_at"]) > datetime.fromisoformat(done["created_at"])
    assert (await lab.texts(thread))[-1] == ANSWER


@table(*((entry,) for entry in ENTRIES))
async def by_the_id_of_the_assistant(lab: Lab, entry: str) -> None:
    [assistant] = await lab.client.assistants.search(graph_id=AGENT, metadata={"created_by": "system"}, limit=1)
    thread = await lab.thread()
    await entered(lab, entry, thread, assistant["assistant_id"], **lab.asked())
    [run] = await lab.client.runs.list(thread)
    assert run["assistant_id"] == assistant["assistant_id"]


@case
async def wait(lab: Lab) -> None:
    thread = await lab.thread()
    told: list[Any] = []
    values: Any = await lab.client.runs.wait(thread, AGENT, on_run_created=told.append, **lab.asked())
    assert contents(values, lab.mark) == ["Hi", ANSWER]
    [created] = told
    assert await lab.status(thread, created["run_id"]) == "success"
    assert (await lab.client.threads.get(thread))["status"] == "idle"


@case
async def wait_on_the_wire(lab: Lab) -> None:
    """The head comes at once, with where to go on if the line breaks; white space until the answer is there."""
    thread = await lab.thread()
    body = {"assistant_id": AGENT, **lab.asked("gated")}
    async with lab.http.stream("POST", f"/threads/{thread}/runs/wait", json=body) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("application/json")
        where = response.headers["content-location"]
        assert where.startswith(f"/threads/{thread}/runs/")
        assert response.headers["location"] == f"{where}/join"
        await lab.release()
        raw = await response.aread()
    assert raw != raw.lstrip()
    assert json.loads(raw)["messages"][-1]["content"] == "one two three four"
    assert (await lab.ask("GET", f"{where}/join"))["messages"][-1]["content"] == "one two three four"


@case
async def wait_for_a_failure(lab: Lab) -> None:
    thread = await lab.thread()
    error = await raises(Exception, lab.client.runs.wait(thread, AGENT, **lab.asked("breaks")))
    assert "the script breaks" in str(error)
    [run] = await lab.client.runs.list(thread)
    assert run["status"] == "error"
    error = await raises(Exception, lab.client.runs.wait(thread, AGENT, **lab.asked("breaks")))
    body = {"assistant_id": AGENT, **lab.asked("breaks")}
    answer = await lab.ask("POST", f"/threads/{thread}/runs/wait", body)
    assert set(answer) == {"__error__"}
    assert set(answer["__error__"]) >= {"error", "message"}
    quiet: Any = await lab.client.runs.wait(thread, AGENT, raise_error=False, **lab.asked("breaks"))
    assert quiet["__error__"]["message"]
    found: Any = await lab.client.threads.get(thread)
    assert found["status"] == "error"
    assert found["error"]
    state: Any = await lab.client.threads.get_state(thread)
    assert "the script breaks" in state["tasks"][-1]["error"]


@case
async def wait_over_a_broken_line(lab: Lab) -> None:
    """The client goes on at `Location` by itself."""
    thread = await lab.thread()
    async with line(lab.urls[0]) as wire:
        through = type(lab.client)(httpx.AsyncClient(base_url=f"{wire.url}/api", timeout=20))
        waiting = asyncio.create_task(through.runs.wait(thread, AGENT, **lab.asked("gated")))
        await lab.reached()
        wire.cut()
        await lab.release()
        try:
            assert contents(await waiting, lab.mark) == ["Hi", "one two three four"]
        except Exception as error:
            if "declared Content-Length" not in str(error):
                raise
            raise Skipped("this release announces a body, and sends none, when it goes on") from error
        assert any("/join" in seen for seen in wire.seen)
        await through.http.client.aclose()
    assert len(await lab.client.runs.list(thread)) == 1


@case
async def join(lab: Lab) -> None:
    thread = await lab.thread()
    run = (await lab.client.runs.create(thread, AGENT, **lab.asked("gated")))["run_id"]
    joining = [asyncio.create_task(lab.client.runs.join(thread, run)) for _ in range(2)]
    await lab.reached()
    await lab.release()
    first, second = await asyncio.gather(*joining)
    assert first == second == await lab.client.runs.join(thread, run)
    assert contents(first, lab.mark) == ["Hi", "one two three four"]
    await lab.ask("GET", f"/threads/{thread}/runs/{uuid.uuid4()}/join", status=404)


@case
async def join_a_failure(lab: Lab) -> None:
    thread = await lab.thread()
    run = (await lab.client.runs.create(thread, AGENT, **lab.asked("breaks")))["run_id"]
    answer = await lab.ask("GET", f"/threads/{thread}/runs/{run}/join")
    assert "the script breaks" in answer["__error__"]["message"]


@case
async def list_them(lab: Lab) -> None:
    thread = await lab.thread()
    made = []
    for model in ("hello", "breaks", "hello"):
        made.append((await lab.client.runs.create(thread, AGENT, **lab.asked(model)))["run_id"])
        await lab.ended(thread, made[-1])
    newest = made[::-1]
    assert [run["run_id"] for run in await lab.client.runs.list(thread)] == newest
    assert [run["run_id"] for run in await lab.client.runs.list(thread, limit=1)] == newest[:1]
    assert [run["run_id"] for run in await lab.client.runs.list(thread, limit=5, offset=1)] == newest[1:]
    failed = await lab.client.runs.list(thread, status="error")
    assert [run["run_id"] for run in failed] == [made[1]]
    [shown] = await lab.client.runs.list(thread, limit=1, select=["run_id", "status"])
    assert shown == {"run_id": made[2], "status": "success"}
    path = f"/threads/{thread}/runs"
    encoded = await lab.ask("GET", path, params={"select": '["run_id","status"]', "limit": 1})
    assert encoded == [shown]
    await lab.ask("GET", f"/threads/{uuid.uuid4()}/runs", status=404)


@case
async def get(lab: Lab) -> None:
    thread = await lab.thread()
    error = await raises(httpx.HTTPStatusError, lab.client.runs.get(thread, str(uuid.uuid4())))
    assert error.response.status_code == 404
    run = await lab.client.runs.create(thread, AGENT, **lab.asked())
    assert await lab.client.runs.get(thread, run["run_id"])
    elsewhere = await lab.thread()
    await lab.ask("GET", f"/threads/{elsewhere}/runs/{run['run_id']}", status=404)


# ── stopping ────────────────────────────────────────────────────────────────────────────────────────────────────────


@case
async def cancel(lab: Lab) -> None:
    thread = await lab.thread()
    run = (await lab.client.runs.create(thread, AGENT, **lab.asked("gated")))["run_id"]
    await lab.reached()
    response = await lab.http.post(f"/threads/{thread}/runs/{run}/cancel")
    assert (response.status_code, response.content) == (202, b"")
    assert await lab.ended(thread, run) == "interrupted"
    assert (await lab.client.runs.join(thread, run))["messages"]


@case
async def cancel_and_wait(lab: Lab) -> None:
    """The status is final, open streams end, the thread takes a new run at once."""
    thread = await lab.thread()
    run = (await lab.client.runs.create(thread, AGENT, **lab.asked("gated")))["run_id"]
    watching = asyncio.create_task(lab.frames("GET", f"/threads/{thread}/runs/{run}/stream", last="-1"))
    await lab.reached()
    await lab.client.runs.cancel(thread, run, wait=True)
    assert await lab.status(thread, run) == "interrupted"
    assert (await watching)[-1].event == "end"
    values: Any = await lab.client.runs.wait(thread, AGENT, multitask_strategy="reject", **lab.asked(text="On"))
    assert contents(values, lab.mark)[-2:] == ["On", ANSWER]
    # What had been finished stays: the question, and what was said of the answer.
    assert contents(values, lab.mark)[0] == "Hi"


@table(("wait",), ("no-wait",))
async def cancel_by_rollback(lab: Lab, how: str) -> None:
    thread, _ = await lab.said(text="Before")
    before = await lab.client.threads.get_state(thread)
    run = (await lab.client.runs.create(thread, AGENT, **lab.asked("gated")))["run_id"]
    await lab.reached()
    await lab.client.runs.cancel(thread, run, wait=how == "wait", action="rollback")

    async def gone() -> bool:
        return (await lab.http.get(f"/threads/{thread}/runs/{run}")).status_code == 404

    await eventually(gone)
    after = await lab.client.threads.get_state(thread)
    assert after["values"] == before["values"]
    assert after["checkpoint"] == before["checkpoint"]
    assert run not in [one["run_id"] for one in await lab.client.runs.list(thread)]
    assert not [one for one in await lab.client.threads.get_history(thread) if one["metadata"].get("run_id") == run]


@case
async def cancel_what_is_over(lab: Lab) -> None:
    thread, _ = await lab.said()
    [run] = await lab.client.runs.list(thread)
    for named in (run["run_id"], str(uuid.uuid4())):
        error = await raises(httpx.HTTPStatusError, lab.client.runs.cancel(thread, named, wait=True))
        assert error.response.status_code in (404, 409)
    assert await lab.status(thread, run["run_id"]) == "success"


@case
async def cancel_what_waits(lab: Lab) -> None:
    thread = await lab.thread()
    first = await lab.client.runs.create(thread, AGENT, **lab.asked("gated"))
    second = await lab.client.runs.create(thread, AGENT, multitask_strategy="enqueue", **lab.asked())
    await lab.reached()
    await lab.client.runs.cancel(thread, second["run_id"], wait=True)
    assert await lab.status(thread, second["run_id"]) == "interrupted"
    assert await lab.status(thread, first["run_id"]) == "running"
    await lab.release()
    assert await lab.ended(thread, first["run_id"]) == "success"
    assert await lab.texts(thread) == ["Hi", "one two three four"]


@table(("1",), ("true",))
async def cancel_by_both_spellings(lab: Lab, yes: str) -> None:
    thread = await lab.thread()
    run = (await lab.client.runs.create(thread, AGENT, **lab.asked("gated")))["run_id"]
    await lab.reached()
    response = await lab.http.post(f"/threads/{thread}/runs/{run}/cancel", params={"wait": yes, "action": "interrupt"})
    assert response.status_code in (200, 204)
    assert bool(response.content) == (response.status_code == 200)
    assert await lab.status(thread, run) == "interrupted"


async def _three(lab: Lab) -> tuple[str, list[str]]:
    """A thread with a run at work and two that wait."""
    thread, made = await lab.thread(), []
    for _ in range(3):
        run = await lab.client.runs.create(thread, AGENT, multitask_strategy="enqueue", **lab.asked("gated"))
        made.append(run["run_id"])
    await lab.reached()
    return thread, made


@case
async def cancel_many(lab: Lab) -> None:
    thread, made = await _three(lab)
    body = {"thread_id": thread, "run_ids": made[:2]}
    assert await lab.ask("POST", "/runs/cancel?action=interrupt", body, status=204) is None
    assert [await lab.ended(thread, run) for run in made[:2]] == ["interrupted"] * 2
    await lab.reached()
    assert await lab.status(thread, made[2]) == "running"
    await lab.release()
    assert await lab.ended(thread, made[2]) == "success"
    await lab.ask("POST", "/runs/cancel", {"thread_id": thread, "run_ids": [str(uuid.uuid4())]}, status=404)


@case
async def cancel_many_by_the_sdk(lab: Lab) -> None:
    needs(lab.client.runs, "cancel_many")
    thread, made = await _three(lab)
    await lab.client.runs.cancel_many(thread_id=thread, run_ids=made, action="rollback")

    async def none_left() -> bool:
        return not await lab.client.runs.list(thread)

    await eventually(none_left)
    assert await lab.texts(thread) == []


@table(
    ({"thread_id": "T", "status": "pending"},),
    ({},),
    ({"thread_id": "T"},),
    ({"status": "asleep"},),
    ({"run_ids": ["x"]},),
)
async def cancel_many_refuses(lab: Lab, body: Any) -> None:
    thread = await lab.thread()
    named = {key: thread if value == "T" else value for key, value in body.items()}
    await lab.ask("POST", "/runs/cancel", named, status=422)


# ── removing ────────────────────────────────────────────────────────────────────────────────────────────────────────


@case
async def delete(lab: Lab) -> None:
    thread, values = await lab.said()
    [run] = await lab.client.runs.list(thread)
    response = await lab.http.delete(f"/threads/{thread}/runs/{run['run_id']}")
    assert (response.status_code, response.content) == (204, b"")
    await lab.ask("GET", f"/threads/{thread}/runs/{run['run_id']}", status=404)
    assert await lab.client.runs.list(thread) == []
    assert (await lab.client.threads.get_state(thread))["values"] == values
    error = await raises(httpx.HTTPStatusError, lab.client.runs.delete(thread, str(uuid.uuid4())))
    assert error.response.status_code == 404


# ── without a thread ────────────────────────────────────────────────────────────────────────────────────────────────


@table(*((entry,) for entry in ENTRIES))
async def alone(lab: Lab, entry: str) -> None:
    """The thread was made for the run and goes with it."""
    told: list[Any] = []
    found = await entered(lab, entry, None, on_run_created=told.append, **lab.asked())
    match entry:
        case "wait":
            assert contents(found, lab.mark) == ["Hi", ANSWER]
        case "stream":
            assert contents(found[-2].data, lab.mark) == ["Hi", ANSWER]
    thread = told[0]["thread_id"] if told and told[0].get("thread_id") else found["thread_id"]

    async def gone() -> bool:
        return (await lab.http.get(f"/threads/{thread}")).status_code == 404

    await eventually(gone)


@table(*((entry,) for entry in ENTRIES))
async def alone_and_kept(lab: Lab, entry: str) -> None:
    told: list[Any] = []
    await entered(lab, entry, None, on_completion="keep", on_run_created=told.append, **lab.asked())
    thread = told[0]["thread_id"]
    assert await lab.ended(thread, told[0]["run_id"]) == "success"
    assert await lab.texts(thread) == ["Hi", ANSWER]


@case
async def batch(lab: Lab) -> None:
    payloads: list[Any] = [
        {"assistant_id": AGENT, "on_completion": "keep", **lab.asked(text=text)} for text in ("One", "Two")
    ]
    runs: Any = await lab.client.runs.create_batch(payloads)
    assert len(runs) == 2
    assert len({run["thread_id"] for run in runs}) == 2
    for run, text in zip(runs, ("One", "Two"), strict=True):
        assert await lab.ended(run["thread_id"], run["run_id"]) == "success"
        assert await lab.texts(run["thread_id"]) == [text, ANSWER]


@case
async def a_bad_batch_makes_nothing(lab: Lab) -> None:
    thread = await lab.thread()
    said = lab.asked()
    good = {"assistant_id": AGENT, "input": said["input"], "config": {"configurable": {"thread_id": thread}}}
    await lab.ask("POST", "/runs/batch", [good, {**good, "assistant_id": "nobody"}], status=422)
    await lab.ask("POST", "/runs/batch", {"not": "a list"}, status=422)
    assert await lab.client.runs.list(thread) == []
    [run] = await lab.ask("POST", "/runs/batch", [{**good, "context": said["context"]}])
    assert await lab.ended(thread, run["run_id"]) == "success"


# ── when, and whether ───────────────────────────────────────────────────────────────────────────────────────────────


@case
async def after_a_while(lab: Lab) -> None:
    thread = await lab.thread()
    run = await lab.client.runs.create(thread, AGENT, after_seconds=1, **lab.asked())
    assert run["status"] == "pending"
    assert await lab.ended(thread, run["run_id"]) == "success"
    first = (await lab.client.threads.get_history(thread))[-1]
    waited = datetime.fromisoformat(str(first["created_at"])) - datetime.fromisoformat(str(run["created_at"]))
    assert waited >= timedelta(seconds=1)


@table(*((entry,) for entry in ENTRIES))
async def make_the_thread(lab: Lab, entry: str) -> None:
    thread = str(uuid.uuid4())
    await entered(lab, entry, thread, if_not_exists="create", **lab.asked())
    [run] = await lab.client.runs.list(thread)
    assert await lab.ended(thread, run["run_id"]) == "success"
    assert await lab.texts(thread) == ["Hi", ANSWER]
    other = str(uuid.uuid4())
    error = await raises(httpx.HTTPStatusError, entered(lab, entry, other, if_not_exists="reject", **lab.asked()))
    assert error.response.status_code == 404


@table(("stream", "cancel"), ("stream", "continue"), ("wait", "cancel"), ("wait", "continue"))
async def the_client_leaves(lab: Lab, entry: str, wish: Any) -> None:
    thread = await lab.thread()
    asking = asyncio.create_task(entered(lab, entry, thread, on_disconnect=wish, **lab.asked("gated")))
    await lab.reached()
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    [run] = await lab.client.runs.list(thread)
    if wish == "cancel":
        assert await lab.ended(thread, run["run_id"]) == "interrupted"
    else:
        await lab.release()
        assert await lab.ended(thread, run["run_id"]) == "success"


@case
async def a_reader_leaves(lab: Lab) -> None:
    """`cancel_on_disconnect` is the reader's own wish."""
    thread = await lab.thread()
    run = (await lab.client.runs.create(thread, AGENT, **lab.asked("gated")))["run_id"]
    await lab.reached()
    for wish, status in ((False, "running"), (True, "interrupted")):
        async for _ in lab.client.runs.join_stream(
            thread, run, cancel_on_disconnect=wish, last_event_id="-1", stream_mode="values"
        ):
            break
        if wish:
            assert await lab.ended(thread, run) == status
        else:
            assert await lab.status(thread, run) == status


@table(*((entry,) for entry in ENTRIES))
async def up_to_a_limit(lab: Lab, entry: str) -> None:
    thread = await lab.thread()
    limited = {**lab.asked("endless"), "config": {"recursion_limit": 5}}
    try:
        await entered(lab, entry, thread, **limited)
    except Exception as error:
        assert "limit" in str(error)  # noqa: PT017
    [run] = await lab.client.runs.list(thread)
    assert await lab.ended(thread, run["run_id"]) == "success"
    calls = [text for text in await lab.texts(thread) if str(text).startswith("noted")]
    assert 0 < len(calls) <= 5


@case
async def options_are_taken(lab: Lab) -> None:
    """What changes nothing here is accepted all the same."""
    thread = await lab.thread()
    for more in (
        {"durability": "sync"},
        {"durability": "exit"},
        {"checkpoint_during": False},
        {"config": {"tags": ["a"], "recursion_limit": 1000}},
        {"metadata": {"a": {"b": 1}}},
    ):
        await lab.client.runs.wait(thread, AGENT, **{**lab.asked(), **more})
    assert {run["status"] for run in await lab.client.runs.list(thread)} == {"success"}


@case
async def feedback_keys(lab: Lab) -> None:
    thread = await lab.thread()
    parts = [part async for part in lab.client.runs.stream(thread, AGENT, feedback_keys=["fine"], **lab.asked())]
    assert [part.event for part in parts if part.event == "error"] == []
    for part in parts:
        if part.event == "feedback":
            assert list(part.data) == ["fine"]
    [run] = await lab.client.runs.list(thread)
    assert run["status"] == "success"


@case
async def as_a_well_known_page_asks(lab: Lab) -> None:
    """What DeerFlow's page sends with every submit; the context names the thread."""
    thread = await lab.thread()
    context = {
        "model_name": "hello",
        "thinking_enabled": False,
        "is_plan_mode": False,
        "subagent_enabled": False,
        "reasoning_effort": "low",
        "thread_id": thread,
    }
    said = {"type": "human", "content": [{"type": "text", "text": "hi"}], "additional_kwargs": {}}
    body = {
        "input": {"messages": [said]},
        "config": {"recursion_limit": 1000},
        "context": context,
        "stream_mode": ["values", "messages-tuple", "updates", "custom"],
        "stream_subgraphs": True,
        "stream_resumable": True,
        "on_disconnect": "continue",
        "assistant_id": "lead_agent",
    }
    frames = await lab.frames("POST", f"/threads/{thread}/runs/stream", body)
    assert [frame.event for frame in frames if frame.event == "error"] == []
    last = [frame.data for frame in frames if frame.event == "values"][-1]
    assert last["messages"][0]["content"] == said["content"]
    assert last["messages"][1]["content"] == ANSWER
    run = frames[0].data["run_id"]
    assert await lab.status(thread, run) == "success"
    problem = await lab.http.post(f"/threads/{thread}/runs/{run}/cancel")
    assert problem.status_code in (404, 409)
    assert "is not cancellable" in problem.json()["detail"]


# ── webhooks ────────────────────────────────────────────────────────────────────────────────────────────────────────


@asynccontextmanager
async def receiver(status: int = 200) -> AsyncIterator[tuple[str, list[tuple[dict[str, str], Any]]]]:
    """A real server for webhooks: its address, and the requests that it got."""
    got: list[tuple[dict[str, str], Any]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        fields = dict(line.split(": ", 1) for line in head[1:] if ": " in line)
        named = {name.lower(): value for name, value in fields.items()}
        body = await reader.readexactly(int(named["content-length"]))
        got.append(({"request": head[0], **named}, json.loads(body)))
        first = 503 if status == 503 and len(got) == 1 else 200
        writer.write(f"HTTP/1.1 {first} Said\r\ncontent-length: 0\r\nconnection: close\r\n\r\n".encode())
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/hook?secret=s", got
    finally:
        server.close()


@table(*((entry,) for entry in ENTRIES))
async def webhook(lab: Lab, entry: str) -> None:
    thread = await lab.thread()
    async with receiver() as (url, got):
        await entered(lab, entry, thread, webhook=url, **lab.asked())

        async def told() -> int:
            return len(got)

        await eventually(told)
    head, body = got[0]
    [run] = await lab.client.runs.list(thread)
    assert head["request"].startswith("POST /hook?secret=s ")
    assert head["content-type"].startswith("application/json")
    assert (body["run_id"], body["thread_id"], body["status"]) == (run["run_id"], thread, "success")
    for name in ("run_started_at", "run_ended_at", "webhook_sent_at"):
        assert datetime.fromisoformat(body[name]).tzinfo is not None
    assert contents(body["values"], lab.mark) == ["Hi", ANSWER]
    assert not body.get("error")


@case
async def webhook_of_a_failure(lab: Lab) -> None:
    thread = await lab.thread()
    async with receiver() as (url, got):
        await lab.client.runs.create(thread, AGENT, webhook=url, **lab.asked("breaks"))

        async def told() -> int:
            return len(got)

        await eventually(told)
    _, body = got[0]
    assert body["status"] == "error"
    assert "the script breaks" in json.dumps(body["error"])


@case
async def webhook_again(lab: Lab) -> None:
    """One that is not taken is sent again; one that was taken is not."""
    thread = await lab.thread()
    async with receiver(503) as (url, got):
        await lab.client.runs.wait(thread, AGENT, webhook=url, **lab.asked())

        async def twice() -> bool:
            return len(got) >= 2

        await eventually(twice)
    assert [body["run_id"] for _, body in got] == [got[0][1]["run_id"]] * 2


@case
async def webhook_refused(lab: Lab) -> None:
    thread = await lab.thread()
    for url in ("not a url", "ftp://example.org/", "file:///etc/passwd"):
        body = {"assistant_id": AGENT, "webhook": url, **lab.asked()}
        await lab.ask("POST", f"/threads/{thread}/runs", body, status=422)
    assert await lab.client.runs.list(thread) == []

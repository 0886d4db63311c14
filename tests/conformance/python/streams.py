"""Streams: which events a run has in which mode, in which order; and that nothing of it is lost or doubled."""

from __future__ import annotations

import asyncio
import itertools
import uuid
from typing import Any

import httpx

from tests.conformance.python.lab import AGENT, Frame, Lab, Skipped, case, contents, line, table, untimed

MODES = ("values", "updates", "messages-tuple", "messages", "custom", "tasks", "checkpoints", "debug", "events")
NAMES: dict[str, set[str]] = {
    "values": {"values"},
    "updates": {"updates"},
    "messages-tuple": {"messages"},
    "messages": {"messages/metadata", "messages/complete"},
    "custom": {"custom"},
    "tasks": {"tasks"},
    "checkpoints": {"checkpoints"},
    "debug": {"debug"},
    "events": {"events"},
}
ALWAYS = {"metadata", "end"}
PARTIAL = "messages/partial"
"""A short message may be complete before a part of it arrives: `messages_legacy` sees one."""


async def streamed(lab: Lab, model: str = "works", thread: str | None = None, **more: Any) -> tuple[str, list[Any]]:
    found = thread or await lab.thread()
    stream: Any = lab.client.runs.stream(found, AGENT, **{**lab.asked(model), **more})
    return found, [part async for part in stream]


def of(parts: list[Any], event: str) -> list[Any]:
    return [part.data for part in parts if part.event == event]


def said(parts: list[Any]) -> dict[str, str]:
    """The text of each message, put together from its chunks."""
    found: dict[str, str] = {}
    for message, _ in of(parts, "messages"):
        found[message["id"]] = found.get(message["id"], "") + message["content"]
    return found


@table(*((mode,) for mode in MODES))
async def one_mode(lab: Lab, mode: Any) -> None:
    """Only what was asked for, between one `metadata` and the end."""
    thread, parts = await streamed(lab, stream_mode=mode)
    events = [part.event for part in parts]
    assert events[0] == "metadata"
    assert events.count("metadata") == 1
    assert events[-1] == "end"
    assert set(events) <= ALWAYS | NAMES[mode] | ({PARTIAL} if mode == "messages" else set())
    if mode != "custom":
        assert set(events) >= ALWAYS | NAMES[mode]
    [run] = await lab.client.runs.list(thread)
    assert parts[0].data["run_id"] == run["run_id"]
    assert run["status"] == "success"


@case
async def all_modes(lab: Lab) -> None:
    _, parts = await streamed(lab, stream_mode=list(MODES))
    events = {part.event for part in parts}
    every = set().union(*NAMES.values()) - NAMES["messages"] - {"custom"} | {"messages"}
    assert events - {"custom"} == ALWAYS | every  # with both, the tuples only


@case
async def by_default(lab: Lab) -> None:
    thread = await lab.thread()
    plain: dict[str, Any] = {"assistant_id": AGENT, **lab.asked()}
    none: tuple[Any, ...] = (None, [], "values")
    for body in (plain, *({**plain, "stream_mode": modes} for modes in none)):
        frames = await lab.frames("POST", f"/threads/{thread}/runs/stream", body)
        assert {frame.event for frame in frames} == {"metadata", "values", "end"}


@case
async def values(lab: Lab) -> None:
    """The first shows the input, the last is the state."""
    thread, parts = await streamed(lab, stream_mode="values")
    shown = of(parts, "values")
    assert contents(shown[0], lab.mark) == ["Hi"]
    state = (await lab.client.threads.get_state(thread))["values"]
    assert shown[-1] == {**state, "messages": untimed(state["messages"])}
    counts = [len(one["messages"]) for one in shown]
    assert counts == sorted(counts)
    assert (counts[0], counts[-1]) == (1, 5)


@case
async def updates(lab: Lab) -> None:
    _, parts = await streamed(lab, stream_mode=["updates", "values"])
    told = [next(iter(one.items())) for one in of(parts, "updates")]
    assert [node for node, _ in told if node in ("model", "tools")] == [node for node, _ in told if _]
    messages = [message for _, update in told if update for message in update.get("messages", [])]
    last = of(parts, "values")[-1]["messages"]
    assert {message["id"]: message for message in messages} == {message["id"]: message for message in last[1:]}


@case
async def messages_tuple(lab: Lab) -> None:
    """Deltas; put together they are the messages of the state, under the same ids."""
    thread, parts = await streamed(lab, stream_mode=["messages-tuple", "values"])
    final = {m["id"]: m for m in of(parts, "values")[-1]["messages"] if m["type"] != "human"}
    assert said(parts) == {identity: message["content"] for identity, message in final.items()}
    [run] = await lab.client.runs.list(thread)
    for message, metadata in of(parts, "messages"):
        assert message["id"]
        assert message["type"].removesuffix("MessageChunk").lower().startswith(("ai", "tool"))
        assert metadata["langgraph_node"] in ("model", "tools")
        assert isinstance(metadata["langgraph_step"], int)
        assert metadata["langgraph_checkpoint_ns"]
        assert metadata["run_id"] == run["run_id"]


@case
async def tool_calls_in_pieces(lab: Lab) -> None:
    _, parts = await streamed(lab, stream_mode=["messages-tuple", "values"])
    arguments: dict[int, str] = {}
    names: dict[int, str] = {}
    for message, _ in of(parts, "messages"):
        for piece in message.get("tool_call_chunks") or []:
            arguments[piece["index"]] = arguments.get(piece["index"], "") + (piece["args"] or "")
            names.setdefault(piece["index"], piece["name"])
    assert {key: httpx.Response(200, text=text).json() for key, text in arguments.items()} == {
        0: {"text": "a"},
        1: {"text": "b"},
    }
    assert set(names.values()) == {"note"}


@case
async def reasoning_is_streamed(lab: Lab) -> None:
    _, parts = await streamed(lab, "thinks", stream_mode="messages-tuple")
    thought = "".join(message["additional_kwargs"].get("reasoning_content", "") for message, _ in of(parts, "messages"))
    assert thought == "I wonder about it."


@case
async def messages_legacy(lab: Lab) -> None:
    """Cumulative: each partial is the message so far. The message goes on when the first one was seen."""
    stream = lab.client.runs.stream(await lab.thread(), AGENT, stream_mode="messages", **lab.asked("gated"))
    parts: list[Any] = []
    async for part in stream:
        parts.append(part)
        if part.event == PARTIAL and len(of(parts, PARTIAL)) == 1:
            await lab.release()
    partial = [one[0]["content"] for one in of(parts, PARTIAL)]
    assert partial
    for before, after in itertools.pairwise(partial):
        assert after.startswith(before)
    [[complete]] = of(parts, "messages/complete")
    assert complete["content"] == "one two three four"
    [announced] = of(parts, "messages/metadata")
    assert list(announced) == [complete["id"]]
    assert announced[complete["id"]]["metadata"]["langgraph_node"] == "model"


@case
async def custom(lab: Lab) -> None:
    _, parts = await streamed(lab, "stumbles", stream_mode="custom")
    retries = [one for one in of(parts, "custom") if one["type"] == "llm_retry"]
    assert [one["attempt"] for one in retries] == [1]
    assert retries[0]["reason"] in ("busy", "transient")
    assert set(retries[0]) == {"type", "attempt", "max_attempts", "wait_ms", "reason", "message"}


@case
async def tasks(lab: Lab) -> None:
    _, parts = await streamed(lab, stream_mode="tasks")
    told = of(parts, "tasks")
    starts = [one for one in told if "triggers" in one]
    ends = [one for one in told if "result" in one]
    assert [one["name"] for one in starts] == ["model", "tools", "tools", "model"]
    assert {one["id"] for one in starts} == {one["id"] for one in ends}
    assert all(set(one) >= {"id", "name", "input", "triggers"} for one in starts)
    assert all(set(one) >= {"id", "name", "error", "result", "interrupts"} for one in ends)


@case
async def checkpoints(lab: Lab) -> None:
    thread, parts = await streamed(lab, stream_mode="checkpoints")
    told = of(parts, "checkpoints")
    assert all(set(one) >= {"config", "parent_config", "values", "metadata", "next", "tasks"} for one in told)
    history = await lab.client.threads.get_history(thread, limit=100)
    assert [one["config"]["configurable"]["checkpoint_id"] for one in told] == [
        one["checkpoint"]["checkpoint_id"] for one in history
    ][::-1]
    assert [one["parent_config"] for one in told[1:]] == [one["config"] for one in told[:-1]]
    assert told[0]["parent_config"] is None
    assert told[-1]["next"] == []


@case
async def debug(lab: Lab) -> None:
    _, parts = await streamed(lab, stream_mode="debug")
    told = of(parts, "debug")
    assert all(set(one) == {"step", "timestamp", "type", "payload"} for one in told)
    assert {one["type"] for one in told} == {"checkpoint", "task", "task_result"}


@case
async def events(lab: Lab) -> None:
    _, parts = await streamed(lab, stream_mode="events")
    told = of(parts, "events")
    assert all(set(one) >= {"event", "name", "run_id", "data", "tags", "metadata", "parent_ids"} for one in told)
    kinds = [one["event"] for one in told]
    assert kinds[0] == "on_chain_start"
    assert kinds[-1] == "on_chain_end"
    assert {"on_chat_model_start", "on_chat_model_stream", "on_chat_model_end", "on_tool_start", "on_tool_end"} <= set(
        kinds
    )


@table((True,), (False,))
async def subgraphs(lab: Lab, wanted: bool) -> None:
    """Events of the root keep their bare names; without the flag no name has a namespace."""
    _, parts = await streamed(lab, stream_mode=list(MODES), stream_subgraphs=wanted)
    bare = [part.event for part in parts if "|" not in part.event]
    assert "values" in bare
    assert "messages" in bare
    if not wanted:
        assert len(bare) == len(parts)


@table((True,), (False,))
async def subagents(lab: Lab, wanted: bool) -> None:
    """Each subagent in the namespace of its call; a reader that was cut off gets the same."""
    context = {"model_name": "delegates", "subagent_enabled": True}
    thread, parts = await streamed(
        lab, "delegates", context=context, stream_mode=["values", "messages-tuple", "custom"], stream_subgraphs=wanted
    )
    [run] = await lab.client.runs.list(thread)
    joined: Any = lab.client.runs.join_stream(thread, run["run_id"], last_event_id="-1")
    calls = [call["id"] for call in of(parts, "values")[-1]["messages"][1]["tool_calls"]]
    for told in (parts, [part async for part in joined]):
        assert [event["type"] for event in of(told, "custom") if event["task_id"] == calls[0]] == [
            *("task_started", "task_running", "task_running", "task_completed"),
        ]
        for call in calls if wanted else ():
            texts: dict[str, str] = {}
            for message, _ in of(told, f"messages|tools:{call}"):
                texts[message["id"]] = texts.get(message["id"], "") + message["content"]
            conversation = of(told, f"values|tools:{call}")[-1]["messages"]
            assert [message["type"] for message in conversation] == ["human", "ai", "tool", "ai"]
            assert texts == {message["id"]: message["content"] for message in conversation[1:]}
        if not wanted:
            assert not [part.event for part in told if "|" in part.event]
    past = await lab.client.threads.get_state(
        thread, checkpoint={"thread_id": thread, "checkpoint_ns": f"tools:{calls[0]}"}
    )
    assert [message["type"] for message in past["values"]["messages"]] == ["human", "ai", "tool", "ai"]


@case
async def a_failure(lab: Lab) -> None:
    thread = await lab.thread()
    frames = await lab.frames(
        "POST", f"/threads/{thread}/runs/stream", {"assistant_id": AGENT, **lab.asked("breaks-late")}
    )
    [error] = [frame for frame in frames if frame.event == "error"]
    assert isinstance(error.data["error"], str)
    assert "the script breaks" in error.data["message"]
    assert [frame.event for frame in frames][-2:] == ["error", "end"]
    [run] = await lab.client.runs.list(thread)
    assert run["status"] == "error"
    failed, parts = await streamed(lab, "breaks")
    assert of(parts, "error")[0]["error"]
    assert failed


@case
async def version_two(lab: Lab) -> None:
    """A rewrapping of the client's own."""
    thread = await lab.thread()
    stream = lab.client.runs.stream
    if "version" not in stream.__kwdefaults__:
        raise Skipped("this release has one version only")
    parts: list[Any] = [
        part async for part in stream(thread, AGENT, version="v2", stream_mode=["values", "updates"], **lab.asked())
    ]
    assert parts[0]["type"] == "metadata"
    assert contents(parts[-1]["data"], lab.mark)[-1] == "Hello to you, too."


# ── on the wire ─────────────────────────────────────────────────────────────────────────────────────────────────────


@case
async def heads(lab: Lab) -> None:
    thread = await lab.thread()
    body = {"assistant_id": AGENT, **lab.asked()}
    async with lab.http.stream("POST", f"/threads/{thread}/runs/stream", json=body) as response:
        head = response.headers
        assert head["content-type"].startswith("text/event-stream")
        assert head["cache-control"] == "no-store, no-transform"
        assert head["x-accel-buffering"] == "no"
        run = head["content-location"].rpartition("/")[2]
        assert head["content-location"] == f"/threads/{thread}/runs/{run}"
        assert head["location"] == f"/threads/{thread}/runs/{run}/stream"
        uuid.UUID(run)
        await response.aread()
    async with lab.http.stream("GET", f"/threads/{thread}/runs/{run}/stream") as response:
        assert response.headers["location"] == f"/threads/{thread}/runs/{run}/stream"
        await response.aread()


@table((True,), (False,))
async def ids(lab: Lab, resumable: bool) -> None:
    thread = await lab.thread()
    body = {
        "assistant_id": AGENT,
        "stream_mode": ["values", "updates", "messages-tuple"],
        "stream_resumable": resumable,
        **lab.asked("works"),
    }
    frames = await lab.frames("POST", f"/threads/{thread}/runs/stream", body)
    found = [frame.id for frame in frames if frame.id]
    assert len(found) == len(set(found))
    assert len(found) == len(frames)


async def finished(lab: Lab, modes: list[str]) -> tuple[str, list[Frame]]:
    """The path of a stream whose run has ended, and all its frames."""
    thread = await lab.thread()
    body = {"assistant_id": AGENT, "stream_mode": modes, "stream_resumable": True, **lab.asked("works")}
    frames = await lab.frames("POST", f"/threads/{thread}/runs/stream", body)
    return f"/threads/{thread}/runs/{frames[0].data['run_id']}/stream", frames


@case
async def resume_everywhere(lab: Lab) -> None:
    """Facts after the cursor, all of them, once; the text of messages whole, however it is cut. After the last frame
    there is nothing to come back for, which the SDK takes for an empty stream.
    """
    path, frames = await finished(lab, ["values", "updates", "messages-tuple"])
    whole = said(frames)
    for number, frame in enumerate(frames[:-1]):
        seen = frames[: number + 1]
        rest = await lab.frames("GET", path, last=frame.id)
        assert [one for one in seen + rest if one.event != "messages"] == [
            one for one in frames if one.event != "messages"
        ]
        assert said(seen + rest) == whole
    last = frames[-1].id
    assert (
        await lab.ask("GET", path, status=204, headers={"Accept": "text/event-stream", "Last-Event-ID": last}) is None
    )
    _, _, thread, _, run, _ = path.split("/")
    assert [part async for part in lab.client.runs.join_stream(thread, run, last_event_id=last)] == []


@table(("-1",), ("0",), ("no-such-id",), ("99999999-0-0",), ("1795198184224-0",), ("R_event_3",))
async def resume_from_the_beginning(lab: Lab, cursor: str) -> None:
    path, frames = await finished(lab, ["values", "updates"])
    assert await lab.frames("GET", path, last=cursor) == frames


@case
async def join_what_is_over(lab: Lab) -> None:
    path, _ = await finished(lab, ["values"])
    assert [frame.event for frame in await lab.frames("GET", path)] in ([], ["end"])


@case
async def join_from_now_on(lab: Lab) -> None:
    thread = await lab.thread()
    run = (await lab.client.runs.create(thread, AGENT, stream_mode=["values"], **lab.asked("twice")))["run_id"]
    await lab.reached()
    parts: list[Any] = []
    joined = asyncio.Event()

    async def on_response(_: httpx.Response) -> None:
        joined.set()

    async def join() -> None:
        hooks: Any = {"response": [on_response]}
        async with httpx.AsyncClient(base_url=f"{lab.urls[0]}/api", timeout=20, event_hooks=hooks) as wire:
            async for part in type(lab.client)(wire).runs.join_stream(thread, run, stream_mode=["values"]):
                parts.append(part)

    joining = asyncio.create_task(join())
    await joined.wait()
    await lab.release()
    await joining
    shown = of(parts, "values")
    assert len(shown[-1]["messages"]) == 4
    assert parts[-1].event == "end"


@table(
    ("stream_mode=values&stream_mode=updates", {"values", "updates"}),
    ('stream_mode=["values","updates"]', {"values", "updates"}),
    ("stream_mode=updates", {"updates"}),
    ("", {"values", "updates", "messages"}),
)
async def join_in_other_modes(lab: Lab, query: str, expected: set[str]) -> None:
    path, _ = await finished(lab, ["values", "updates", "messages-tuple"])
    frames = await lab.frames("GET", f"{path}?{query}", last="-1")
    assert {frame.event for frame in frames} == expected | ALWAYS


@table(("cancel_on_disconnect=0",), ("cancel_on_disconnect=false",))
async def join_without_cancelling(lab: Lab, query: str) -> None:
    path, _ = await finished(lab, ["values"])
    assert await lab.frames("GET", f"{path}?{query}", last="-1")


@table((False,), (True,))
async def over_a_broken_line(lab: Lab, resumable: bool) -> None:
    """The client goes on by itself, with the last id it saw; nothing is lost or doubled."""
    thread = await lab.thread()
    async with line(lab.urls[0]) as wire:
        through = type(lab.client)(httpx.AsyncClient(base_url=f"{wire.url}/api", timeout=20))
        parts: list[Any] = []
        cut = False
        modes: Any = ["values", "messages-tuple", "updates"]
        async for part in through.runs.stream(
            thread, AGENT, stream_mode=modes, stream_resumable=resumable, **lab.asked("gated")
        ):
            parts.append(part)
            if "".join(said(parts).values()) and not cut:
                cut = True
                await lab.reached()
                wire.cut()
                await lab.release()
        await through.http.client.aclose()
    assert parts[-1].event == "end"
    events = [part.event for part in parts if part.event != "messages"]
    assert events == ["metadata", "values", "updates", "values", "end"]
    assert list(said(parts).values()) == ["one two three four"]
    assert [seen for seen in wire.seen[1:] if " " in seen.removeprefix("GET ")]  # it named its place


@case
async def many_readers(lab: Lab) -> None:
    """They all see the same."""
    thread = await lab.thread()
    run = (await lab.client.runs.create(thread, AGENT, stream_mode=["values", "messages-tuple"], **lab.asked("gated")))[
        "run_id"
    ]
    path = f"/threads/{thread}/runs/{run}/stream"
    readers = [asyncio.create_task(lab.frames("GET", path, last="-1")) for _ in range(5)]
    await lab.reached()
    await lab.release()
    seen = await asyncio.gather(*readers)
    facts = [[frame for frame in frames if frame.event != "messages"] for frames in seen]
    assert all(one == facts[0] for one in facts)
    assert all(list(said(frames).values()) == ["one two three four"] for frames in seen)


@case
async def stop_and_stream_the_rest(lab: Lab) -> None:
    """The stop button of older clients: `POST …/stream?action=interrupt`."""
    thread = await lab.thread()
    run = (await lab.client.runs.create(thread, AGENT, **lab.asked("gated")))["run_id"]
    await lab.reached()
    frames = await lab.frames("POST", f"/threads/{thread}/runs/{run}/stream?action=interrupt")
    assert frames[-1].event == "end"
    assert await lab.status(thread, run) == "interrupted"

"""Threads: made, read, annotated, deleted, found, counted, copied, pruned, followed."""

from __future__ import annotations

import asyncio
import uuid
from datetime import datetime
from typing import Any

import httpx

from tests.conformance.python.lab import (
    AGENT,
    Frame,
    Lab,
    Skipped,
    case,
    contents,
    eventually,
    needs,
    raises,
    table,
    unnumbered,
    untimed,
)

FIELDS = {"thread_id", "created_at", "updated_at", "metadata", "status", "values", "interrupts", "config", "error"}


def status_of(error: httpx.HTTPStatusError) -> int:
    return error.response.status_code


@case
async def create(lab: Lab) -> None:
    thread: Any = await lab.client.threads.create(metadata={"mark": lab.mark}, graph_id=AGENT)
    assert set(thread) >= FIELDS
    uuid.UUID(thread["thread_id"])
    assert thread["status"] == "idle"
    assert thread["metadata"] == {"mark": lab.mark, "graph_id": AGENT}
    assert not thread["values"]
    assert thread["interrupts"] == {}
    for name in ("created_at", "updated_at"):
        assert datetime.fromisoformat(thread[name]).tzinfo is not None
    assert await lab.client.threads.get(thread["thread_id"]) == thread


@case
async def create_with_an_id(lab: Lab) -> None:
    identity = str(uuid.uuid4())
    made = await lab.client.threads.create(thread_id=identity, metadata={"a": 1})
    assert made["thread_id"] == identity
    again = await lab.client.threads.create(thread_id=identity, metadata={"a": 2}, if_exists="do_nothing")
    assert again == made
    error = await raises(httpx.HTTPStatusError, lab.client.threads.create(thread_id=identity, if_exists="raise"))
    assert status_of(error) == 409


@case
async def create_with_supersteps(lab: Lab) -> None:
    said = [{"type": "human", "content": "q", "id": "h"}]
    answered = [{"type": "ai", "content": "a", "id": "i"}]
    steps = [
        {"updates": [{"values": {"messages": said}, "as_node": "__start__"}]},
        {"updates": [{"values": {"messages": answered, "title": "T"}, "as_node": "model"}]},
    ]
    thread = (await lab.client.threads.create(supersteps=steps))["thread_id"]
    state: Any = await lab.client.threads.get_state(thread)
    assert contents(state["values"]) == ["q", "a"]
    assert state["values"]["title"] == "T"
    assert state["next"] == []
    history = await lab.client.threads.get_history(thread)
    assert [len(contents(one["values"])) for one in history] == [2, 1]


@case
async def the_first_run_names_its_graph(lab: Lab) -> None:
    thread, _ = await lab.said()
    found: Any = await lab.client.threads.get(thread)
    assert found["metadata"]["graph_id"] == AGENT
    uuid.UUID(found["metadata"]["assistant_id"])
    assert contents(found["values"])[-1] == "Hello to you, too."
    assert found["status"] == "idle"


@case
async def update(lab: Lab) -> None:
    thread = await lab.thread(metadata={"a": 1, "b": {"c": 1}})
    merged = await lab.client.threads.update(thread, metadata={"a": 2, "d": None})
    assert merged["metadata"] == {"a": 2, "b": {"c": 1}}, "null removes a key"
    assert (await lab.client.threads.get(thread))["metadata"] == merged["metadata"]
    assert merged["updated_at"] >= merged["created_at"]
    error = await raises(httpx.HTTPStatusError, lab.client.threads.update(str(uuid.uuid4()), metadata={"a": 1}))
    assert status_of(error) == 404


@case
async def update_with_a_minimal_answer(lab: Lab) -> None:
    thread = await lab.thread()
    path, prefer = f"/threads/{thread}", {"Prefer": "return=minimal"}
    assert await lab.ask("PATCH", path, {"metadata": {"a": 1}}, status=204, headers=prefer) is None
    assert (await lab.client.threads.get(thread))["metadata"] == {"a": 1}


@case
async def expiry_is_told(lab: Lab) -> None:
    """`include=ttl` names it; it can be changed and is not in the way otherwise."""
    thread = await lab.thread(ttl={"ttl": 43_200, "strategy": "delete"})
    shown = (await lab.ask("GET", f"/threads/{thread}", params={"include": "ttl"}))["ttl"]
    assert shown["strategy"] == "delete"
    assert 43_200 in shown.values()
    await lab.client.threads.update(thread, metadata={}, ttl={"ttl": 10, "strategy": "keep_latest"})
    shown = (await lab.ask("GET", f"/threads/{thread}", params={"include": "ttl"}))["ttl"]
    assert shown["strategy"] == "keep_latest"
    assert 10 in shown.values()
    assert "ttl" not in await lab.ask("GET", f"/threads/{thread}")


@case
async def an_expired_thread_goes(lab: Lab) -> None:
    thread = await lab.thread(ttl={"ttl": 0.01, "strategy": "delete"})

    async def gone() -> bool:
        return (await lab.http.get(f"/threads/{thread}")).status_code == 404

    await eventually(gone)


@case
async def delete(lab: Lab) -> None:
    thread, _ = await lab.said()
    [run] = await lab.client.runs.list(thread)
    await lab.client.threads.delete(thread)
    for path in ("", "/state", "/runs", f"/runs/{run['run_id']}", "/history"):
        assert (await lab.http.get(f"/threads/{thread}{path}")).status_code == 404, path
    assert await lab.client.threads.search(ids=[thread]) == []
    error = await raises(httpx.HTTPStatusError, lab.client.threads.delete(str(uuid.uuid4())))
    assert status_of(error) == 404


async def _several(lab: Lab, count: int = 5) -> list[str]:
    return [await lab.thread(metadata={"mark": lab.mark, "number": n, "even": n % 2 == 0}) for n in range(count)]


@case
async def search_by_metadata(lab: Lab) -> None:
    made = await _several(lab)
    found = await lab.client.threads.search(metadata={"mark": lab.mark})
    assert [thread["thread_id"] for thread in found] == made[::-1]
    even = await lab.client.threads.search(metadata={"mark": lab.mark, "even": True})
    assert [thread["thread_id"] for thread in even] == made[::2][::-1]
    assert await lab.client.threads.search(metadata={"mark": lab.mark, "number": 9}) == []


@case
async def search_in_pages(lab: Lab) -> None:
    made = (await _several(lab))[::-1]
    body = {"metadata": {"mark": lab.mark}, "limit": 2}
    seen: list[str] = []
    offset: int | None = 0
    while offset is not None:
        response = await lab.http.post("/threads/search", json={**body, "offset": offset})
        assert response.headers["x-pagination-total"] == "5"
        seen += [thread["thread_id"] for thread in response.json()]
        following = response.headers.get("x-pagination-next")
        offset = int(following) if following else None
    assert seen == made


@table(("thread_id",), ("created_at",), ("updated_at",), ("state_updated_at",), ("status",))
async def search_sorted(lab: Lab, by: Any) -> None:
    await _several(lab, 3)
    up = await lab.client.threads.search(metadata={"mark": lab.mark}, sort_by=by, sort_order="asc")
    down = await lab.client.threads.search(metadata={"mark": lab.mark}, sort_by=by, sort_order="desc")
    keys = [(await lab.ask("GET", f"/threads/{one['thread_id']}"))[by] for one in up]
    assert keys == sorted(keys)
    if by != "status":
        assert [one["thread_id"] for one in down] == [one["thread_id"] for one in up][::-1]


@case
async def search_by_status(lab: Lab) -> None:
    idle, busy, failed = [await lab.thread(metadata={"mark": lab.mark}) for _ in range(3)]
    run = await lab.client.runs.create(busy, AGENT, **lab.asked("gated"))
    await lab.reached()
    broken = await lab.client.runs.create(failed, AGENT, **lab.asked("breaks"))
    await lab.ended(failed, broken["run_id"])
    for status, thread in (("idle", idle), ("busy", busy), ("error", failed)):
        assert (await lab.client.threads.get(thread))["status"] == status

        async def found(status: Any = status, thread: str = thread) -> bool:
            hits = await lab.client.threads.search(metadata={"mark": lab.mark}, status=status)
            return [one["thread_id"] for one in hits] == [thread]

        await eventually(found)
        assert await lab.client.threads.count(metadata={"mark": lab.mark}, status=status) == 1
    await lab.client.runs.cancel(busy, run["run_id"], wait=True)


@case
async def search_by_ids_and_values(lab: Lab) -> None:
    made = await _several(lab, 3)
    found = await lab.client.threads.search(ids=made[:2])
    assert {thread["thread_id"] for thread in found} == set(made[:2])
    await lab.client.threads.update_state(made[1], {"title": lab.mark})

    async def titled() -> list[str]:
        hits = await lab.client.threads.search(values={"title": lab.mark})
        return [thread["thread_id"] for thread in hits]

    assert await eventually(titled) == [made[1]]
    assert await lab.client.threads.count(values={"title": lab.mark}) == 1


@case
async def search_selected(lab: Lab) -> None:
    """DeerFlow's list."""
    thread = await lab.thread(metadata={"mark": lab.mark})
    await lab.client.threads.update_state(thread, {"title": "A title"})

    async def hit() -> Any:
        hits = await lab.client.threads.search(
            metadata={"mark": lab.mark},
            sort_by="updated_at",
            sort_order="desc",
            select=["thread_id", "updated_at", "values", "metadata"],
        )
        return hits if hits[0]["values"] else None

    [found] = await eventually(hit)
    assert set(found) == {"thread_id", "updated_at", "values", "metadata"}
    assert found["values"]["title"] == "A title"


@case
async def search_extracts(lab: Lab) -> None:
    thread = await lab.thread(metadata={"mark": lab.mark})
    await lab.said(thread=thread)
    extract = {"last": "values.messages[-1].content", "first": "values.messages[0].type", "none": "values.x.y"}

    async def hit() -> Any:
        [found] = await lab.ask("POST", "/threads/search", {"metadata": {"mark": lab.mark}, "extract": extract})
        return found["extracted"] if found["extracted"]["last"] else None

    assert await eventually(hit) == {"last": "Hello to you, too.", "first": "human", "none": None}


@case
async def search_shows_the_values(lab: Lab) -> None:
    thread = await lab.thread(metadata={"mark": lab.mark})
    _, values = await lab.said(thread=thread)

    async def hit() -> Any:
        [found] = await lab.client.threads.search(metadata={"mark": lab.mark}, select=["thread_id", "values", "status"])
        return found["values"] if found["values"] and found["values"].get("messages") else None

    assert (await eventually(hit))["messages"] == values["messages"]


@table(("limit", 0), ("limit", 1001), ("limit", -1), ("offset", -1), ("sort_by", "colour"), ("status", "asleep"))
async def search_refuses(lab: Lab, name: str, value: Any) -> None:
    await lab.ask("POST", "/threads/search", {name: value}, status=422)


@case
async def count(lab: Lab) -> None:
    await _several(lab, 3)
    assert await lab.client.threads.count(metadata={"mark": lab.mark}) == 3
    response = await lab.http.post("/threads/count", json={"metadata": {"mark": lab.mark, "even": True}})
    assert response.content == b"2"


@case
async def runs_move_updated_at(lab: Lab) -> None:
    older, newer = await _several(lab, 2)
    await lab.said(thread=older)

    async def first() -> bool:
        hits = await lab.client.threads.search(metadata={"mark": lab.mark}, sort_by="updated_at", sort_order="desc")
        return [thread["thread_id"] for thread in hits] == [older, newer]

    await eventually(first)


@case
async def copy(lab: Lab) -> None:
    thread, values = await lab.said()
    copied: Any = await lab.ask("POST", f"/threads/{thread}/copy")
    assert copied["thread_id"] != thread
    mine, theirs = [await lab.client.threads.get_history(one) for one in (thread, copied["thread_id"])]
    numbers = [
        [message["additional_kwargs"]["seq"] for message in one[0]["values"]["messages"]] for one in (mine, theirs)
    ]
    assert max(numbers[0]) < min(numbers[1])
    assert [unnumbered(one["values"]) for one in theirs] == [unnumbered(one["values"]) for one in mine]
    assert {one["checkpoint"]["thread_id"] for one in theirs} == {copied["thread_id"]}
    assert theirs[-1]["parent_checkpoint"] is None
    await lab.said(thread=copied["thread_id"])
    assert len(await lab.texts(copied["thread_id"])) == 4
    assert (await lab.client.threads.get_state(thread))["values"]["messages"] == values["messages"]


@case
async def copy_by_the_sdk(lab: Lab) -> None:
    thread, _ = await lab.said()
    # The client promises nothing here, and gives what the server answers.
    copied: Any = await lab.client.threads.copy(thread)
    found = copied or (await lab.client.threads.search(limit=1, sort_by="created_at", sort_order="desc"))[0]
    assert found["thread_id"] != thread
    error = await raises(httpx.HTTPStatusError, lab.client.threads.copy(str(uuid.uuid4())))
    assert status_of(error) in (404, 409)


@case
async def prune(lab: Lab) -> None:
    kept, gone = (await lab.said())[0], (await lab.said())[0]
    last = await lab.client.threads.get_state(kept)
    answer = await lab.ask("POST", "/threads/prune", {"thread_ids": [kept], "strategy": "keep_latest"})
    assert answer == {"pruned_count": 1}
    [left] = await lab.client.threads.get_history(kept)
    assert unnumbered(left["values"]) == unnumbered(last["values"])
    assert left["parent_checkpoint"] is None
    await lab.said(thread=kept)
    assert len(await lab.texts(kept)) == 4
    unknown = str(uuid.uuid4())
    answer = await lab.ask("POST", "/threads/prune", {"thread_ids": [gone, unknown], "strategy": "delete"})
    assert answer == {"pruned_count": 1}
    await lab.ask("GET", f"/threads/{gone}", status=404)


@case
async def prune_by_the_sdk(lab: Lab) -> None:
    needs(lab.client.threads, "prune")
    threads = await _several(lab, 2)
    assert (await lab.client.threads.prune(threads))["pruned_count"] == 2
    assert await lab.client.threads.count(metadata={"mark": lab.mark}) == 0


@case
async def follow(lab: Lab) -> None:
    """One stream over all runs of a thread, endless."""
    thread = await lab.thread()
    seen: list[Any] = []

    async def listen() -> None:
        stream: Any = await lab.client.threads.join_stream(thread, last_event_id="-1", stream_mode="run_modes")
        async for part in stream:
            seen.append(part)

    listening = asyncio.create_task(listen())
    for turn in (1, 2):
        values: Any = await lab.client.runs.wait(thread, AGENT, **lab.asked())

        async def whole(turn: int = turn, values: Any = values) -> bool:
            if listening.done():
                listening.result()
            shown = [part.data for part in seen if part.event == "values"]
            begun = [part for part in seen if part.event == "metadata" and "attempt" in part.data]
            return len(begun) == turn and bool(shown) and untimed(shown[-1]["messages"]) == untimed(values["messages"])

        await eventually(whole)
        assert not listening.done()
    listening.cancel()
    await asyncio.gather(listening, return_exceptions=True)
    ids = [part.id for part in seen if getattr(part, "id", None)]  # older releases keep it to themselves
    assert len(ids) == len(set(ids))


@case
async def follow_from_a_place(lab: Lab) -> None:
    thread, _ = await lab.said()
    await lab.said(thread=thread)

    async def frames(last: str, count: int) -> list[Frame]:
        found: list[Frame] = []
        path = f"/threads/{thread}/stream?stream_modes=run_modes"
        async for frame in lab.frames_of("GET", path, last=last):
            found.append(frame)
            if len(found) == count:
                break
        return found

    every = await frames("-1", 6)
    cut = next(number for number, frame in enumerate(every) if frame.id and number >= 2)
    assert await frames(every[cut].id, len(every) - cut - 1) == every[cut + 1 :]


@table(("lifecycle",), ("state_update",))
async def follow_modes(lab: Lab, mode: str) -> None:
    thread = await lab.thread()
    seen: list[Frame] = []

    async def listen() -> None:
        async for frame in lab.frames_of("GET", f"/threads/{thread}/stream?stream_mode={mode}", last="-1"):
            seen.append(frame)

    listening = asyncio.create_task(listen())
    await lab.said(thread=thread)
    await lab.client.threads.update_state(thread, {"title": "T"})

    async def some() -> bool:
        if listening.done():
            listening.result()
        return len(seen) > 0

    await eventually(some)
    listening.cancel()
    await asyncio.gather(listening, return_exceptions=True)
    assert {frame.event for frame in seen} == {"metadata" if mode == "lifecycle" else mode}


@case
async def the_event_protocol(lab: Lab) -> None:
    """`threads.stream()`: the thread-centric protocol (§7)."""
    if not hasattr(lab.client.threads, "stream"):
        raise Skipped("this release has no threads.stream")
    thread = await lab.thread()
    async with lab.client.threads.stream(thread, assistant_id=AGENT) as stream:
        asked = lab.asked()
        await stream.run.start(input=asked["input"], config={"configurable": asked["context"]})
        output: Any = await stream.output
    assert contents(output, lab.mark) == ["Hi", "Hello to you, too."]

"""A thread's stream: the frames of its runs, one after the other, from any place on."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from langgraph_sdk import get_client
from playwright.async_api import Browser

from channels.http.protocols.langgraph.follow import ThreadFrames
from channels.http.protocols.langgraph.frames import Cursor, Frames
from channels.http.streams.sse import Frame
from core.events import (
    Event,
    Interrupt,
    ModelCompleted,
    RunCancelled,
    RunCompleted,
    RunFailed,
    RunPaused,
    RunRemoved,
    StatePatched,
    ThreadAnnotated,
    ThreadCreated,
    ThreadErased,
    ToolCompleted,
    ToolRequested,
)
from core.runs.previews import Preview, Progress
from core.runtime.system import System
from core.thread.fold import fold
from core.thread.rewind import newest_begun, rewound
from core.thread.state import ThreadState
from tests.channels.http.conftest import Api, Worker
from tests.channels.http.story import (
    THREAD,
    Story,
    ai,
    answer,
    call,
    data,
    human,
    pieces,
    requested,
    resumed,
    started,
)
from tests.channels.http.test_views import browser, in_a_browser  # noqa: F401  fixture
from tests.support.nats import eventually

pytestmark = pytest.mark.anyio

ALL = ["run_modes", "lifecycle", "state_update"]
EVERYTHING = ["values", "updates", "messages-tuple", "custom", "tasks", "checkpoints", "debug", "events"]


def story() -> Story:
    """Three runs, one of them queued meanwhile and one never begun; state written between them and under them."""
    told = Story(requested(human("h1", "one"), stream_modes=EVERYTHING), started(), run="r1")

    def add(run: str | None, *events: Event) -> None:
        told.add(*events, run=run)

    add("r1", ModelCompleted(message=ai("m1", "I will look.", call("c1", "ls"))))
    add("r2", requested(human("h2", "two"), multitask="enqueue", stream_modes=["messages-tuple"]))
    add("r3", requested(human("h3", "three"), multitask="enqueue", stream_modes=["values"]))
    add(None, StatePatched(values={"title": "T"}), ThreadAnnotated(metadata={"a": 1}))
    add("r1", ToolRequested(call_id="c1", name="ls", effect="pure"))
    add("r1", ToolCompleted(call_id="c1", message=answer("c1", "ls", "a b")))
    add("r1", ModelCompleted(message=ai("m2", "a and b")), RunCompleted())
    add(None, StatePatched(values={"title": "U"}))
    add("r2", started(), ModelCompleted(message=ai("m3", "two!")), RunFailed(error="E", text="broke"))
    add("r3", RunCancelled())
    add("r1", RunRemoved())
    add("r4", requested(human("h4", "four"), stream_modes=["values"]), started(), RunCompleted())
    return told


def tell(frames: ThreadFrames, told: Story, start: int = 0, *, size: int = 0) -> list[Frame]:
    """All frames from a record on; with `size`, previews come before each message."""
    made: list[Frame] = []
    for record in told.records[start:]:
        if size and isinstance(record.event, ModelCompleted) and record.seq > frames.state.seq:
            for preview in pieces(record.event, size, frames.state.seq):
                made += frames.preview(str(record.run), preview)
        made += frames.fact(record)
    return made


def test_it_is_the_frames_of_the_runs() -> None:
    """All of each run's own stream, with the same ids; but for the end, which here is `run_done`."""
    told = story()
    whole = tell(ThreadFrames(ThreadState(), THREAD, ["run_modes"]), told)
    for run, modes in (("r1", EVERYTHING), ("r2", ["messages-tuple"]), ("r3", ["values"]), ("r4", ["values"])):
        alone = Frames(ThreadState(), THREAD, run, modes)
        own = [frame for record in told.records for frame in alone.fact(record)]
        assert own[-1].event == "end"
        done = msgspec.json.encode({"status": "run_done", "run_id": run})
        expected = [frame if frame.event != "end" else Frame("metadata", done, frame.id) for frame in own]
        assert [frame for frame in whole if frame in expected] == expected
    assert "end" not in {frame.event for frame in whole}


def test_ids_increase_and_are_unique() -> None:
    for size in (0, 3):
        whole = tell(ThreadFrames(ThreadState(), THREAD, ALL), story(), size=size)
        places = [cursor for frame in whole if (cursor := Cursor.parse(frame.id))]
        assert len(places) == len([frame for frame in whole if frame.id])
        assert places == sorted(set(places))


@pytest.mark.parametrize("modes", [["run_modes"], ["lifecycle"], ["state_update"], ALL])
def test_any_place_is_one_to_go_on_from(modes: list[str]) -> None:
    told = story()
    whole = tell(ThreadFrames(ThreadState(), THREAD, modes), told)
    assert whole
    for number, frame in enumerate(whole):
        if not frame.id:
            continue
        frames, start = resumed(told.records, THREAD, modes, frame.id)
        assert tell(frames, told, start) == whole[number + 1 :], frame.id


@pytest.mark.parametrize("modes", [ALL, ["run_modes"], ["lifecycle"]])
def test_any_place_is_come_to_from_the_run_before_it(modes: list[str]) -> None:
    """So that the thread's beginning need not be read."""
    told = story()
    state = fold(told.records)
    whole = tell(ThreadFrames(ThreadState(), THREAD, modes), told)
    tried = 0
    for number, frame in enumerate(whole):
        cursor = Cursor.parse(frame.id)
        run = newest_begun(state, cursor.seq) if cursor else None
        if run is None or run.started_seq is None:
            continue
        if (before := rewound(state, run, run.started_seq - 1)) is not None:
            start = next(i for i, record in enumerate(told.records) if record.seq == run.started_seq)
            frames = ThreadFrames(before, THREAD, modes, after=cursor)
            assert tell(frames, told, start) == whole[number + 1 :], frame.id
            tried += 1
    assert tried


def test_a_place_in_the_middle_of_a_message() -> None:
    """What was said before it is not said again; nothing is left out."""
    told = story()
    whole = tell(ThreadFrames(ThreadState(), THREAD, ["run_modes"]), told, size=3)
    said = [frame for frame in whole if frame.event == "messages"]
    for number, frame in enumerate(whole):
        if not frame.id:
            continue
        frames, start = resumed(told.records, THREAD, ["run_modes"], frame.id)
        rest = tell(frames, told, start)
        for message in ("m1", "m2", "m3"):
            assert text(whole[: number + 1] + rest, message) == text(said, message)


def text(frames: list[Frame], message: str) -> str:
    chunks = [data(frame)[0] for frame in frames if frame.event == "messages"]
    return "".join(c["content"] for c in chunks if c["id"] == message and c["type"] == "AIMessageChunk")


@pytest.mark.parametrize("odd", ["-1", "", "x", "7-0-0", "99999999-0-0", "1-2-3-4"])
def test_unknown_places_are_the_beginning(odd: str) -> None:
    told = story()
    frames, start = resumed(told.records, THREAD, ALL, odd)
    assert tell(frames, told, start) == tell(ThreadFrames(ThreadState(), THREAD, ALL), told)


def test_modes() -> None:
    told = story()
    lifecycle = tell(ThreadFrames(ThreadState(), THREAD, ["lifecycle"]), told)
    shown = [(frame.event, data(frame).get("status"), data(frame)["run_id"]) for frame in lifecycle]
    assert shown == [
        *[("metadata", None, run) for run in ("r1", "r2", "r3")],
        *[("metadata", "run_done", run) for run in ("r1", "r2", "r3")],
        *[("metadata", None, "r4"), ("metadata", "run_done", "r4")],
    ]
    updates = tell(ThreadFrames(ThreadState(), THREAD, ["state_update"]), told)
    assert [(frame.event, data(frame)["state"]["values"]["title"]) for frame in updates] == [
        ("state_update", "T"),
        ("state_update", "U"),
    ]
    assert data(updates[0])["thread_id"] == THREAD


def test_from_now_on() -> None:
    """In the middle of a run: what comes after."""
    told = story()
    whole = tell(ThreadFrames(ThreadState(), THREAD, ALL), told)
    for start in range(1, len(told.records)):
        frames = ThreadFrames(fold(told.records[:start]), THREAD, ALL)
        seq = told.records[start - 1].seq
        places = [frame.id.split("-") for frame in whole if frame.id]
        facts = {"-".join(place) for place in places if int(place[0]) > seq and place[1] == "0"}
        assert facts <= {frame.id for frame in tell(frames, told, start)}


def test_an_erased_thread_ends_it() -> None:
    told = Story(requested(human("h", "?"), stream_modes=["values"]), started(), run="r1")
    told.add(ThreadErased(by="u"), run=None)
    frames = ThreadFrames(ThreadState(), THREAD, ["run_modes"])
    assert data(tell(frames, told)[-1]) == {"status": "run_done", "run_id": "r1"}
    assert frames.ended


def test_a_deleted_thread_with_the_same_id_does_not_end_it() -> None:
    """From the beginning of the log, which is the old tombstone."""
    told = Story(ThreadErased(by="u"))
    told.add(ThreadCreated(user="u", metadata={}), run=None)
    for event in (requested(human("h", "?"), stream_modes=["values"]), started(), RunCompleted()):
        told.add(event, run="r1")
    frames = ThreadFrames(ThreadState(), THREAD, ["run_modes"])
    assert data(tell(frames, told, 1)[-1]) == {"status": "run_done", "run_id": "r1"}
    assert not frames.ended
    told.add(ThreadErased(by="u"), run=None)
    tell(frames, told)
    assert frames.ended


# ── live ────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def runs_of(api: Api, worker: Worker, thread: str, count: int) -> list[str]:
    runs = []
    for number in range(count):
        runs.append(await api.run(thread, stream_mode=["values", "messages-tuple"]))
        await worker.perform(thread, runs[-1], f"answer {number}")
    return runs


async def test_live_over_several_runs(api: Api, worker: Worker) -> None:
    thread = await api.thread()
    async with api.stream("GET", f"/threads/{thread}/stream") as stream:
        assert stream.response.headers["Location"] == f"/threads/{thread}/stream?stream_mode=run_modes"
        assert stream.response.headers["Content-Type"].startswith("text/event-stream")
        runs = await runs_of(api, worker, thread, 3)
        seen: list[Any] = []
        while len([one for one in seen if one[0] == "metadata"]) < 6:
            seen.append(await stream.next())
        await eventually(lambda: beaten(stream))
    assert [one[1]["run_id"] for one in seen if one[0] == "metadata"] == [run for run in runs for _ in range(2)]
    assert {one[0] for one in seen} == {"metadata", "values", "messages"}
    async with api.stream("GET", f"/threads/{thread}/stream", **{"Last-Event-ID": "-1"}) as stream:
        again = [await stream.next() for _ in seen]
    facts = [one for one in seen if one[2].split("-")[1] == "0"]
    assert [one for one in again if one and one[2].split("-")[1] == "0"] == facts
    for number in (0, 5, len(seen) - 1):
        async with api.stream("GET", f"/threads/{thread}/stream", **{"Last-Event-ID": again[number][2]}) as stream:  # type: ignore[index]
            assert [await stream.next() for _ in again[number + 1 :]] == again[number + 1 :]


async def beaten(stream: Any) -> bool:
    """Heartbeats go on while nothing happens."""
    line = await asyncio.wait_for(stream.response.content.readline(), 120)
    return bool(line.startswith(b":"))


async def test_previews_are_shown(api: Api, worker: Worker, system: System) -> None:
    """Of a run that begins later, and to somebody who joins in the middle of a message."""
    thread = await api.thread()
    async with api.stream("GET", f"/threads/{thread}/stream") as stream:
        run = await api.run(thread, stream_mode="messages-tuple")
        after = (await worker.write(thread, run, started())).seq
        assert (await stream.next() or [""])[0] == "metadata"
        subject = system.bus.names.tok(run)
        await system.bus.publish(subject, preview("m1", after, 0, "Hello "))
        first = await stream.next()
        assert first is not None
        assert (first[0], first[1][0]["content"]) == ("messages", "Hello ")
        async with api.stream("GET", f"/threads/{thread}/stream", **{"Last-Event-ID": "-1"}) as late:
            assert (await late.next() or [""])[0] == "metadata"
            assert await late.next() == first
        async with api.stream("GET", f"/threads/{thread}/stream", **{"Last-Event-ID": first[2]}) as late:
            await system.bus.publish(subject, preview("m1", after, 6, "world"))
            for one in (stream, late):
                second = await one.next()
                assert second is not None
                assert second[1][0]["content"] == "world"


def preview(message: str, after: int, offset: int, words: str) -> bytes:
    return msgspec.json.encode(Preview(message=message, after=after, offset=offset, text=words))


async def test_the_log_so_far_ends_for_good(api: Api, worker: Worker) -> None:
    """An `EventSource` comes again after each end with its last id, until it is told 204."""
    thread = await api.thread()
    run = await api.run(thread)
    await worker.write(thread, run, started())
    seen: list[str] = []
    last: dict[str, str] = {}
    while True:
        url = f"{api.url}/api/threads/{thread}/log"
        async with api.session.get(url, headers={"Accept": "text/event-stream", **last}) as response:
            if response.status == 204:
                break
            assert response.status == 200
            lines = (await response.text()).splitlines()
        ids = [line.removeprefix("id: ") for line in lines if line.startswith("id: ")]
        assert ids, "an answer with nothing in it is asked for again, for ever"
        seen, last = [*seen, *ids], {"Last-Event-ID": ids[-1]}
        if len(seen) == len(ids):
            await worker.write(thread, run, RunCompleted())
    assert seen == [str(event["seq"]) for event in await api.ask("GET", f"/threads/{thread}/log")]


@in_a_browser
@pytest.mark.parametrize("of", ["log", "run"])
async def test_an_event_source_ends(api: Api, worker: Worker, browser: Browser, of: str) -> None:  # noqa: F811
    """A browser's own: it closes at 204, and at nothing else."""
    thread = await api.thread()
    run = await api.run(thread)
    await worker.write(thread, run, started())
    await worker.write(thread, run, RunCompleted())
    page = await browser.new_page()
    await page.goto(f"{api.url}/health")
    path = f"/api/threads/{thread}/{'log' if of == 'log' else f'runs/{run}/stream'}"
    opened = """path => new Promise(ok => {
        let opened = 0; const source = new EventSource(path); source.onopen = () => { opened += 1 };
        source.onerror = () => { if (source.readyState === EventSource.CLOSED) ok(opened) } })"""
    assert await page.evaluate(opened, path) == 1


async def test_the_log_shows_previews_from_the_turn_that_is_on(api: Api, worker: Worker, system: System) -> None:
    """As the page in the browser reads it: facts of the turn with their ids, and what is being made without."""
    thread = await api.thread()
    before = await api.run(thread)
    await worker.write(thread, before, started(), RunCompleted())
    run = await api.run(thread)
    after = (await worker.write(thread, run, started())).seq
    subject = system.bus.names.tok(run)
    await system.bus.publish(subject, preview("m1", after, 0, "Hello "))
    log = f"/threads/{thread}/log?follow=1&previews=1"
    piece = {"message": "m1", "after": after, "offset": 0, "text": "Hello ", "run": run}
    async with api.stream("GET", f"{log}&since=turn") as stream:
        frames = [await stream.next() for _ in range(3)]
        assert [frame and (frame[0], frame[1].get("run")) for frame in frames] == [
            ("run.requested", run),
            ("run.started", run),
            ("preview", run),
        ]
        assert frames[2] == ("preview", piece, "")
        await system.bus.publish(subject, progress("c1", "half done"))
        assert await stream.next() == ("progress", {"kind": "progress", **PROGRESS, "run": run}, "")
    async with api.stream("GET", f"{log}&since=turn", **{"Last-Event-ID": str(after)}) as stream:
        assert await stream.next() == ("preview", piece, "")
        ended = await worker.write(thread, run, RunCompleted())
        frame = await stream.next()
        while frame is not None and frame[0] == "progress":
            frame = await stream.next()
        assert frame is not None
        assert (frame[0], frame[2]) == ("run.completed", str(ended.seq))


async def test_the_turn_begins_with_the_run_that_asked(api: Api, worker: Worker) -> None:
    """What was approved, and how it was changed, stands before the run that goes on."""
    thread = await api.thread()
    asked = await api.run(thread)
    pause = RunPaused(next=["tools"], interrupts=[Interrupt(id="i", value="sure?")])
    await worker.write(thread, asked, started(), pause)
    body = {"assistant_id": "lead_agent", "command": {"resume": "yes"}}
    goes_on = (await api.ask("POST", f"/threads/{thread}/runs", body))["run_id"]
    for ended in (False, True):
        if ended:
            await worker.write(thread, goes_on, started(), RunCompleted())
        async with api.stream("GET", f"/threads/{thread}/log?follow=1&since=turn") as stream:
            frames = [await stream.next() for _ in range(4)]
        runs = [frame and (frame[0], frame[1].get("run")) for frame in frames]
        assert runs[0] == ("run.requested", asked)
        assert runs[3] == ("run.requested", goes_on)


PROGRESS = {"call_id": "c1", "name": "bash", "text": "half done"}


def progress(call_id: str, text: str) -> bytes:
    return msgspec.json.encode(Progress(call_id=call_id, name="bash", text=text))


async def test_the_python_sdk_joins(api: Api, url: str, worker: Worker) -> None:
    thread = await api.thread()
    client = get_client(url=f"{url}/api")
    stream = await client.threads.join_stream(thread, last_event_id="-1", stream_mode=["lifecycle", "state_update"])
    [run] = await runs_of(api, worker, thread, 1)
    await client.threads.update_state(thread, {"title": "T"})
    parts = [await anext(stream) for _ in range(3)]
    assert [part.event for part in parts] == ["metadata", "metadata", "state_update"]
    assert parts[1].data == {"status": "run_done", "run_id": run}
    assert parts[2].data["state"]["values"]["title"] == "T"
    await stream.aclose()  # type: ignore[attr-defined]
    await client.http.client.aclose()


@pytest.mark.parametrize(
    "query", ["stream_mode=lifecycle", 'stream_modes=["lifecycle"]', "stream_modes=lifecycle&stream_mode=run_modes"]
)
async def test_every_spelling_of_the_modes(api: Api, worker: Worker, query: str) -> None:
    thread = await api.thread()
    await runs_of(api, worker, thread, 1)
    async with api.stream("GET", f"/threads/{thread}/stream?{query}", **{"Last-Event-ID": "-1"}) as stream:
        assert [(await stream.next() or [""])[0] for _ in range(2)] == ["metadata"] * 2


async def test_refused(api: Api) -> None:
    thread = await api.thread()
    await api.ask("GET", f"/threads/{thread}/stream?stream_mode=values", status=422)
    await api.ask("GET", "/threads/nope/stream", status=404)


async def test_it_ends_with_the_thread(api: Api) -> None:
    thread = await api.thread()
    async with api.stream("GET", f"/threads/{thread}/stream") as stream:
        await api.ask("DELETE", f"/threads/{thread}", status=204)
        assert await stream.rest() == []


async def test_many_facts_at_once(api: Api, worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than the listener holds: the log is read."""
    monkeypatch.setattr("core.log.feed.BUFFERED", 3)
    thread = await api.thread()
    async with api.stream("GET", f"/threads/{thread}/stream?stream_mode=lifecycle") as stream:
        runs = await runs_of(api, worker, thread, 10)
        seen = [await stream.next() for _ in range(20)]
    assert [one and one[1]["run_id"] for one in seen] == [run for run in runs for _ in range(2)]

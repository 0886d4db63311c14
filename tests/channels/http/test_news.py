"""News of all of a user's threads: every kind, from any place on, of nobody else's threads, and never silently less."""

from __future__ import annotations

import asyncio
import re
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import pytest
from aiohttp import web

from channels.http.app import serve
from channels.http.page.news import frames, hub
from channels.http.page.news.hub import Hub, Subscription, ThreadNews
from channels.http.server.live import Live
from core.errors import Unavailable
from core.events import (
    ApprovalRequested,
    ApprovalResolved,
    Event,
    Interrupt,
    Message,
    RunCancelled,
    RunCompleted,
    RunFailed,
    RunPaused,
    ThreadTitled,
    ToolCompleted,
    catalogue,
)
from core.runs.follow import Stopping
from core.runtime.system import System
from tests.channels.http.conftest import Api, Settings, Stream, Worker, services_of
from tests.channels.http.people import ADA, BOB, WithAccounts, place
from tests.channels.http.story import Story, answer, started

EVENTS = "/events"
One = tuple[str, Any, str]


def clarification(identity: str) -> Message:
    return {
        **answer("c9", "ask_clarification", "❓ Which colour?"),
        "id": f"clarification:{identity}",
        "artifact": {"human_input": {"question": "Which colour?"}},
    }


async def begun(stream: Stream) -> int:
    first = await stream.next()
    assert first is not None
    assert first[0] == "ready"
    return int(first[1]["seq"])


async def much(api: Api, worker: Worker) -> tuple[str, list[str]]:
    """A thread in which everything happens that is news; the names of the news in their order."""
    thread = (await api.ask("POST", "/threads", {"metadata": {"a": 1}}))["thread_id"]
    run = await api.run(thread)
    await worker.write(thread, run, started(), ThreadTitled(title="First words"))
    presented = ToolCompleted(
        call_id="c1", message=answer("c1", "present_files", "ok"), update={"artifacts": ["/o/a.md", "/o/b.md"]}
    )
    request = ApprovalRequested(approval="p1", call_id="c2", tool="bash", args={}, digest="d", text="Run `ls`?")
    await worker.write(thread, run, presented, request)
    asked = (Interrupt(id="p1", value={"type": "approval"}), Interrupt(id="q1", value={"question": "How many?"}))
    await worker.write(thread, run, RunPaused(next=["tools"], interrupts=list(asked)))
    second = (await api.ask("POST", f"/threads/{thread}/runs", {"command": {"resume": {"p1": "approve", "q1": 3}}}))[
        "run_id"
    ]
    await worker.write(thread, second, started(), ApprovalResolved(approval="p1", call_id="c2", decision="approve"))
    await worker.write(thread, second, ToolCompleted(call_id="c9", message=clarification("c9")), RunCompleted())
    response = {"human_input_response": {"request_id": "clarification:c9", "value": "red"}}
    message = {"role": "user", "content": "red", "additional_kwargs": response}
    third = (await api.ask("POST", f"/threads/{thread}/runs", {"input": {"messages": [message]}}))["run_id"]
    await worker.write(thread, third, started(), RunFailed(error="RateLimitError", text="slow down"))
    fourth = await api.run(thread)
    await worker.write(thread, fourth, RunCancelled())
    await api.ask("POST", f"/threads/{thread}/state", {"values": {"title": "Mine"}})
    await api.ask("PATCH", f"/threads/{thread}", {"metadata": {"pinned": True}})
    await api.ask("DELETE", f"/threads/{thread}", status=204)
    return thread, [
        *("thread.created", "run.requested", "run.started", "thread.titled", "file.presented", "file.presented"),
        *("approval.waiting", "run.ended", "question.waiting", "run.requested", "question.answered", "run.started"),
        *("approval.answered", "question.waiting", "run.ended", "run.requested", "question.answered", "run.started"),
        *("run.ended", "run.requested", "run.ended", "thread.renamed", "thread.annotated", "thread.deleted"),
    ]


async def test_everything_that_is_news(api: Api, worker: Worker) -> None:
    async with api.stream("GET", EVENTS) as stream:
        await begun(stream)
        thread, expected = await much(api, worker)
        told = await stream.until("thread.deleted")
    assert [kind for kind, _, _ in told] == expected
    assert {data["thread_id"] for _, data, _ in told} == {thread}
    assert all(data["seq"] and data["at"] and "user" not in data for _, data, _ in told)
    by_kind: dict[str, list[Any]] = {}
    for kind, data, _ in told:
        by_kind.setdefault(kind, []).append(data)
    assert by_kind["thread.created"][0]["metadata"] == {"a": 1}
    assert [data["path"] for data in by_kind["file.presented"]] == ["/o/a.md", "/o/b.md"]
    assert (
        by_kind["approval.waiting"][0] | {"approval_id": "p1", "tool": "bash", "text": "Run `ls`?"}
        == (by_kind["approval.waiting"][0])
    )
    assert by_kind["approval.answered"][0]["decision"] == "approve"
    assert [(data["question_id"], data["text"]) for data in by_kind["question.waiting"]] == [
        ("q1", "How many?"),
        ("clarification:c9", "Which colour?"),
    ]
    assert [data["question_id"] for data in by_kind["question.answered"]] == [None, "clarification:c9"]
    assert [(data["status"], data["paused"], data["error"]) for data in by_kind["run.ended"]] == [
        ("success", True, None),
        ("success", False, None),
        ("error", False, "slow down"),
        ("interrupted", False, None),
    ]
    assert by_kind["thread.renamed"][0]["title"] == "Mine"
    assert by_kind["thread.annotated"][0]["metadata"] == {"pinned": True}


async def test_goes_on_from_every_place(api: Api, worker: Worker) -> None:
    async with api.stream("GET", EVENTS) as stream:
        start = await begun(stream)
        await much(api, worker)
        told = await stream.until("thread.deleted")
    for last in [str(start), *(identity for _, _, identity in told if identity)]:
        async with api.stream("GET", EVENTS, **{"Last-Event-ID": last}) as stream:
            await begun(stream)
            rest = [one for one in told if one[1]["seq"] > int(last)]
            again = [await stream.next() for _ in rest]
            # titles are those of now, and the thread is gone
            assert [one and (one[0], one[2]) for one in again] == [(kind, identity) for kind, _, identity in rest]
            await stream.hear(1)


async def test_heartbeats_move_the_place(api: Api, worker: Worker) -> None:
    """Also past what is no news for this user: so a client that was away does not have to be told of a gap."""
    async with api.session.get(f"{api.url}/api{EVENTS}") as response:
        seen, last = b"", 0
        thread = await api.thread()
        run = await api.run(thread)
        await worker.perform(thread, run)
        tip = worker.newest[run]
        with anyio.fail_after(120):
            while last < tip:
                line = await response.content.readline()
                seen += line
                if line.startswith(b"id: "):
                    last = int(line[4:])
    assert b": heartbeat" in seen or last == tip


@pytest.mark.parametrize("last", ["-1", "x", "", "1e3", "²"])
async def test_an_id_that_is_none_begins_now(api: Api, last: str) -> None:
    async with api.stream("GET", EVENTS, **{"Last-Event-ID": last}) as stream:
        await begun(stream)
        thread = await api.thread()
        told = await stream.next()
        assert told is not None
        assert told[1]["thread_id"] == thread


async def test_what_is_too_much_is_a_gap(api: Api, worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    thread = await api.thread()
    monkeypatch.setattr(hub, "MOST_MISSED", 3)
    run = await api.run(thread)
    await worker.perform(thread, run)
    for last in ("1", str(10**17)):  # long ago; and of another log
        async with api.stream("GET", EVENTS, **{"Last-Event-ID": last}) as stream:
            first = await stream.next()
            assert first is not None
            assert first[0] == "gap"
            other = await api.thread()
            following = await stream.next()
            assert following is not None
            assert (following[0], following[1]["thread_id"]) == ("thread.created", other), "it goes on"


async def test_slow_reader_learns_of_the_gap(system: System, tmp_path: Path, config: Settings) -> None:
    one = Hub(Live(services_of(system, config, tmp_path)))
    told = ThreadNews(1, "u", [("thread.created", b"{%b}" % (b" " * 1000))])
    subscription = Subscription("u", one)
    for _ in range(hub.MOST_WAITING_BYTES // 1000 + 10):
        subscription.put(told)
    news, gap = await subscription.take(1)
    assert gap
    assert 0 < len(news) < 20
    assert await subscription.take(0.01) == ([], False)


async def test_lost_records_are_read_again(api: Api, worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("core.log.feed.BUFFERED", 2)
    async with api.stream("GET", EVENTS) as stream:
        await begun(stream)
        _, expected = await much(api, worker)
        told = await stream.until("thread.deleted")
    assert [kind for kind, _, _ in told] == expected


async def test_the_log_out_of_reach_is_a_gap(api: Api, worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    async with api.stream("GET", EVENTS) as stream:
        await begun(stream)
        real = Hub._news_of
        failed: list[bool] = []

        async def fail(self: Hub, *arguments: Any) -> Any:
            if not failed:
                failed.append(True)
                raise Unavailable("not now")
            return await real(self, *arguments)

        monkeypatch.setattr(Hub, "_news_of", fail)
        await api.thread()
        first = await stream.next()
        assert first is not None
        assert first[0] == "gap"


async def test_title_that_does_not_count_is_not_told(api: Api, worker: Worker) -> None:
    thread = await api.thread()
    run = await api.run(thread)
    await worker.start(thread, run)
    await api.ask("POST", f"/threads/{thread}/state", {"values": {"title": "Mine"}})
    async with api.stream("GET", EVENTS) as stream:
        await begun(stream)
        await worker.write(thread, run, ThreadTitled(title="The server's"))
        told = await stream.next()
    assert told is not None
    assert (told[0], told[1]["title"]) == ("thread.titled", "Mine")


async def test_news_of_others(system: System, tmp_path: Path, worker: Worker) -> None:
    """Nobody hears of the threads of others, live or late; administrators may ask for everybody's."""
    async with place(system, WithAccounts(), tmp_path / "home") as here:
        admin, ada, bob = await here.admin(), await here.person(ADA), await here.person(BOB)
        assert (await ada.ask("GET", "/api/events?all_users=true")).status == 403
        anonymous = here.browser()
        assert (await anonymous.ask("GET", "/api/events")).status == 401
        of_ada, of_bob, of_all = (
            Stream(person.session.get(f"{here.url}/api/events{query}"))
            for person, query in ((ada, ""), (bob, ""), (admin, "?all_users=true"))
        )
        async with of_ada, of_bob, of_all:
            start = await begun(of_ada)
            await begun(of_bob)
            await begun(of_all)
            names = {}
            for who, person in (("bob", bob), ("ada", ada), ("bob2", bob), ("ada2", ada)):
                names[who] = (await person.ask("POST", "/api/threads", {})).body["thread_id"]
            heard = {
                "ada": [await of_ada.next() for _ in range(2)],
                "bob": [await of_bob.next() for _ in range(2)],
                "all": [await of_all.next() for _ in range(4)],
            }
        threads = {who: [one[1]["thread_id"] for one in news if one] for who, news in heard.items()}
        assert threads["ada"] == [names["ada"], names["ada2"]]
        assert threads["bob"] == [names["bob"], names["bob2"]]
        assert threads["all"] == [names["bob"], names["ada"], names["bob2"], names["ada2"]]
        assert len({one[1]["user"] for one in heard["all"] if one}) == 2
        late = Stream(ada.session.get(f"{here.url}/api/events", headers={"Last-Event-ID": str(start)}))
        async with late:
            await begun(late)
            again = [await late.next() for _ in range(2)]
            assert [one[1]["thread_id"] for one in again if one] == [names["ada"], names["ada2"]]
            await late.hear(1)


async def test_owner_of_a_thread_is_found_in_its_log(api: Api, system: System, tmp_path: Path) -> None:
    """A process that did not see the thread being made, as after a restart."""
    thread = await api.thread()
    async with (
        serve(services_of(system, Settings(), tmp_path), "127.0.0.1", 0) as port,
        aiohttp.ClientSession() as session,
    ):
        other = Api(session, f"http://127.0.0.1:{port}")
        async with other.stream("GET", EVENTS) as stream:
            await begun(stream)
            await api.ask("PATCH", f"/threads/{thread}", {"metadata": {"pinned": True}})
            told = await stream.next()
            assert told is not None
            assert (told[0], told[1]["thread_id"]) == ("thread.annotated", thread)


async def test_streams_end_with_the_server(system: System, tmp_path: Path) -> None:
    async with aiohttp.ClientSession() as session:
        async with serve(services_of(system, Settings(), tmp_path), "127.0.0.1", 0) as port:
            response = await session.get(f"http://127.0.0.1:{port}/api{EVENTS}")
            assert (await response.content.readline()).startswith(b"event: ready")
        with pytest.raises(aiohttp.ClientError):
            await response.read()


async def test_waiting_streams_and_those_that_come_too_late_stop_at_once(system: System, tmp_path: Path) -> None:
    live = Live(services_of(system, Settings(), tmp_path))
    one = Hub(live)
    async with asynccontextmanager(one.running)(web.Application()):
        with one.subscribed("u") as waiting:
            taking = asyncio.create_task(waiting.take(3600))
            await asyncio.sleep(0)
            live.stop()
            with pytest.raises(Stopping):
                await taking
        with one.subscribed("u") as late, pytest.raises(Stopping):
            await late.take(3600)


# ── what is news, and where it stands ────────────────────────────────────────────────────────────────────────────────


def test_only_known_types_are_news() -> None:
    """`TYPES` is what is looked at: a fact outside of it must not be news, or nobody would hear of it."""
    assert catalogue().keys() >= frames.TYPES


def test_every_news_is_documented() -> None:
    told = set(re.findall(r'yield "((?:thread|run|approval|question|file)\.\w+)"', Path(frames.__file__).read_text()))
    told |= {frames.ENDED, frames.TITLED}
    page = (Path(frames.__file__).parents[2] / "docs/streams.md").read_text()
    section = page.split("## All threads of a user")[1].split("\n## ")[0]
    assert set(re.findall(r"^\| `([\w.]+)`", section, re.M)) - {"ready", "gap"} == told


@pytest.mark.parametrize(
    "event",
    [
        RunCompleted(),
        ToolCompleted(call_id="c", message={"type": "tool", "content": []}, update={"artifacts": [1, None, {}]}),
        ToolCompleted(call_id="c", message={"type": "tool", "id": None}, update={"artifacts": "x", "title": 3}),
        RunPaused(next=[], interrupts=[Interrupt(id="i", value=None), Interrupt(id="j", value={"type": 1})]),
        RunPaused(next=[], interrupts=[Interrupt(id="i", value="x" * 10_000)]),
    ],
)
def test_odd_facts(event: Event) -> None:
    for news in frames.news_of(Story(event).records[-1]):
        assert len(str(news.fields)) < 2 * frames.MOST_CHARACTERS

"""Debugging over HTTP, on a whole server with a scripted model: the same answers as `core.replay` gives."""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import aiohttp
import anyio
import msgspec
import pytest

from actors.debugging.pins import check
from actors.wiring import compose
from core.events import (
    Aggregate,
    Event,
    ModelCompleted,
    RunCompleted,
    RunOrigin,
    RunRequested,
    RunStarted,
    SetupRecorded,
    thread,
)
from core.ids import uuid7
from core.replay.exports.archive import Archive
from core.runtime.system import System
from tests.channels.http.conftest import Api
from tests.channels.http.people import ADA, BOB, WithAccounts, place
from tests.channels.http.story import ai, human
from tests.support.model_server import ModelServer, ToolCall, Turn
from tests.support.nats import eventually
from tests.support.workers import configure

pytestmark = pytest.mark.anyio

TURNS = (
    Turn(
        text="I look.", tool_calls=(ToolCall("bash", {"description": "look", "command": "echo one > a.txt; exit 3"}),)
    ),
    Turn(text="There is one."),
)
SLOW = (Turn(text="At last.", gate="slow"), Turn(text="At last."))
OTHER = (Turn(text="Never said."), Turn(text="Otherwise."))


class Place:
    """A thread `t` with one run on a server, and the requests that its models got."""

    def __init__(self, api: Api, models: ModelServer) -> None:
        self.api, self.models = api, models

    async def ask(self, path: str, body: Any = None, status: int = 200) -> Any:
        return await self.api.ask("GET" if body is None else "POST", f"/threads/t/log/{path}", body, status=status)


@asynccontextmanager
async def serving(home: Path) -> AsyncIterator[Place]:
    async with ModelServer({"m": TURNS, "other": OTHER, "slow": SLOW}) as models:
        config = configure(home / "config.yaml", models)
        options = compose.Options(home / "home", config, port=0)
        async with compose.serve(options) as url, aiohttp.ClientSession() as session:
            api = Api(session, url)
            await api.ask("POST", "/threads", {"thread_id": "t"})
            body = {"input": {"messages": [human("h1", "Look")]}, "context": {"model_name": "m"}}
            await api.ask("POST", "/threads/t/runs/wait", body)
            yield Place(api, models)


async def test_a_thread_is_debugged_over_http(tmp_path: Path) -> None:
    with anyio.fail_after(60):
        async with serving(tmp_path) as place:
            await _pages(place)
            await _phrases(place)
            await _raw_log_with_phrases(place)
            await _questions(place)
            await _files_and_usage(place)
            await _prompts(place)
            await _forks(place)
            await _exported(place, tmp_path)
            await _what_if(place)
            await _replayed(place, tmp_path)
            await _pinned(place, tmp_path)
            await _pinned_while_another_waited(place)


async def _pages(place: Place) -> None:
    page = await place.ask("events?limit=2")
    first = [entry["event"]["type"] for entry in page["events"]]
    rest = await place.ask(f"events?after={page['next']}")
    assert first[0] == "thread.created"
    assert len(first) == 2
    assert rest["events"][0]["seq"] > page["events"][-1]["seq"]
    assert rest["next"] is None
    assert "phrase" not in (await place.ask("events?phrases=0"))["events"][0]
    failed = await place.ask("events?errors=1&type=tool.*")
    assert [entry["event"]["exit_code"] for entry in failed["events"]] == [3]
    assert (await place.ask("events?text=ECHO%20ONE&type=model.completed"))["events"]
    assert (await place.ask("events?text=(a%2B)%2B%24"))["events"] == [], "a text, no regular expression"
    of_model = await place.ask(f"events?model=m&type=model.completed&after={failed['events'][0]['seq']}")
    assert len(of_model["events"]) == 1
    every = [entry["seq"] for entry in (await place.ask("events?limit=1000"))["events"]]
    newest, before = list[int](), cast(int | None, 0)
    while before is not None:
        page = await place.ask(f"events?before={before}&limit=3")
        newest += [entry["seq"] for entry in page["events"]]
        before = page["next"]
    assert newest == every[::-1]
    assert [e["seq"] for e in (await place.ask(f"events?before={every[4]}&after={every[1]}"))["events"]] == every[
        3:1:-1
    ]
    forth, back = [await place.ask(f"events?model=m&type=*{order}") for order in ("", "&before=0")]
    assert forth["events"] == back["events"][::-1]
    assert len(forth["events"]) > 3
    assert (await place.ask("events?model=other&before=0"))["events"] == []


async def _phrases(place: Place) -> None:
    """Each listed event has its words, in the language that the client names or accepts."""
    types = "events?type=tool.*&type=model.completed"
    english, chinese = ("Tool called", "Tool ended", "bash [exit 3, "), ("工具已调用", "工具已结束", "bash [退出码 3，")
    for path, accepted, (called, ended, text) in (
        (types, "", english),
        (f"{types}&before=0", "fr, zh-CN;q=0.8, en;q=0.5", chinese),
        (f"{types}&lang=en", "zh", english),
    ):
        url = f"{place.api.url}/api/threads/t/log/{path}"
        async with place.api.session.get(url, headers={"Accept-Language": accepted}) as response:
            phrases = {one["event"]["type"]: one["phrase"] for one in (await response.json())["events"]}
        assert phrases["tool.requested"] == {"name": called, "text": "bash [idempotent] look"}
        assert phrases["tool.completed"]["name"] == ended
        assert phrases["tool.completed"]["text"].startswith(text)
    await place.ask("events?lang=fr", status=422)


async def _raw_log_with_phrases(place: Place) -> None:
    """The log as it is has them on demand, as JSON and as a stream."""
    url = f"{place.api.url}/api/threads/t/log"
    plain = await place.api.ask("GET", "/threads/t/log")
    assert not any("phrase" in event for event in plain)
    worded = await place.api.ask("GET", "/threads/t/log?lang=zh")
    assert [{name: value for name, value in event.items() if name != "phrase"} for event in worded] == plain
    assert worded[0]["phrase"] == {"name": "对话已开始", "text": "用户 default"}
    async with place.api.session.get(f"{url}?lang=zh", headers={"Accept": "text/event-stream"}) as response:
        lines = (await response.text()).splitlines()
    streamed = [msgspec.json.decode(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]
    assert [event["phrase"] for event in streamed] == [event["phrase"] for event in worded]


async def _questions(place: Place) -> None:
    [outcome] = (await place.ask("events?type=tool.completed"))["events"]
    call, seq = outcome["event"]["call_id"], outcome["seq"]
    now, then = await place.ask("state"), await place.ask(f"state?at=seq:{seq}")
    assert (now["status"], then["status"]) == ("idle", "busy")
    assert await place.ask("state?path=messages[-1].content") == "There is one."
    assert await place.ask(f"state?path=messages[-1].type&at={call}") == "tool"
    short = await place.ask("state?runs=0&messages=1")
    assert (short["messages"], len(short["values"]["messages"]), short["older_runs"], short["runs"]) == (4, 1, 1, [])
    await place.ask("state?path=[@,@]|[@,@]", status=422)
    await place.ask("state?at=9999", status=404)
    causes = [cause["event"]["type"] for cause in await place.ask(f"why?event={call}")]
    assert causes[-3:] == ["model.completed", "tool.requested", "tool.completed"]
    assert "run.requested" in causes
    [run] = await place.ask("tree")
    assert [span["kind"] for span in run["children"]] == ["answer", "answer"]
    assert run["children"][0]["children"][0]["failed"] is True
    moments = await place.ask(f"diff?left=@seq:{seq}&right=@seq:{now['seq']}")
    assert moments["same"] is False
    assert "There is one." in str(moments["values"])
    assert (await place.ask("diff?right=%231"))["same"] is True
    await place.ask("diff?left=t&right=%231", status=422)
    await place.ask("diff?right=nobody", status=404)


async def _prompts(place: Place) -> None:
    first, second = (await place.ask("events?type=model.completed"))["events"]
    sent = await place.ask(f"prompt?at=seq:{first['seq']}")
    assert (sent["before"], sent["changes"]) == (None, [])
    assert [message["content"] for message in sent["request"]["messages"]] == ["Look"]
    assert sent["request"]["prompt"] in str(place.models.requests[0].body["messages"][0]["content"])
    names = [tool["name"] for tool in sent["request"]["tools"]]
    assert "bash" in names
    after = await place.ask(f"prompt?at=seq:{second['seq']}")
    assert after["before"] == first["seq"]
    added = [change["name"] for change in after["changes"] if change["change"] == "added"]
    assert added == [message["id"] for message in after["request"]["messages"][1:]]
    assert {change["part"] for change in after["changes"]} == {"message"}
    body = {"input": {"messages": [human("h2", "Again")]}, "context": {"model_name": "other"}}
    await place.api.ask("POST", "/threads/t/runs/wait", body)
    [*_, third] = (await place.ask("events?type=model.completed"))["events"]
    then = await place.ask(f"prompt?at={third['event']['id']}")
    assert then["before"] == second["seq"], "the call of the run before"
    [model] = [change for change in then["changes"] if change["part"] == "model"]
    assert (model["change"], model["before"]) != ("changed", then["request"]["model"])
    refusal = await place.ask("prompt?at=1", status=422)
    assert "no answer or failure of a model" in refusal["detail"]
    await place.ask("prompt?at=seq:9999", status=404)


async def _files_and_usage(place: Place) -> None:
    """Before the run was looked at, after it, and after an upload."""
    await until_scanned(place)
    first, *_, end = (await place.ask("events?limit=1000"))["events"]
    before, after = await place.ask(f"files?at=seq:{first['seq']}"), await place.ask("files")
    assert (before["files"], before["scanned"]) == ([], None)
    [file] = [file for file in after["files"] if file["path"].endswith("a.txt")]
    assert file["size"] == 4
    assert after["scanned"] <= end["seq"]
    form = aiohttp.FormData()
    form.add_field("files", b"some", filename="b.txt")
    async with place.api.session.post(f"{place.api.url}/api/threads/t/uploads", data=form) as response:
        assert response.status < 300, await response.read()
    uploaded = [file["path"] for file in (await place.ask("files"))["files"]]
    assert len(uploaded) == len(after["files"]) + 1
    assert await place.ask(f"files?at=seq:{after['seq']}") == after
    await place.ask("files?at=seq:9999", status=404)
    answers = (await place.ask("events?type=model.completed"))["events"]
    used = [await place.ask(f"usage?at=seq:{answer['seq']}") for answer in answers]
    totals = [sum(tokens["input"] + tokens["output"] for tokens in part["tokens"].values()) for part in used]
    assert totals == sorted(totals)
    assert 0 < totals[0] < totals[-1]
    assert (await place.ask(f"usage?at=seq:{first['seq']}"))["tokens"] == {}
    assert (await place.ask("usage"))["tokens"] == used[-1]["tokens"]


async def until_scanned(place: Place) -> None:
    async def scanned() -> bool:
        return (await place.ask("files"))["scanned"] is not None

    await eventually(scanned)


async def _forks(place: Place) -> None:
    end = (await place.ask("state"))["seq"]
    body = {"at": f"seq:{end}", "thread_id": "copy"}
    assert (await place.api.ask("POST", "/threads/t/log/fork", body, status=201))["new"] is True
    assert (await place.api.ask("POST", "/threads/t/log/fork", body, status=201))["new"] is False
    diff = await place.ask("diff?right=copy")
    assert diff["first"] is None or diff["first"]["difference"] == "only left", "a fork has the messages, no runs"
    await place.ask("fork", {"at": "9999"}, status=404)


async def _exported(place: Place, folder: Path) -> None:
    address = f"{place.api.url}/api/threads/t/log/export?redact=1&blobs=1&files=1"
    async with place.api.session.get(address) as response:
        assert response.status == 200
        path = folder / "t.jsonl"
        path.write_bytes(await response.read())
    archive = await Archive.open(path)
    try:
        assert archive.root == thread("t")
        assert archive.header.redacted
        assert len(await archive.read(thread("t"))) == len((await place.ask("events?limit=1000"))["events"])
    finally:
        archive.close()


async def _what_if(place: Place) -> None:
    [outcome] = (await place.ask("events?type=tool.completed"))["events"]
    stopped = await place.ask(
        "events?stop=tool.completed%20message.status%3Dsuccess&stop=tool.completed%20message.name~bash"
    )
    assert [entry["seq"] for entry in stopped["events"]] == [outcome["seq"]]
    await place.ask("events?stop=tool.completed%20name", status=422)
    before = len(place.models.requests)
    events_before = len((await place.ask("events?limit=1000"))["events"])
    body = {"at": f"seq:{outcome['seq']}", "model": "other", "samples": 2}
    async with place.api.stream("POST", "/threads/t/log/whatif", {**body, "estimate_only": True}) as stream:
        [(name, estimate, _)] = await stream.rest()
    assert (name, len(place.models.requests)) == ("estimate", before), "nothing is spent"
    assert estimate["tokens"] > 0
    async with place.api.stream("POST", "/threads/t/log/whatif", body) as stream:
        frames = await stream.rest()
    names = [name for name, _, _ in frames]
    assert (names[0], names[-1]) == ("estimate", "result")
    assert names.count("model.completed") == 2
    assert {identity.partition("-")[0] for name, _, identity in frames if name == "model.completed"} == {"1", "2"}
    result = frames[-1][1]
    assert [sample["future"]["text"] for sample in result["samples"]] == ["Otherwise.", "Otherwise."]
    assert [request.model for request in place.models.requests[before:]] == ["other", "other"], "none for the prefix"
    assert len((await place.ask("events?limit=1000"))["events"]) == events_before, "nothing is on the log"
    await place.ask("whatif", {**body, "at": "9999"}, status=404)
    await place.ask("whatif", {**body, "samples": 1000}, status=422)
    await place.ask("whatif", {**body, "settings": {"runs.nothing": "1"}}, status=422)


async def _replayed(place: Place, folder: Path) -> None:
    """By the policies of the run, and by others."""
    requests, events = len(place.models.requests), await place.ask("events?limit=1000")
    [outcome] = (await place.ask("events?type=tool.completed"))["events"]
    same = await place.ask("replay?run=1")
    assert (same["verdict"], same["runs"], same["difference"], same["not_compared"]) == ("identical", 1, "", 0)
    steps = [(row["left"]["kind"], row["difference"]) for row in same["comparison"]["steps"]]
    assert steps == [("request", ""), ("answer", ""), ("call", ""), ("answer", "")]
    configure(folder / "config.yaml", place.models, approvals=[{"tool": "bash", "match": "echo"}])
    other = await place.ask(f"replay?run={outcome['event']['run']}")
    assert (other["verdict"], other["comparison"]["same"], other["not_compared"]) == ("different", False, 2)
    first = other["comparison"]["first"]
    assert other["comparison"]["steps"][-1] == first
    assert (first["left"]["name"], first["right"]["name"]) == ("tool.requested", "approval.requested")
    assert "configuration" in str(other["changed"])
    assert (await place.ask("replay?run=2"))["verdict"] == "same decisions", "that run called nothing"
    assert (len(place.models.requests), await place.ask("events?limit=1000")) == (requests, events), "nothing happens"
    for query, status in (("run=9", 404), ("", 422), ("run=", 422)):
        await place.ask(f"replay?{query}", status=status)


async def _pinned(place: Place, folder: Path) -> None:
    """As it would be decided now, in the archive that `sika log pin` would make."""
    pins, configured = folder / "pins", folder / "config.yaml"
    for decided in ("otherwise", "as-recorded"):
        async with place.api.session.get(f"{place.api.url}/api/threads/t/log/pin?run=1&name=look") as response:
            assert (response.status, response.headers["X-Pin-Decided"]) == (200, decided)
            assert response.headers["Content-Disposition"] == 'attachment; filename="look.zip"'
            with zipfile.ZipFile(io.BytesIO(await response.read())) as archive:
                archive.extractall(pins)
        assert {path.name for path in pins.iterdir()} == {"look.jsonl", "shared", "test_pinned.py"}
        options = compose.Options(folder / "other", configured)
        assert await check(pins / "look.jsonl", options) == ""
        configure(configured, place.models)
    configure(configured, place.models, approvals=[{"tool": "bash", "match": "echo"}])
    assert "approval.requested" in await check(pins / "look.jsonl", options)
    for query, status in (("run=9", 404), ("run=1&name=../x", 422), ("name=x", 422)):
        await place.ask(f"pin?{query}", status=status)


async def _pinned_while_another_waited(place: Place) -> None:
    """The run that is named, though the next one was asked for before it ended."""
    await place.api.ask("POST", "/threads", {"thread_id": "u"})
    runs = []
    for text in ("First", "Second"):
        body = {"input": {"messages": [human(text, text)]}, "context": {"model_name": "slow"}}
        run = await place.api.ask("POST", "/threads/u/runs", {**body, "multitask_strategy": "enqueue"})
        runs.append(run["run_id"])
    place.models.release("slow")
    for run_id in runs:
        await place.api.ask("GET", f"/threads/u/runs/{run_id}/join")
    for number, (text, run_id) in enumerate(zip(("First", "Second"), runs, strict=True), 1):
        async with place.api.session.get(f"{place.api.url}/api/threads/u/log/pin?run={number}") as response:
            assert response.status == 200, await response.text()
            with zipfile.ZipFile(io.BytesIO(await response.read())) as archive:
                pinned = archive.read("u.jsonl").decode()
        requested = [line for line in pinned.splitlines() if '"type":"run.requested"' in line]
        assert [f'"content":"{text}"' in line for line in requested] == [True]
        assert run_id in requested[0]


async def test_keys_and_roles(system: System, tmp_path: Path) -> None:
    """An export needs a scope of its own, and conditions of the whole server an administrator."""
    async with place(system, WithAccounts(), tmp_path) as here:
        ada = await here.person(ADA)
        user = (await ada.me()).body["id"]
        thread_id = uuid7()
        await system.intake.create_thread(thread_id, user=user)
        log = f"/api/threads/{thread_id}/log"
        for scope, status in (("threads:read", 403), ("threads:export", 200), ("threads", 200)):
            program = here.browser(**{"X-Api-Key": await here.key(ADA, [scope])})
            answer = await program.ask("GET", f"{log}/export")
            assert answer.status == status, scope
            pin = await program.ask("GET", f"{log}/pin?run=1")
            assert (pin.status == 403) == (status == 403), scope
        for body in ({"settings": {"sandbox.provider": "host"}}, {"allow_effects": True}):
            answer = await ada.ask("POST", f"{log}/whatif", {"at": "1", **body})
            assert (answer.status, answer.body["code"]) == (403, "forbidden")


async def test_causes_in_logs_of_others_are_left_out(system: System, tmp_path: Path) -> None:
    async with place(system, WithAccounts(), tmp_path) as here:
        ada, bob = await here.person(ADA), await here.person(BOB)
        threads = {}
        for person in (ada, bob):
            user = (await person.me()).body["id"]
            threads[user] = uuid7()
            await system.intake.create_thread(threads[user], user=user)
        mine, other = threads.values()
        [secret] = [record async for record in system.log.read(thread(other))]
        wanted = RunOrigin("thread", other, secret.id)
        await system.intake.request_run(mine, "r", RunRequested(input={"messages": []}, wanted=wanted))
        answer = await ada.ask("GET", f"/api/threads/{mine}/log/why?event=2")
        assert answer.status == 200
        assert [cause["aggregate"] for cause in answer.body] == [mine]


async def test_what_models_got_for_others_is_left_out(system: System, tmp_path: Path) -> None:
    """Also if a run of one's own names the thread of somebody else, as one of an imported log may."""
    secret = "Ada's name is in this prompt."
    sha256 = hashlib.sha256(secret.encode()).hexdigest()
    async with place(system, WithAccounts(), tmp_path) as here:
        ada, bob = await here.person(ADA), await here.person(BOB)
        threads = []
        for person in (ada, bob):
            threads.append(uuid7())
            await system.intake.create_thread(threads[-1], user=(await person.me()).body["id"])
        await system.log.append(
            Aggregate("thread_setup", threads[0]),
            [SetupRecorded(part="prompt", content=secret)],
            expected=0,
            actor="test",
        )
        for thread_id in threads:
            for run, setup in (("r1", sha256), ("r2", "0" * 64)):
                started = RunStarted(attempt=1, worker="w", lease=1, setup={"prompt": setup}, setup_thread=threads[0])
                done: list[Event] = [started, ModelCompleted(message=ai(run, "Hi")), RunCompleted()]
                await system.intake.request_run(thread_id, f"{run}-{thread_id}", RunRequested(input={"messages": []}))
                tip = await system.log.tip(thread(thread_id))
                run_id = f"{run}-{thread_id}"
                await system.log.append(thread(thread_id), done, expected=tip, actor="test", run=run_id)
        for person, thread_id, shown in ((ada, threads[0], True), (bob, threads[1], False)):
            for question in ("prompt?at=4", "diff?left=%231&right=%232"):
                answer = await person.ask("GET", f"/api/threads/{thread_id}/log/{question}")
                assert answer.status == 200, answer.body
                assert (secret in str(answer.body)) is shown, question
        assert (await bob.ask("GET", f"/api/threads/{threads[0]}/log/prompt?at=4")).status == 404

"""Facts that only debugging reads: what models got, why a run was requested, how commands ended."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from actors.janitor import Janitor
from channels.terminal.log import views as logs
from channels.terminal.text import Style
from core.actor import Actor
from core.config.load import ConfigSource
from core.errors import Invalid
from core.events import (
    Aggregate,
    Event,
    Record,
    RunOrigin,
    RunPaused,
    RunRequested,
    RunStarted,
    SetupRecorded,
    ThreadCreated,
    ToolCompleted,
    ToolRequested,
    thread,
)
from core.log.store import EventLog
from core.replay.causes import why
from core.replay.exports.archive import Archive
from core.replay.exports.exporting import LogReader, Scope, lines, write
from core.replay.exports.format import FORMAT, Header
from core.replay.exports.importing import restore
from core.replay.recorded import read_of
from core.replay.soundness import verify
from core.replay.source import LogSource
from core.runs.prompts import OF_THREAD, SETUP, Missing, content, release
from core.runs.setups import Setups, erase, of_threads
from core.runtime.system import System
from core.thread.earlier import SEARCH
from core.user import agents
from tests.actors.agent.test_pause import TRIP, book, go_on, ring
from tests.actors.agent.test_tools import DONE, bash
from tests.actors.subagents.test_task import ON, OWN, task
from tests.support.model_server import Turn
from tests.support.replays import sent
from tests.support.workers import site, wait_for

pytestmark = pytest.mark.anyio


def requests_seq(records: Sequence[Record]) -> str:
    """The place of the last request for a run."""
    return f"seq:{[record.seq for record in records if isinstance(record.event, RunRequested)][-1]}"


async def stored(log: EventLog) -> list[str]:
    """The aggregates of recorded contents, in order."""
    return [record.head.aggregate_id async for record in log.between(0, await log.last()) if record.head.kind == SETUP]


async def test_what_a_model_gets_is_stored_once(tmp_path: Path) -> None:
    async with site(tmp_path, {"m": [DONE, DONE, DONE]}, tools=[ring]) as (client, models):
        for _ in range(2):
            await client.said(await client.thread(), "Go")
        await client.said(await client.thread("t2"), "Go")
        log = client.system.log
        starts = [(await client.records(name, RunStarted))[-1].event for name in ("t1", "t2")]
        contents = await stored(log)
        assert isinstance(starts[0], RunStarted)
        parts = await sent(log.read, starts[0])
    assert all(isinstance(start, RunStarted) and start.setup == starts[0].setup for start in starts)
    assert sorted(contents) == sorted(starts[0].setup.values()), "each is stored once, not once a run"
    assert starts[0].release == release() != ""
    request = models.requests[0].body
    assert parts["prompt"] == request["messages"][0]["content"]
    tools = {tool["name"]: tool for tool in msgspec.json.decode(parts["tools"])}
    offered_later = {SEARCH}  # once something of the conversation was left out
    assert {tool["function"]["name"] for tool in request["tools"]} | offered_later == set(tools)
    assert tools["ring"]["parameters"] == next(
        tool["function"]["parameters"] for tool in request["tools"] if tool["function"]["name"] == "ring"
    )
    assert msgspec.json.decode(parts["model"])["models"][0]["model"] == request["model"]


async def test_a_known_setup_costs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    appended: list[str] = []
    hashed: list[str] = []
    store = EventLog.append
    hashing = Setups.store

    async def append(self: EventLog, aggregate: Aggregate, *rest: object, **more: object) -> object:
        appended.append(aggregate.kind)
        return await store(self, aggregate, *rest, **more)  # type: ignore[arg-type]

    async def counted(self: Setups, *rest: object) -> dict[str, str]:
        hashed.append("setup")
        return await hashing(self, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(EventLog, "append", append)
    monkeypatch.setattr(Setups, "store", counted)
    async with site(tmp_path, {"m": [DONE] * 4}) as (client, _):
        for _ in range(4):
            await client.said(await client.thread(), "Go")
    assert appended.count(SETUP) == 3
    assert hashed == ["setup"], "three of four runs looked the setup up"


async def test_a_secret_is_not_in_a_content(tmp_path: Path) -> None:
    async with site(tmp_path, {"m": [DONE]}) as (client, _):
        await client.said(await client.thread(), "Go")
        log = client.system.log
        [start] = await client.records("t1", RunStarted)
        assert isinstance(start.event, RunStarted)
        parts = await sent(log.read, start.event)
    entry = yaml.safe_load((tmp_path / "config.yaml").read_text())["models"][0]
    assert entry["base_url"] in parts["model"]
    assert entry["api_key"] not in parts["model"]


async def test_a_content_that_is_missing_or_changed(tmp_path: Path) -> None:
    async with site(tmp_path, {"m": [DONE]}) as (client, _):
        log = client.system.log
        read = log.read
        assert await content(read, "ab") == Missing("it is not in the log, or not in the file")
        forged = SetupRecorded(part="prompt", content="Obey.")
        await log.append(Aggregate(SETUP, "ab"), [forged], expected=0, actor="test")
        with pytest.raises(Invalid, match="setup ab: the content does not match"):
            await content(read, "ab")
        assert await sent(read, RunStarted(attempt=1, worker="w", lease=1)) == {}


def of_janitor(home: Path) -> Callable[[System, ConfigSource], Actor[Any]]:
    return lambda system, _: Janitor(system.threads, system.chats, system.intake, home)


async def test_a_prompt_with_something_of_the_user_is_erased_with_the_thread(tmp_path: Path) -> None:
    """Those of subagents, too. What holds nothing of the user stays, and other threads keep theirs."""
    scripts = {"lead": [Turn(tool_calls=(task(name="nurse"),)), DONE, DONE], "sub": [DONE]}
    others = [of_janitor(tmp_path)]
    async with site(tmp_path, scripts, others=others, agents_api={"enabled": True}) as (client, _):
        log = client.system.log
        people = agents.Rosters(log, actor="test")
        await people.write_profile("ada", "Ada breeds axolotls.")
        await people.take("ada", agents.Definition("nurse", model="sub", soul="Heal with honey."), replace=False)
        await client.said(await client.thread(), "Go", context=ON)
        await client.said(await client.thread("t2"), "Go", model="lead", context={"subagent_enabled": False})
        starts = [record.event for record in await everything(log) if isinstance(record.event, RunStarted)]
        read = log.read
        prompts = [(await sent(read, start))["prompt"] for start in starts]
        assert [("axolotls" in prompt, "honey" in prompt) for prompt in prompts] == [
            (True, False),
            (False, True),
            (True, False),
        ]
        assert [start.setup_thread for start in starts] == ["t1", "t1", "t2"]
        shared = b"".join([record.raw for record in await everything(log) if record.head.kind == SETUP])
        assert b"axolotls" not in shared
        assert b"honey" not in shared
        await client.system.intake.erase("t1", by="ada")

        async def erased() -> bool:
            return [record.type async for record in read(Aggregate(OF_THREAD, "t1"))] == ["setup.erased"]

        await wait_for(erased)
        assert await content(read, starts[0].setup["prompt"], "t1") == Missing(
            "it was erased, with its thread or with earlier events of it"
        )
        assert "tools" in await sent(read, starts[0])
        assert (await sent(read, starts[2]))["prompt"] == prompts[2]
        kept = [record.raw for record in await everything(log) if record.aggregate != Aggregate(agents.KIND, "ada")]
        assert not any(b"honey" in raw for raw in kept)


async def test_a_personal_prompt_is_stored_once_in_a_thread(tmp_path: Path) -> None:
    """By any process, and again after it was erased with earlier events."""
    async with site(tmp_path, {}) as (client, _):
        log = client.system.log
        first, second = Setups(log), Setups(log)
        hashes = {await setups.store_for("t1", "prompt", "Ada.", "test") for setups in (first, second, first)}
        assert len(hashes) == 1
        assert len(await LogSource(log).read(Aggregate(OF_THREAD, "t1"))) == 1
        assert await erase(of_threads(log), "t1", actor="test", seconds=60)
        await second.store_for("t1", "prompt", "Ada.", "test")
        records = await LogSource(log).read(Aggregate(OF_THREAD, "t1"))
        assert [record.type for record in records] == ["setup.erased", "setup.recorded"]


async def test_a_personal_prompt_is_exported_and_imported_with_its_thread(tmp_path: Path) -> None:
    async with site(tmp_path, {"m": [DONE]}, agents_api={"enabled": True}) as (client, _):
        log = client.system.log
        await agents.Rosters(log, actor="test").write_profile("ada", "Ada breeds axolotls.")
        await client.said(await client.thread(), "Go")
        path = tmp_path / "t1.jsonl"
        header = Header(format=FORMAT, sika=release(), thread="t1")
        await write(path, lines(LogReader(log), header, Scope()))
        archive = await Archive.open(path)
        [start] = [r.event for r in await archive.read(thread("t1")) if isinstance(r.event, RunStarted)]
        assert "axolotls" in (await sent(read_of(archive), start))["prompt"]
        await restore(log, archive, thread="t9")
        archive.close()
        [copy] = [record.event for record in await client.records("t9", RunStarted)]
        assert isinstance(copy, RunStarted)
        assert copy.setup_thread == "t9"
        assert "axolotls" in (await sent(log.read, copy))["prompt"]


async def everything(log: EventLog) -> list[Record]:
    return [record async for record in log.between(0, await log.last())]


async def test_a_command_says_how_it_ended(tmp_path: Path) -> None:
    turns = [Turn(tool_calls=(bash("exit 3"), bash("printf 'Exit Code: 7'"))), DONE]
    async with site(tmp_path, {"m": turns}) as (client, _):
        await client.said(await client.thread(), "Go")
        outcomes = [record.event for record in await client.records("t1", ToolCompleted)]
    codes = {
        outcome.message["content"]: outcome.exit_code for outcome in outcomes if isinstance(outcome, ToolCompleted)
    }
    assert codes == {"Exit Code: 3": 3, "Exit Code: 7": 0}
    assert all("response_metadata" not in o.message for o in outcomes if isinstance(o, ToolCompleted))


async def test_a_run_that_answers_a_pause_says_so(tmp_path: Path) -> None:
    async with site(tmp_path, {"trip": TRIP}, tools=[book, ring]) as (client, _):
        await client.thread()
        await client.ended("t1", await client.ask("t1", "Go", "trip"))
        await go_on(client, "May")
        requests = [r.event for r in await client.records("t1", RunRequested)]
        [first, _] = await client.records("t1", RunPaused)
        chain = await why(LogSource(client.system.log).read, thread("t1"), requests_seq(await client.records("t1")))
        verdict = await verify(client.system.log, "t1")
    assert [link.record.type for link in chain][-2:] == ["run.paused", "run.requested"]
    assert verdict.problems == []
    wanted = [request.wanted for request in requests if isinstance(request, RunRequested)]
    assert wanted == [None, RunOrigin("thread", "t1", first.id)]


async def test_a_subagents_run_names_the_call(tmp_path: Path) -> None:
    lead = [Turn(tool_calls=(task(),)), DONE]
    async with site(tmp_path, {"lead": lead, "sub": [DONE]}, subagents=OWN) as (client, _):
        await client.said(await client.thread(), "Go", context=ON)
        [call] = await client.records("t1", ToolRequested)
        log = client.system.log
        everything = [record async for record in log.between(0, await log.last())]
    [request] = [r.event for r in everything if r.head.kind == "subagent" and isinstance(r.event, RunRequested)]
    assert isinstance(request, RunRequested)
    assert request.wanted == RunOrigin("thread", "t1", call.id)


async def test_prompts_of_two_runs_are_compared_word_by_word(tmp_path: Path) -> None:
    async with site(tmp_path, {"m": [DONE, DONE]}) as (client, _):
        await client.said(await client.thread(), "Go")
        log = client.system.log
        source = LogSource(log)
        [start] = await client.records("t1", RunStarted)
        assert isinstance(start.event, RunStarted)
        parts = await sent(read_of(source), start.event)
        other = parts["prompt"].replace("Answer in the language", "Reply in the language")
        setup = await Setups(log).store("key", {"prompt": other}, None, "test")
        second = [
            ThreadCreated(user="ada"),
            *[r.event for r in await client.records("t1", RunRequested)],
            msgspec.structs.replace(start.event, setup=setup),
        ]
        tip = 0
        for event in second:
            assert isinstance(event, Event)
            [record] = await log.append(thread("t2"), [event], expected=tip, actor="test", run="r")
            tip = record.seq
        written: list[str] = []
        await logs.diff(source, "t1", "t2", written.append, style=Style())
        plain: list[str] = []
        await logs.diff(source, "t1", "t2", plain.append, style=Style(), raw=True)
    [line] = [line for line in written if "[-Answer-]" in line]
    assert "{+Reply+} in the language" in line
    assert "prompt: what the models got differs" in written
    [difference] = [msgspec.json.decode(line) for line in plain]
    assert difference["setup"] == [{"part": "prompt", "before": parts["prompt"], "after": other}]

"""Replay of recorded threads by command, at breakpoints, with edits, and of all threads at once."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import anyio
import pytest

from actors.debugging import rehearsal, rehearsal_all
from actors.debugging.whatif import WhatIf
from actors.wiring import compose
from channels.cli.log.report import summary
from channels.cli.log.stepping import Prompt
from channels.terminal.text import Style
from core.bus.endpoint import Endpoint
from core.errors import Invalid
from core.events import Aggregate, Record, ToolRequested
from core.replay.breakpoints import Breakpoint
from core.replay.debugger import Debugger, Decision, Moment, edited
from core.replay.source import LogSource
from core.replay.whatif.running import Changes
from tests.actors.agent.test_tools import bash
from tests.golden import stories
from tests.support import warm
from tests.support.model_server import Turn
from tests.support.workers import Client, site

pytestmark = [pytest.mark.anyio, pytest.mark.long(keep=4)]

WORK = [
    Turn(text="First.", tool_calls=(bash("echo one"),)),
    Turn(text="Again.", tool_calls=(bash("echo one"),)),
    Turn(text="Again.", tool_calls=(bash("echo two"),)),
    Turn(text="Done."),
]

SAME = "same decisions"
UNDER = f"{SAME} under another prompt"
"""The runs of `site` have no skills; the commands' prompts name those of the installation."""


@asynccontextmanager
async def recorded(home: Path) -> AsyncIterator[Client]:
    async with site(home, {"m": WORK}) as (client, _):
        await client.said(await client.thread(), "Go", "m")
        yield client


def options(home: Path) -> compose.Options:
    return compose.Options(home, config=home / "config.yaml")


async def sika(home: Path, *words: str, typed: str = "") -> tuple[int, str, str]:
    """Runs a command in a process of its own, while no server runs."""
    options = ("--home", str(home), "--config", str(home / "config.yaml"))
    run = partial(
        warm.run, "channels.cli", *words, *options, env={**os.environ, "NO_COLOR": "1"}, stdin=typed, timeout=60
    )
    done = await asyncio.to_thread(run)
    return done.returncode, done.stdout, done.stderr


async def test_stops_show_the_state_before_a_step_and_both_sides_of_it(tmp_path: Path) -> None:
    moments: list[Moment] = []

    async def ask(moment: Moment) -> Decision:
        moments.append(moment)
        return Decision(moment.record, step=len(moments) == 2)

    async with recorded(tmp_path) as client:
        source, intents = LogSource(client.system.log), await client.records("t1", ToolRequested)
        stop = Breakpoint.of("tool.requested name=bash args.command~two")
        report = await rehearsal.replay(
            source, "t1", None, options(tmp_path), look=Debugger([Breakpoint.of("tool.* call_id=*"), stop], ask).look
        )
        assert (report.verdict, report.divergence) == (SAME, None)
        assert [moment.record.type for moment in moments] == [
            "tool.completed", "tool.completed", "model.completed", "tool.completed",
        ]  # fmt: skip
        assert len(intents) == 3
        assert moments[-1].now["args"]["command"] == "echo two"
        moments.clear()
        await rehearsal.replay(source, "t1", None, options(tmp_path), look=Debugger([stop], ask).look)
    assert [len(moment.state.messages) for moment in moments] == [6], "before the outcome of the third call"


async def test_an_edited_outcome_shows_whether_policies_decide_otherwise(tmp_path: Path) -> None:
    def changing(value: str) -> Debugger:
        async def ask(moment: Moment) -> Decision:
            return Decision(edited(moment.record, "message.content", value), step=False)

        return Debugger([Breakpoint.of("tool.completed message.content=one*")], ask)

    async with recorded(tmp_path) as client:
        source = LogSource(client.system.log)
        same = await rehearsal.replay(source, "t1", None, options(tmp_path), look=changing("three").look)
    assert (same.verdict, same.divergence, same.edited) == ("same decisions", None, True)


async def test_the_end_of_the_input_ends_the_replay(tmp_path: Path) -> None:
    async with recorded(tmp_path) as client:
        with anyio.CancelScope() as scope:
            prompt = Prompt(scope, Style(), lambda line: None, lambda: "")
            look = Debugger([], prompt.ask).look
            await rehearsal.replay(LogSource(client.system.log), "t1", None, options(tmp_path), look=look)
    assert scope.cancelled_caught


async def test_all_threads_in_processes(tmp_path: Path) -> None:
    async with recorded(tmp_path) as client:
        for thread in ("t2", "t3"):
            await client.said(await client.thread(thread), "Go", "m")
        await client.thread("empty")
        token = (tmp_path / "secrets" / "nats_token").read_text().strip()
        url = client.system.bus.nc.connected_url
        assert url is not None
        place = Endpoint(url.geturl(), token=token)
        shown: list[tuple[int, int]] = []
        parts = await rehearsal_all.replay_all(options(tmp_path), place, None, 2, lambda *done: shown.append(done))
    lines, differing = summary(parts)
    assert (differing, shown[-1]) == (0, (4, 4))
    assert lines[0].startswith(f"3 threads: 3 {SAME} under another prompt, 1 left out; 3 runs, ")


@pytest.mark.parametrize("text", ["", "tool.requested bash", "x='"])
def test_a_breakpoint_that_is_none(text: str) -> None:
    with pytest.raises(Invalid, match="breakpoint"):
        Breakpoint.of(text)


async def test_commands(tmp_path: Path) -> None:
    async with recorded(tmp_path) as client:
        call = (await client.records("t1", ToolRequested))[0]
        identity = getattr(call.event, "call_id", "")

    async def run(*words: str, typed: str = "") -> tuple[int, Sequence[str]]:
        code, out, err = await sika(tmp_path, "log", "replay", *words, typed=typed)
        assert "Traceback" not in err
        return code, (out + err).splitlines()

    code, lines = await run("t1", "--until", identity)
    assert (code, lines[0].partition(":")[0]) == (0, "same so far under another prompt, 1 of the runs unfinished")
    stop = ("--break", "tool.requested args.command~two")
    code, lines = await run("t1", *stop, typed="show messages[-1].content\nedit message.content nine\nc\n")
    assert lines[0].startswith("seq:")
    assert "Again." in lines
    assert lines[-2] == f"{UNDER}: 7 steps in 1 run"

    live = ("--at", identity, "--set", "models=[]", "--model", "demo", "--samples", "2", "--json")
    code, out, err = await sika(tmp_path, "log", "whatif", "t1", *live)
    assert (code, len(json.loads(out)["samples"])) == (0, 2), err
    assert err.startswith("0 model calls up to the fork point; then about ")
    code, out, _ = await sika(tmp_path, "log", "fork", "t1", "--at", identity, "--id", "t9")
    assert (code, out.splitlines()[0]) == (0, "thread t9")

    config = tmp_path / "config.yaml"
    config.write_text(config.read_text()[:-1] + ', "approvals": [{"tool": "bash", "match": "two", "text": "Two?"}]}')
    code, lines = await run("--all", "--since", "7d")
    assert code == 1
    assert any(line.startswith("  DIFFERENT at seq:") for line in lines), lines
    assert lines[-1].startswith("1 thread: 1 different, 1 left out; 1 run, ")


# ── without a server ────────────────────────────────────────────────────────────────────────────────────────────────


class Recording:
    """Events of a file: a source without a server."""

    def __init__(self, records: Sequence[Record]) -> None:
        self._records = records

    async def read(self, aggregate: Aggregate) -> Sequence[Record]:
        return [record for record in self._records if record.aggregate == aggregate]

    async def threads(self) -> AsyncIterator[Aggregate]:
        yield self._records[0].aggregate

    async def events(self) -> AsyncIterator[Record]:
        for record in self._records:
            yield record

    async def last(self) -> Aggregate:
        return self._records[0].aggregate


@pytest.mark.parametrize("name", sorted(stories.STORIES))
async def test_recorded_threads_are_replayed_step_by_step_without_a_server(name: str, tmp_path: Path) -> None:
    """Subagents, failed models with their retries, an approval, pauses and a question: each is a step to stop at."""
    moments: list[Moment] = []

    async def ask(moment: Moment) -> Decision:
        moments.append(moment)
        return Decision(moment.record, step=True)

    records = stories.load(name)
    source, configured = Recording(records), stories.configured(name, tmp_path / "config.yaml")
    at_work = compose.Options(tmp_path, configured)
    report = await rehearsal.replay(source, records[0].aggregate.id, None, at_work, look=Debugger([], ask).look)
    assert report.divergence is None
    assert len(moments) == report.steps > 0
    sequences = [moment.record.seq for moment in moments]
    assert len(set(sequences)) == len(sequences)


async def test_a_recorded_thread_goes_on_without_a_server(tmp_path: Path) -> None:
    records = stories.load("commands")
    configured = stories.configured("commands", tmp_path / "config.yaml")
    source, at_work = Recording(records), compose.Options(tmp_path, configured)
    whatif = WhatIf(source, at_work, Changes(message="Thanks"))
    result = await whatif.run(await whatif.point(records[0].aggregate.id, records[-1].seq))
    assert result.samples[0].future.end == "run.completed"
    skills, files = result.not_restored
    assert skills == "the user's own skills: their directory is not here"
    assert files == "all files: the thread's directory is not here"

"""Recorded runs executed again on their recorded outcomes: identical, or the first difference is named."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from actors.lead import Lead
from actors.wiring import discovery
from adapters.models.configured import Silent
from core.config.load import ConfigSource
from core.events import (
    Aggregate,
    Event,
    ModelCompleted,
    Record,
    RunRequested,
    ThreadTitled,
    ToolCompleted,
    ToolRequested,
)
from core.log.store import EventLog
from core.replay.source import LogSource
from core.runs.replay import Report, replay
from core.tools import Tool, ToolContext, tool
from tests.actors.agent.test_tools import bash
from tests.support import model_server
from tests.support.model_server import Failure, ToolCall, Turn
from tests.support.workers import Client, site

pytestmark = pytest.mark.anyio

signatures: list[str] = []


@tool(effect="once")
async def sign(ctx: ToolContext, note: str) -> str:
    """Sign."""
    signatures.append(note)
    return f"signed {note}"


WORK = [
    Turn(
        text="Let me see.",
        tool_calls=(ToolCall("sign", {"note": "a"}), bash("echo hi"), ToolCall("teleport", {})),
        error=Failure(status=503, headers={"retry-after": "0"}),
        times=1,
    ),
    Turn(tool_calls=(ToolCall("sign", {"note": "b"}),)),
    Turn(text="Done."),
]


class Tampered:
    """A log in which some events read differently from how they were written."""

    def __init__(self, records: Sequence[Record], change: Callable[[Event], Event]) -> None:
        self._records = [self._changed(record, change) for record in records]

    def _changed(self, record: Record, change: Callable[[Event], Event]) -> Record:
        assert isinstance(record.event, Event)
        return Record(record.seq, record.raw, record.head, change(record.event))

    async def read(self, aggregate: Aggregate, *, after: int = 0, upto: int | None = None) -> AsyncIterator[Record]:
        for record in self._records:
            if record.seq > after and (upto is None or record.seq <= upto):
                yield record


async def nobody(actor: str, request: Mapping[str, Any], progress: Any) -> Any:
    raise AssertionError("a replay asks nobody")


def loop(log: EventLog, tools: Sequence[Tool] = (sign,), config: Path | None = None) -> Lead:
    toolset = [*discovery.load_tools(), *tools]
    return Lead(ConfigSource(config), Silent(), lambda _: toolset, nobody, log, Path())


async def again(client: Client, change: Callable[[Event], Event], until: int | None = None, **how: Any) -> Report:
    log = Tampered(await client.records("t1"), change)
    return await replay(LogSource(cast(EventLog, log)).read, "t1", until, loop(client.system.log, **how).execute)


@asynccontextmanager
async def worked(home: Path) -> AsyncIterator[Client]:
    """A thread with two runs in its log."""
    async with site(home, {"m": WORK, "quick": [Turn(text="Yes?")]}, tools=[sign]) as (client, _):
        await client.said(await client.thread(), "Go", "m")
        await client.said("t1", "Thanks", "quick")
        signatures.clear()
        yield client


async def test_identical(tmp_path: Path) -> None:
    async with worked(tmp_path) as client:
        before = await client.records("t1")
        report = await replay(LogSource(client.system.log).read, "t1", None, loop(client.system.log).execute)
        after = await client.records("t1")
    assert (report.divergence, report.runs, report.steps, report.unfinished) == (None, 2, 8, 0)
    assert [record.raw for record in after] == [record.raw for record in before]
    assert signatures == []


async def test_calls_of_a_model_that_repeats_their_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named = model_server._tool_call
    monkeypatch.setattr(model_server, "_tool_call", lambda index, call, _, text: named(index, call, 0, text))
    calls = [ToolCall("sign", {"note": "a"}), bash("echo hi"), ToolCall("sign", {"note": "b"})]
    turns = [*(Turn(tool_calls=(call,)) for call in calls), Turn(text="Done.")]
    async with site(tmp_path, {"m": turns}, tools=[sign]) as (client, _):
        await client.said(await client.thread(), "Go", "m")
        intents = await client.records("t1", ToolRequested)
        report = await replay(LogSource(client.system.log).read, "t1", None, loop(client.system.log).execute)
    assert len(intents) == 3
    assert len({cast(ToolRequested, record.event).call_id for record in intents}) == 1
    assert (report.divergence, report.runs, report.steps) == (None, 1, 7)


async def test_up_to_any_event(tmp_path: Path) -> None:
    async with worked(tmp_path) as client:
        steps = []
        for record in await client.records("t1"):
            report = await again(client, lambda event: event, until=record.seq)
            assert report.divergence is None, record
            steps.append(report.steps)
    assert steps == sorted(steps)
    assert steps[-1] == 8


async def test_a_title_after_the_end_hides_no_divergence(tmp_path: Path) -> None:
    def change(event: Event) -> Event:
        if isinstance(event, ModelCompleted) and event.message["content"] == "Yes?":
            call = {"name": "sign", "args": {"note": "z"}, "id": "c9", "type": "tool_call"}
            return msgspec.structs.replace(event, message={**event.message, "tool_calls": [call]})
        return event

    async with worked(tmp_path) as client:
        run = (await client.records("t1", RunRequested))[-1].run
        await client.system.threads.decide("t1", lambda _: [ThreadTitled(title="T")], actor="title", run=run)
        assert (await again(client, lambda event: event)).divergence is None
        assert (await again(client, change)).divergence is not None


async def test_an_argument_that_was_another(tmp_path: Path) -> None:
    def change(event: Event) -> Event:
        if isinstance(event, ToolRequested) and event.name == "sign":
            return msgspec.structs.replace(event, args={"note": "c"})
        return event

    async with worked(tmp_path) as client:
        report = await again(client, change)
        [first, *_] = await client.records("t1", ToolRequested)
    assert report.divergence is not None
    assert f"{first.seq} tool.requested: sign was called, the loop calls sign" in report.divergence


async def test_a_call_of_the_model_that_was_another(tmp_path: Path) -> None:
    def change(event: Event) -> Event:
        if not isinstance(event, ModelCompleted) or not event.message.get("tool_calls"):
            return event
        calls = [{**call, "args": {**call["args"], "note": "c"}} for call in event.message["tool_calls"]]
        return msgspec.structs.replace(event, message={**event.message, "tool_calls": calls})

    async with worked(tmp_path) as client:
        report = await again(client, change)
        [_, second, *_] = await client.records("t1", ModelCompleted)
    assert report.divergence is not None
    assert f"{second.seq} model.completed: recorded for the conversation" in report.divergence


async def test_an_outcome_that_was_another(tmp_path: Path) -> None:
    def change(event: Event) -> Event:
        if isinstance(event, ToolCompleted):
            return msgspec.structs.replace(event, message={**event.message, "content": "forged"})
        return event

    async with worked(tmp_path) as client:
        report = await again(client, change)
    assert report.divergence is not None
    assert "model.completed" in report.divergence


async def test_a_call_that_was_not_made(tmp_path: Path) -> None:
    async with worked(tmp_path) as client:
        records = [r for r in await client.records("t1") if not isinstance(r.event, ToolRequested | ToolCompleted)]
        log = Tampered(records, lambda event: event)
        report = await replay(LogSource(cast(EventLog, log)).read, "t1", None, loop(client.system.log).execute)
    assert report.divergence is not None
    assert "the loop calls" in report.divergence
    assert "the run did not" in report.divergence


async def test_a_loop_that_does_not_have_the_tool_any_more(tmp_path: Path) -> None:
    async with worked(tmp_path) as client:
        report = await again(client, lambda event: event, tools=[])
    assert report.divergence is not None
    assert "sign" in report.divergence


async def test_a_loop_in_which_the_tool_does_something_else(tmp_path: Path) -> None:
    @tool(effect="pure")
    async def sign(ctx: ToolContext, note: str) -> str:
        """Only look at the ledger."""
        return "looked"

    async with worked(tmp_path) as client:
        report = await again(client, lambda event: event, tools=[sign])
    assert report.divergence is not None
    assert "sign" in report.divergence


async def test_a_rule_that_is_new_is_named_where_it_applies(tmp_path: Path) -> None:
    """Both sides are told: the call that was made, and the question that comes instead."""
    rules = tmp_path / "rules.yaml"
    rules.write_text('{"approvals": [{"tool": "sign", "text": "Sign it?"}]}')
    async with worked(tmp_path) as client:
        report = await again(client, lambda event: event, config=rules)
        [first, *_] = await client.records("t1", ToolRequested)
    assert report.recorded is not None
    assert report.now is not None
    assert (report.recorded["type"], report.recorded["name"]) == ("tool.requested", "sign")
    assert report.recorded["id"] == first.id
    assert (report.now["type"], report.now["call_id"]) == ("approval.requested", report.recorded["call_id"])
    assert {text.partition(":")[0] for text in report.changed} == {"model", "configuration"}


async def test_a_call_without_an_end_is_not_called_identical(tmp_path: Path) -> None:
    """The worker was killed while the tool was at work."""
    async with worked(tmp_path) as client:
        [first, *_] = await client.records("t1", ToolRequested)
        report = await again(client, lambda event: event, until=first.seq)
    assert (report.divergence, report.runs, report.unfinished) == (None, 1, 1)


async def test_a_run_that_was_steered(tmp_path: Path) -> None:
    """The message came while a call was made, and is taken in at the same place again."""
    clients: list[Client] = []

    @tool(effect="once")
    async def poke(ctx: ToolContext) -> str:
        """Tell the agent something else meanwhile."""
        message = {"type": "human", "id": "steer-1", "content": "Hurry."}
        await clients[0].system.intake.steer(ctx.thread, ctx.run, message)
        return "ok"

    turns = [Turn(tool_calls=(ToolCall("poke", {}),)), Turn(text="Done.")]
    async with site(tmp_path, {"m": turns}, tools=[poke]) as (client, _):
        clients.append(client)
        messages = await client.said(await client.thread(), "Go", "m")
        lead = loop(client.system.log, [poke])
        report = await replay(LogSource(client.system.log).read, "t1", None, lead.execute)
    assert "Hurry." in [message["content"] for message in messages]
    asked_again = 2  # the script begins anew after a message of the person: poke is called once more
    assert (report.divergence, report.runs, report.steps) == (None, 1, 4 + asked_again)

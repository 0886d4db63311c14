"""A run gives a batch of prompts to subagents: the table, the summary, retries, and the early stop."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest

from actors.subagents import pool as pools
from actors.subagents.pool import Pool, Quota
from actors.subagents.prompts import Source, rendered
from actors.wiring import compose
from adapters.batches import LocalBatchFiles
from core.errors import Invalid, Refused
from core.events import Aggregate, SubagentCompleted, SubagentProgressed, SubagentStarted
from core.files.folder import Folder
from core.files.paths import thread_root
from core.log.kinds import SUBAGENT
from core.thread.batches import after
from core.thread.entries import Delegation, Items
from core.thread.fold import fold
from core.thread.tokens import Tokens
from core.wording import text_of_event
from tests.support.model_server import Failure, Script, ToolCall, Turn
from tests.support.replays import replay
from tests.support.workers import Client, site

pytestmark = pytest.mark.anyio

ON = {"subagent_enabled": True, "model_name": "lead"}
OWN = {"agents": {"general-purpose": {"model": "sub"}}}


def scripts(prompts: list[str], turns: Sequence[Turn]) -> dict[str, Script | Sequence[Turn]]:
    """Returns those of an agent that calls `tasks`, and of its subagents: the prompt `step-<n>` gets turn n."""
    call = {"description": "Count all.", "subagent_type": "general-purpose", "prompts": prompts}
    lead = [Turn(text="I delegate.", tool_calls=(ToolCall("tasks", call),)), Turn(text="Done.")]
    return {"lead": lead, "sub": Script((Turn(text="No marker."), *turns), count="marker")}


def table(home: Path) -> list[dict[str, Any]]:
    [path] = (thread_root(home, "ada", "t1") / "user-data" / "outputs").iterdir()
    return [json.loads(line) for line in path.read_text().splitlines()]


async def events(client: Client, kind: Any) -> list[Any]:
    return [record.event for record in await client.records("t1", kind)]


async def test_a_batch(tmp_path: Path) -> None:
    prompts = [f"Do step-{n}." for n in range(40)]
    async with site(tmp_path, scripts(prompts, [Turn(text=f"Did {n}.") for n in range(40)]), subagents=OWN) as (
        client,
        _,
    ):
        messages = await client.said(await client.thread(), "Go on.", context=ON)
        [started], progressed = await events(client, SubagentStarted), await events(client, SubagentProgressed)
        [completed] = await events(client, SubagentCompleted)
        subagents = client.system.subagents.threads
        batch = await subagents.load(started.subagent)
        records = [record async for record in subagents.log.read(subagents.aggregate(started.subagent))]
        await client.idle()
    rows = table(tmp_path)
    assert [row["index"] for row in rows] == list(range(40))
    assert [(row["prompt"], row["result"], row["attempts"]) for row in rows] == [
        (p, f"Did {n}.", 1) for n, p in enumerate(prompts)
    ]
    [result] = [m["content"] for m in messages if m["type"] == "tool"]
    assert result.startswith("Task Succeeded. Result: 40/40 done. All results")
    assert "/mnt/user-data/outputs/Count-all-" in result
    assert len(result) < 1000
    assert [e.index for e in progressed][-1] == 100
    assert progressed[-1].message["content"] == "40/40 done"
    assert completed.usage["total_tokens"] == sum(row["tokens"] for row in rows) > 0
    assert fold(records[30:], fold(records[:30])) == fold(records) == batch
    run = batch.runs[started.subagent]
    assert (run.subagents, run.items.done) == ({}, 40)


def test_the_summary_has_the_first_results_and_the_first_failures() -> None:
    items = Items()
    for n in range(10):
        known = Delegation(call_id=f"c{n}", name="sub", item=n)
        good = SubagentCompleted(call_id=known.call_id, status="completed", result=f"Did {n}.")
        bad = SubagentCompleted(call_id=known.call_id, status="failed", error=f"No {n}.")
        items = after(items, known, bad if n % 2 else good, Tokens(1))
    assert (items.done, items.failures, items.tokens) == (5, {"failed": 5}, {"unknown": Tokens(10)})
    assert [text for *_, text in items.examples] == ["Did 0.", "No 1.", "Did 2.", "No 3.", "No 5."]


BAD = Failure(status=400, message="no such thing")
AUTH = Failure(status=401, message="invalid api key")


async def test_a_failed_item_is_tried_again(tmp_path: Path) -> None:
    turns = [Turn(text="Did 0."), Turn(text="Did 1.", error=BAD, times=1), Turn(text="Did 2.", error=BAD)]
    async with site(tmp_path, scripts([f"Do step-{n}." for n in range(3)], turns), subagents=OWN) as (client, models):
        messages = await client.said(await client.thread(), "Go on.", context=ON)
        await client.idle()
    rows = table(tmp_path)
    assert [(row["status"], row["result"], row["attempts"]) for row in rows] == [
        ("completed", "Did 0.", 1),
        ("completed", "Did 1.", 2),
        ("failed", None, 2),
    ]
    assert "no such thing" in rows[2]["error"]
    [result] = [m["content"] for m in messages if m["type"] == "tool"]
    assert "3/3 done, 1 failed" in result
    assert "Failures: generic: 1." in result
    assert models.counts["sub"] == 5


@pytest.mark.parametrize(
    ("error", "batch", "reason", "ended"),
    [
        (BAD, {"retries": 0, "min_ended": 5, "pool": 1}, "more than 50% of its items failed", 5),
        (AUTH, {"pool": 1}, "item 0 failed (auth)", 1),
    ],
)
async def test_an_early_stop(tmp_path: Path, error: Failure, batch: Any, reason: str, ended: int) -> None:
    turns = [Turn(error=error) for _ in range(30)]
    async with site(
        tmp_path, scripts([f"Do step-{n}." for n in range(30)], turns), subagents={**OWN, "batch": batch}
    ) as (client, models):
        messages = await client.said(await client.thread(), "Go on.", context=ON)
        await client.idle()
    [result] = [m for m in messages if m["type"] == "tool"]
    assert result["status"] == "error"
    assert reason in result["content"]
    assert f"{ended}/30 done, {ended} failed" in result["content"]
    assert f"Not done: {30 - ended}." in result["content"]
    assert len(result["content"]) < 2000
    assert [row["index"] for row in table(tmp_path)] == list(range(ended))
    assert models.counts["sub"] == ended


QUOTA = Failure(status=402, message="insufficient balance")


@pytest.mark.parametrize("pool", [1, 4])
async def test_a_quota_pauses_a_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pool: int) -> None:
    """Four items are refused twice each: with a pool of four, that is two pauses; one by one, two for each item."""
    monkeypatch.setattr(pools, "QUOTA_SECONDS", (0.01, 0.02, 0.03))
    turns = [Turn(text=f"Did {n}.", error=QUOTA, times=2) for n in range(4)]
    settings = {**OWN, "batch": {"pool": pool, "retries": 0}}
    async with site(tmp_path, scripts([f"Do step-{n}." for n in range(4)], turns), subagents=settings) as (client, _):
        messages = await client.said(await client.thread(), "Go on.", context=ON)
        await client.idle()
        [started] = [r.event for r in await client.records("t1", SubagentStarted)]
        assert isinstance(started, SubagentStarted)
        aggregate = Aggregate(SUBAGENT, started.subagent)
        batch = [e async for r in client.system.log.read(aggregate) if isinstance(e := r.event, SubagentCompleted)]
    pauses = [event.pause_seconds for event in batch if event.pause_seconds]
    assert pauses == [0.01, 0.02] * (4 if pool == 1 else 1)
    assert any("failed, to be tried again, the batch pauses 0.01 s" in text_of_event(event) for event in batch)
    [result] = [m["content"] for m in messages if m["type"] == "tool"]
    assert "4/4 done. " in result
    assert [(row["status"], row["attempts"]) for row in table(tmp_path)] == [("completed", 3)] * 4


async def test_a_batch_gives_up_if_the_quota_does_not_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pools, "QUOTA_SECONDS", (0.0,) * 3)
    settings = {**OWN, "batch": {"pool": 1}}
    turns = [Turn(error=QUOTA)] * 9
    async with site(tmp_path, scripts([f"Do step-{n}." for n in range(9)], turns), subagents=settings) as (
        client,
        models,
    ):
        messages = await client.said(await client.thread(), "Go on.", context=ON)
        await client.idle()
    [result] = [m["content"] for m in messages if m["type"] == "tool"]
    assert "item 0 failed (quota)" in result
    assert "Not done: 8." in result
    assert models.counts["sub"] == 4, "three pauses"


def test_refusals_of_one_wave_count_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def law() -> None:
        quota = Quota()
        for _ in range(8):
            assert quota.is_patient(0)
            quota.refused(0)
        assert (quota.wave, quota.is_patient(1)) == (1, True)
        quota.refused(1)
        assert (quota.is_patient(1), quota.is_patient(2)) == (True, False)
        quota.answered()
        assert quota.is_patient(2)

    monkeypatch.setattr(pools, "QUOTA_SECONDS", (0.0,) * 2)
    anyio.run(law)


BUSY = Failure(status=429, message="slow down", headers={"retry-after-ms": "1"})


async def test_the_pool_shrinks_when_the_provider_limits_the_rate(tmp_path: Path) -> None:
    """Of eight refused items the first one halves the pool: four are at work when all eight have ended."""
    turns = [Turn(text=f"Did {n}.", error=BUSY, times=1) for n in range(8)]
    turns += [Turn(text=f"Did {n}.", gate="held") for n in range(8, 24)]
    prompts = [f"Do step-{n}." for n in range(24)]
    async with site(tmp_path, scripts(prompts, turns), subagents=OWN) as (client, models):
        thread = await client.thread()
        run = await client.ask(thread, "Go on.", context=ON)
        await client.until(thread, lambda _, record: isinstance(record.event, SubagentStarted))
        [started] = await events(client, SubagentStarted)
        log, aggregate = client.system.log, Aggregate(SUBAGENT, started.subagent)
        begun, ended = 0, 0
        async for record in log.follow(aggregate):
            begun += isinstance(record.event, SubagentStarted)
            ended += isinstance(record.event, SubagentCompleted)
            if ended == 8 and begun >= 12:
                break
        await models.reached("held")
        items = [r async for r in log.read(aggregate) if isinstance(r.event, SubagentStarted)]
        models.release("held")
        await client.ended(thread, run)
    assert len(items) == 12
    assert [row["result"] for row in table(tmp_path)] == [f"Did {n}." for n in range(24)]


async def test_the_pool_grows_again() -> None:
    pool = Pool(8)
    async with pool.place() as before:
        pool.refused(before)
        pool.refused(before)
        assert pool.size == 4
    sizes = []
    for _ in range(4 + 5 + 6 + 7 + 8):
        async with pool.place() as period:
            pool.answered(before)
            pool.answered(period)
        sizes.append(pool.size)
    assert [sizes.count(size) for size in range(4, 9)] == [3, 5, 6, 7, 9]
    for _ in range(9):
        async with pool.place() as period:
            pool.refused(period)
    assert pool.size == 1


async def test_a_cancel_reaches_the_items(tmp_path: Path) -> None:
    turns = [Turn(text="Did 0."), *(Turn(text="Never.", gate="held") for _ in range(9))]
    async with site(
        tmp_path, scripts([f"Do step-{n}." for n in range(10)], turns), subagents={**OWN, "batch": {"pool": 3}}
    ) as (client, _):
        thread = await client.thread()
        run = await client.ask(thread, "Go on.", context=ON)
        await client.until(thread, lambda _, record: isinstance(record.event, SubagentProgressed))
        [started] = await events(client, SubagentStarted)
        with pytest.raises(Refused, match="is a batch, which reads no messages"):
            await client.system.subagents.steer(started.subagent, started.subagent, {"id": "m1", "content": "Faster!"})
        await client.system.intake.cancel(thread, run)
        ended = await client.ended(thread, run)
        [completed] = await events(client, SubagentCompleted)
        batch = await client.system.subagents.threads.load(started.subagent)
        await client.idle()
    assert ended.status == "interrupted"
    assert completed.status == "cancelled"
    run_of_batch = batch.runs[started.subagent]
    assert (run_of_batch.status, run_of_batch.subagents) == ("interrupted", {})
    assert [row["status"] for row in table(tmp_path)] == ["completed", *["cancelled"] * 3]


async def test_a_batch_is_replayed_and_erased(tmp_path: Path) -> None:
    turns = [Turn(text=f"Did {n}.") for n in range(3)]
    async with site(tmp_path, scripts([f"Do step-{n}." for n in range(3)], turns), subagents=OWN) as (client, _):
        await client.said(await client.thread(), "Go on.", context=ON)
        await client.idle()
        options = compose.Options(config=tmp_path / "config.yaml", home=tmp_path)
        report = await replay(client.system, "t1", None, options)
        subagents = client.system.subagents.threads
        [started] = await events(client, SubagentStarted)
        records = [record async for record in subagents.log.read(subagents.aggregate(started.subagent))]
        items = [r.event.subagent for r in records if isinstance(r.event, SubagentStarted)]
        await client.system.threads.bury("t1", by="ada", actor="http")
        await client.system.threads.erase("t1")
        gone = [(await subagents.load(name)).erased for name in (started.subagent, *items)]
    assert report.divergence is None
    assert len(items) == 3
    assert gone == [True, True, True, True]


CSV = "name,city\nAda,London\nKurt,Wien\n"
FILES = {"a.txt": "one\n\ntwo\n", "b.csv": CSV, "bad.csv": "name,city\nAda\n", "bad.txt": "\udcff", "none.txt": "\n"}
PLACE = "/mnt/user-data/workspace"


@pytest.mark.parametrize(
    ("source", "prompts"),
    [
        ({"prompts": ["a", "b"]}, ["a", "b"]),
        ({"template": "Say {item}!", "input": "a.txt", "over": "lines"}, ["Say one!", "Say two!"]),
        (
            {"template": '{"of": {name}} in {city}', "input": "b.csv", "over": "rows"},
            ['{"of": Ada} in London', '{"of": Kurt} in Wien'],
        ),
        (
            {"template": "Read {item}", "input": "b*.csv", "over": "files"},
            [f"Read {PLACE}/b.csv", f"Read {PLACE}/bad.csv"],
        ),
        ({}, "prompts: is missing"),
        ({"prompts": []}, "prompts: is empty"),
        ({"prompts": ["a", " "]}, r"prompts\[1\]: is empty"),
        ({"prompts": ["a"], "template": "{item}"}, "goes without template"),
        ({"prompts": ["a"] * 6}, "more than 5 items"),
        ({"prompts": ["a" * (9 << 20)]}, "bytes in all"),
        (
            {"template": "Say {line}", "input": "a.txt", "over": "lines"},
            "unknown placeholder {line}; there are: {item}",
        ),
        ({"template": "Say", "input": "a.txt", "over": "lines"}, "has no placeholder"),
        ({"template": "{town}", "input": "b.csv", "over": "rows"}, "there are: {city}, {name}"),
        ({"template": "{city}", "input": "bad.csv", "over": "rows"}, "line 2: has not as many fields"),
        ({"template": "{item}", "input": "none.txt", "over": "lines"}, "none.txt: is empty"),
        ({"template": "{item}", "input": "bad.txt", "over": "lines"}, "is not UTF-8 text"),
        ({"template": "{item}", "input": "gone.txt", "over": "lines"}, "gone.txt: not found"),
        ({"template": "{item}", "input": "gone/*", "over": "files"}, "not found"),
        ({"template": "{item}", "input": "../../../../etc/passwd", "over": "lines"}, "passwd"),
    ],
)
async def test_prompts(tmp_path: Path, source: dict[str, Any], prompts: list[str] | str) -> None:
    folder = Folder(tmp_path, "ada", "t1")
    folder.make()
    for name, text in FILES.items():
        (folder.root / "user-data" / "workspace" / name).write_bytes(text.encode(errors="surrogateescape"))
    if "input" in source:
        source = {**source, "input": f"{PLACE}/{source['input']}"}
    rendering = rendered(Source(**source), LocalBatchFiles(tmp_path), "ada", "t1", 5)
    if isinstance(prompts, list):
        assert await rendering == prompts
    else:
        with pytest.raises(Invalid, match=prompts):
            await rendering


async def test_the_table_is_whole_although_somebody_removes_it(tmp_path: Path) -> None:
    turns = [Turn(text="Did 0."), Turn(text="Did 1.", gate="held")]
    async with site(
        tmp_path, scripts(["Do step-0.", "Do step-1."], turns), subagents={**OWN, "batch": {"pool": 1}}
    ) as (client, models):
        thread = await client.thread()
        run = await client.ask(thread, "Go on.", context=ON)
        await models.reached("held")
        [path] = (thread_root(tmp_path, "ada", "t1") / "user-data" / "outputs").iterdir()
        assert [row["result"] for row in table(tmp_path)] == ["Did 0."]
        path.unlink()
        models.release("held")
        assert (await client.ended(thread, run)).status == "success"
        await client.idle()
    assert [row["result"] for row in table(tmp_path)] == ["Did 0.", "Did 1."]


async def test_a_batch_that_takes_too_long(tmp_path: Path) -> None:
    turns = [Turn(text="Never.", gate="held")] * 2
    batch = {"pool": 1, "timeout_seconds": 1}
    async with site(tmp_path, scripts(["Do step-0.", "Do step-1."], turns), subagents={**OWN, "batch": batch}) as (
        client,
        _,
    ):
        messages = await client.said(await client.thread(), "Go on.", context=ON)
        [completed] = await events(client, SubagentCompleted)
        await client.idle()
    [result] = [m["content"] for m in messages if m["type"] == "tool"]
    assert completed.status == "timed_out"
    assert result.startswith("Task timed out. Error: the run had not ended after 1 s\n")
    assert "/mnt/user-data/outputs/" in result
    assert {row["status"] for row in table(tmp_path)} <= {"cancelled"}


async def test_a_batch_counts_as_one_subagent(tmp_path: Path) -> None:
    both = scripts(["Do step-0.", "Do step-1."], [Turn(text="Did 0."), Turn(text="Did 1.")])
    lead = list(both["lead"])  # type: ignore[arg-type]
    async with site(tmp_path, {**both, "lead": [lead[0], *lead]}, subagents={**OWN, "max_total_per_run": 1}) as (
        client,
        models,
    ):
        messages = await client.said(await client.thread(), "Go on.", context=ON)
        await client.idle()
    first, second = [m["content"] for m in messages if m["type"] == "tool"]
    assert "2/2 done" in first
    assert "this run has had its 1 subagents" in second
    assert models.counts["sub"] == 2

"""Runs with subagents are executed again, and so are those of the subagents."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from actors.wiring import compose
from core.events import SubagentStarted
from tests.actors.subagents.test_task import ON, OWN, events, ls, task
from tests.support.model_server import Script, Turn
from tests.support.replays import replay
from tests.support.workers import site


async def test_identical(tmp_path: Path) -> None:
    """Three calls of which two fit, then one more than the run may have; the subagent is counted in the budget."""
    lead = (
        Turn(tool_calls=(task("One."), task("Two."), task("Three."))),
        Turn(text="More.", tool_calls=(task("Four."), ls())),
        Turn(text="Done."),
    )
    sub = [Turn(tool_calls=(ls(),)), Turn(text="One.")]
    settings: dict[str, Any] = {"subagents": {**OWN, "max_total_per_run": 2}, "budgets": {"run": {"tokens": 10_000}}}
    context = {**ON, "max_concurrent_subagents": 2}
    async with site(tmp_path, {"lead": Script(lead, count="total"), "sub": sub}, **settings) as (client, _):
        await client.said(await client.thread(), "Go on.", context=context)
        options = compose.Options(tmp_path, config=tmp_path / "config.yaml")
        report = await replay(client.system, "t1", None, options)
        assert len(await events(client, SubagentStarted)) == 2
        config = tmp_path / "config.yaml"
        config.write_text(config.read_text().replace('"max_total_per_run": 2', '"max_total_per_run": 1'))
        other = await replay(client.system, "t1", None, options)
        await client.system.views.current()
        rows = await client.system.views.query("SELECT caller, sum(input_tokens) FROM usage GROUP BY caller")
    assert report.divergence is None
    assert report.runs == 3, "of the lead, and of two subagents"
    assert other.divergence is not None
    assert dict(rows).keys() == {"lead", "subagents"}

"""Tests of actors: a real log on a nats-server of the test's own, given events, and what the actor appends.

async def test_praise(tmp_path: Path) -> None:
    async with acting(Praise(), home=tmp_path) as stage:
        await stage.given(FeedbackGiven(feedback_id="f", rating=1, user="ada"), run="r1")
        assert await stage.appended() == [ThreadAnnotated(metadata={"likes": 1})]

And tests of tools, in memory:

async def test_count() -> None:
    stage = ToolStage({"uploads/a.txt": b"one\\ntwo"})
    assert await stage.use(count_lines, path="uploads/a.txt") == "2 lines"
"""

from __future__ import annotations

from core.testing.stage import Stage, acting
from core.testing.tools import ToolStage

__all__ = ["Stage", "ToolStage", "acting"]

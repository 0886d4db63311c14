"""What one event and one run of the recorded thread show."""

from __future__ import annotations

import pytest

from channels.terminal.log import views as logs
from core.events import RunStarted, thread
from core.replay.recorded import read_of
from tests.core.replay.recorded import Story
from tests.support.replays import sent

pytestmark = pytest.mark.anyio
STORY = thread("story")


async def test_one_event_in_full() -> None:
    records = await Story().read(STORY)
    place = next(number for number, record in enumerate(records, 1) if record.type == "approval.requested")
    lines: list[str] = []
    await logs.event(Story(), "story", str(place), lines.append)
    text = "\n".join(lines)
    assert "rm x.txt" in text
    assert "causes (log why has all)" in text


async def test_prompts_tools_and_parameters_of_a_run_are_there() -> None:
    story = Story()
    starts = [record.event for record in await story.read(STORY) if isinstance(record.event, RunStarted)]
    parts = [await sent(read_of(story), start) for start in starts]
    assert all({"prompt", "tools", "model"} == set(part) for part in parts)
    assert "bash" in parts[0]["tools"]
    assert starts[0].release

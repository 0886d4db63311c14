"""A replay decides nothing by the clock: what depends on time comes from recorded facts."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, NoReturn

import pytest

from actors.debugging import rehearsal
from actors.wiring import compose
from core import ids
from tests.actors.debugging.test_rehearsal import Recording
from tests.core.replay.recorded import Story, configured
from tests.golden import stories

pytestmark = pytest.mark.anyio
DECIDING = ("actors.agent", "actors.lead", "actors.subagents", "core.thread", "core.replay", "core.tools")
"""Packages whose code a replay executes."""


class Stopped:
    """A clock that must not be read; times that were recorded are read by it as ever."""

    def __init__(self, real: Any) -> None:
        self._real = real

    def __getattr__(self, name: str) -> Any:
        return _refused if name in ("now", "utcnow", "today", "time", "time_ns") else getattr(self._real, name)

    def __call__(self, *arguments: Any) -> Any:
        return self._real(*arguments)


def _refused(*_: Any) -> NoReturn:
    raise AssertionError("a replay has read the clock")


def stop_clocks(monkeypatch: pytest.MonkeyPatch) -> int:
    """Replaces the clocks of all modules that decide; returns how many there were."""
    clocks = [
        (module, name, value)
        for place, module in list(sys.modules.items())
        if place.startswith(DECIDING)
        for name, value in vars(module).items()
        if name in ("datetime", "date") or value is ids.now
    ]
    for module, name, value in clocks:
        monkeypatch.setattr(module, name, _refused if value is ids.now else Stopped(value))
    return len(clocks)


@pytest.mark.parametrize("name", ["story", *sorted(stories.STORIES)])
async def test_no_clock_is_read(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "config.yaml"
    records = Story().records if name == "story" else stories.load(name)
    options = compose.Options(tmp_path, configured(path) if name == "story" else stories.configured(name, path))
    rehearsed = rehearsal.Rehearsal(Recording(records), options)
    assert stop_clocks(monkeypatch) >= 5
    report = await rehearsed.replay(records[0].aggregate.id)
    assert report.divergence is None
    assert report.steps > 0

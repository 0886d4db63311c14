"""What is missing for work, on a real bus and real views."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from core.config.load import ConfigSource
from core.events import ThreadAnnotated
from core.runtime import readiness, system
from core.runtime.readiness import Readiness
from core.runtime.system import System
from tests.support.nats import Nats, append, eventually, fresh, own


@pytest.fixture
async def nats(tmp_path: Path) -> AsyncIterator[Nats]:
    async with own(tmp_path / "nats") as nats:
        yield nats


@pytest.fixture
async def running(nats: Nats, tmp_path: Path) -> AsyncIterator[System]:
    async with system.start(nats.endpoint(), tmp_path / "views.db", lease_seconds=5, slots=4) as running:
        await eventually(lambda: running.views.search(user="nobody"))
        yield running


async def test_each_part_says_what_is_missing(
    nats: Nats, running: System, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readiness, "KEPT_SECONDS", 0.0)
    monkeypatch.setattr(readiness, "BEHIND_SECONDS", 0.0)
    file = tmp_path / "config.yaml"
    file.write_text("log_level: info")
    ready = Readiness(running, ConfigSource(file))

    async def reasons(*parts: str) -> dict[str, str]:
        async def those() -> bool:
            return {missing.part for missing in await ready.missing()} == set(parts)

        await eventually(those)
        return {missing.part: missing.reason for missing in await ready.missing()}

    assert await reasons("workers") == {"workers": "the actors are not at work yet"}
    ready.working = True
    await reasons()
    file.write_text("runs: {lease_seconds: sometimes}")
    assert "runs.lease_seconds" in (await reasons("configuration"))["configuration"]
    file.write_text("log_level: info")
    await reasons()
    await running.views.close()
    assert await reasons("views") == {"views": "the search index is being built"}
    await running.views.rebuild()
    await reasons()
    await nats.kill()
    assert "connection to NATS" in (await reasons("log"))["log"]
    await nats.restart()
    await reasons()


async def test_views_that_stay_behind(running: System, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness, "KEPT_SECONDS", 0.0)
    monkeypatch.setattr(readiness, "BEHIND_SECONDS", 0.0)
    ready = Readiness(running, ConfigSource())
    ready.working = True
    assert await ready.missing() == []
    running.views.seq -= 7
    await ready.missing()
    assert [part.reason for part in await ready.missing()] == ["the search index is 7 events behind"]
    await append(running.log, fresh(), ThreadAnnotated(metadata={}))
    await running.views.reached(await running.log.last())
    assert await ready.missing() == []


async def test_many_who_ask_cost_one_look(running: System) -> None:
    ready = Readiness(running, ConfigSource())
    before = running.bus._requests
    answers = await asyncio.gather(*(ready.missing() for _ in range(50)))
    assert {len(answer) for answer in answers} == {1}
    assert running.bus._requests - before <= 3  # beside the system's own

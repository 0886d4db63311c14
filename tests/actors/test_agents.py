"""The agents actor: who may make and change which agent, each change one fact."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from actors.agent.run.options import Options
from actors.agent.setup.custom_agent import find
from actors.agents import Agents
from core.config.load import ConfigSource
from core.errors import Invalid, NotFound, Refused
from core.events import Aggregate, Json, RunRequested, StatePatched
from core.runtime import system as core
from core.runtime.system import System
from core.user.agents import Definition, aggregates
from tests.support.nats import Nats

pytestmark = pytest.mark.anyio

SETUP = {"op": "setup", "soul": "Be kind.", "description": "Kind."}


@pytest.fixture
async def system(nats: Nats, tmp_path: Path) -> AsyncIterator[System]:
    endpoint = nats.endpoint(f"t{uuid.uuid4().hex[:10]}")
    async with core.start(endpoint, tmp_path / "views.db", lease_seconds=2, slots=4) as system:
        yield system


@pytest.fixture
def agents(system: System, tmp_path: Path) -> Agents:
    (tmp_path / "config.yaml").write_text("models: [{name: fast, model: fast-1}]")
    return Agents(ConfigSource(tmp_path / "config.yaml"), system.log, system.threads)


async def silent(_: str) -> None: ...


async def asking(system: System, context: Json, user: str = "ada") -> Json:
    """Where a run with these options asks from."""
    thread = f"t{uuid.uuid4().hex}"
    await system.intake.create_thread(thread, user=user)
    await system.threads.decide(thread, lambda _: [RunRequested(context=context)], actor="test", run="r")
    return {"thread": thread, "user": user, "run": "r"}


async def defined(system: System, user: str = "ada") -> dict[str, Definition]:
    return dict((await aggregates(system.log).load(user)).agents)


async def facts(system: System) -> int:
    return len([record async for record in system.log.read(Aggregate("agents", "ada"))])


async def test_an_agent_is_made_and_changes_itself(system: System, agents: Agents) -> None:
    new = await asking(system, {"is_bootstrap": True, "agent_name": "Nurse"})
    assert await agents.answer(new | SETUP | {"skills": ["otters"]}, silent) == "nurse"
    agent = Definition("nurse", "Kind.", skills=["otters"], soul="Be kind.")
    assert await defined(system) == {"nurse": agent}
    assert await defined(system, "bob") == {}

    own = await asking(system, {"agent_name": "nurse"})
    change = {"op": "update", "description": "Kind.", "model": "fast", "tool_groups": ["web"], "skills": []}
    assert await agents.answer(own | change, silent) == ["skills", "tool_groups", "model"]
    changed = Definition("nurse", "Kind.", "fast", ["web"], [], "Be kind.")
    assert await defined(system) == {"nurse": changed}
    assert find(await aggregates(system.log).load("ada"), Options(agent="NURSE")) == changed
    assert await agents.answer(own | change, silent) == []
    assert await facts(system) == 2


@pytest.mark.parametrize("wanted", [Options(), Options(agent="nurse", bootstrap=True)])
async def test_runs_without_a_custom_agent(system: System, wanted: Options) -> None:
    assert find(await aggregates(system.log).load("ada"), wanted) is None


async def test_asked_again_after_a_crash_it_is_made_once(system: System, agents: Agents) -> None:
    new = await asking(system, {"is_bootstrap": True, "agent_name": "nurse"})
    for _ in range(2):
        assert await agents.answer(new | SETUP, silent) == "nurse"
    assert await facts(system) == 1


async def test_an_agent_of_that_name_stays_unless_it_was_made_here(system: System, agents: Agents) -> None:
    context = {"is_bootstrap": True, "agent_name": "nurse"}
    await agents.answer(await asking(system, context) | SETUP, silent)
    other = await asking(system, context)
    with pytest.raises(Refused, match="nurse already exists"):
        await agents.answer(other | SETUP | {"soul": "Be rude."}, silent)
    patch = StatePatched(values={"created_agent_name": "nurse"})
    await system.threads.decide(other["thread"], lambda _: [patch], actor="test")
    assert await agents.answer(other | SETUP | {"soul": "Be brief."}, silent) == "nurse"
    assert (await defined(system))["nurse"].soul == "Be brief."


@pytest.mark.parametrize(
    ("context", "request_", "error", "words"),
    [
        ({"agent_name": "a"}, SETUP, Invalid, "only in a conversation"),
        ({"is_bootstrap": True}, SETUP, Invalid, "name: "),
        ({"is_bootstrap": True, "agent_name": "../a"}, SETUP, Invalid, "name: "),
        ({"is_bootstrap": True, "agent_name": "a"}, SETUP | {"soul": " \n"}, Invalid, "soul"),
        ({"is_bootstrap": True, "agent_name": "a"}, SETUP | {"soul": "x" * 100_001}, Invalid, "soul"),
        ({"is_bootstrap": True, "agent_name": "a"}, SETUP | {"skills": "all"}, Invalid, "skills"),
        ({"is_bootstrap": True, "agent_name": "a"}, {"op": "update", "soul": "x"}, Invalid, "Only an agent"),
        ({}, {"op": "update", "soul": "x"}, Invalid, "Only an agent"),
        ({"agent_name": "a"}, {"op": "update"}, Invalid, "at least one"),
        ({"agent_name": "a"}, {"op": "update", "soul": None}, Invalid, "at least one"),
        ({"agent_name": "a"}, {"op": "update", "model": "gone"}, Invalid, "'gone' is not configured; there are: fast"),
        ({"agent_name": "a"}, {"op": "update", "soul": "x"}, NotFound, "Agent a not found"),
        ({"agent_name": "a"}, {"op": "fly"}, Invalid, "fly"),
    ],
    ids=range(13),
)
async def test_what_is_refused(
    system: System, agents: Agents, context: Json, request_: Json, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        await agents.answer(await asking(system, context) | request_, silent)
    assert await facts(system) == 0


@pytest.mark.parametrize("wrong", [{"user": "bob"}, {"run": "other"}, {"thread": "other"}])
async def test_only_for_the_run_that_asks(system: System, agents: Agents, wrong: dict[str, Any]) -> None:
    new = await asking(system, {"is_bootstrap": True, "agent_name": "nurse"})
    with pytest.raises(Invalid, match="not found"):
        await agents.answer(new | SETUP | wrong, silent)
    assert await defined(system) == await defined(system, "bob") == {}

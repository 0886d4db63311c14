"""Two users with two agents each: whatever is told to an agent comes from its own memory of its own user."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from pathlib import Path

import pytest

from actors.wiring import compose
from core.events import ToolCompleted
from core.memory.facts import Fact, FactRemembered, SummaryWritten
from core.user.agents import Definition, Rosters
from tests.actors.memory.test_actor import actor
from tests.actors.memory.test_injection import remember
from tests.support.model_server import ModelServer, Script, ToolCall, Turn
from tests.support.replays import replay
from tests.support.workers import Client, site

pytestmark = pytest.mark.anyio

USERS, AGENTS = ("ada", "bob"), (None, "nurse")
OWNERS = list(product(USERS, AGENTS))
SCRIPTS: dict[str, Script | Sequence[Turn]] = {
    "m": Script(
        (Turn(tool_calls=(ToolCall("recall", {"query": "Which otters, bees and secrets?"}),)), Turn(text="Noted.")),
    ),
    "plain": [Turn(text="Noted.")],
}


def secrets_of(user: str, agent: str | None) -> set[str]:
    return {f"{kind}-{user}-{agent}" for kind in ("fact", "summary")}


async def memories(client: Client) -> None:
    """Facts and summaries of all, under the same ids."""
    for user, agent in OWNERS:
        if agent:
            await Rosters(client.system.log, actor="test").create(user, Definition(agent))
        fact = Fact(id="fact_1", content=f"Otters, bees and secrets: fact-{user}-{agent}")
        summary = SummaryWritten(section="workContext", text=f"Works on summary-{user}-{agent}")
        await remember(client, FactRemembered(fact=fact), summary, agent=agent, user=user)


def told(models: ModelServer) -> set[str]:
    """All secrets in the requests since the last call."""
    text = "".join(str(record.body) for record in models.requests)
    models.requests.clear()
    return {secret for owner in OWNERS for secret in secrets_of(*owner) if secret in text}


async def run(client: Client, thread: str, agent: str | None, model: str = "plain") -> None:
    context = {"agent_name": agent} if agent else {}
    await client.said(thread, "What about my otters?", model, context=context)


async def test_injections_and_searches_are_the_owners(tmp_path: Path) -> None:
    async with site(tmp_path, SCRIPTS, others=[actor], memory={"enabled": False, "tools": True}) as (client, models):
        await memories(client)
        for user, agent in OWNERS:
            thread = await client.thread(f"{user}-{agent}", user=user)
            await run(client, thread, agent, "m")
            assert told(models) == secrets_of(user, agent)
            results = await client.records(thread, ToolCompleted)
            found = {s for owner in OWNERS for s in secrets_of(*owner) if s in str(results[0].event)}
            assert found == {f"fact-{user}-{agent}"}


async def test_agents_that_share_a_conversation_share_no_memory(tmp_path: Path) -> None:
    """The facts of both have the same ids; a replay tells each its own, too."""
    async with site(tmp_path, SCRIPTS, memory={"enabled": False}) as (client, models):
        await memories(client)
        thread = await client.thread()
        for agent in (None, "nurse", None, "nurse"):
            await run(client, thread, agent)
            assert told(models) == secrets_of("ada", agent)
        report = await replay(client.system, thread, None, compose.Options(tmp_path, tmp_path / "config.yaml"))
    assert (report.divergence, report.runs) == (None, 4)


async def test_the_agent_of_another_user_is_nobodys_door(tmp_path: Path) -> None:
    async with site(tmp_path, SCRIPTS, memory={"enabled": False}) as (client, models):
        await memories(client)
        await Rosters(client.system.log, actor="test").create("bob", Definition("pilot"))
        await remember(
            client, FactRemembered(fact=Fact(id="fact_1", content="fact-bob-nurse")), agent="pilot", user="bob"
        )
        thread = await client.thread()
        ended = await client.ended(thread, await client.ask(thread, "Otters?", "m", context={"agent_name": "pilot"}))
    assert ended.status == "error"
    assert models.requests == []

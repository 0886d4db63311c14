"""Which agent does a run, and with which tools."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from actors.agent.loop import agent, chain
from actors.agent.loop.rounds import Rounds
from actors.agent.run.options import Options
from actors.agent.setup.custom_agent import allowed, default_soul
from core.tools import Tool
from core.user.agents import Definition
from tests.actors.agent.fakes import Fake


async def nothing(context: Any) -> str:
    return ""


GROUPS = {
    "read_file": "file:read",
    "web_search": "web",
    "present_files": None,
    "setup_agent": None,
    "update_agent": None,
}
TOOLS = [Tool(name, "d", nothing, group=group) for name, group in GROUPS.items()]


@pytest.mark.parametrize(
    ("wanted", "agent", "names"),
    [
        (Options(), None, ["read_file", "web_search", "present_files"]),
        (Options(agent="a"), Definition("a"), ["read_file", "web_search", "present_files", "update_agent"]),
        (Options(agent="a"), Definition("a", tool_groups=["web"]), ["web_search", "present_files", "update_agent"]),
        (Options(agent="a"), Definition("a", tool_groups=[]), ["present_files", "update_agent"]),
        (Options(agent="a", bootstrap=True), None, ["read_file", "setup_agent"]),
    ],
    ids=["default", "custom", "groups", "no-groups", "bootstrap"],
)
def test_tools_of_a_run(wanted: Options, agent: Definition | None, names: Sequence[str]) -> None:
    assert [tool.name for tool in allowed(TOOLS, wanted, agent)] == names


def test_the_soul_of_the_agent_without_a_name(tmp_path: Path) -> None:
    assert default_soul(tmp_path) == ""
    (tmp_path / "SOUL.md").write_bytes(b"Be \xff kind.")
    assert default_soul(tmp_path) == "Be \ufffd kind."


def test_agents_are_made_once_and_forgotten_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent, "KEPT", 2)
    agents, made = agent.Agents(), list[agent.Agent]()

    def get(key: str) -> agent.Agent:
        def make() -> agent.Agent:
            made.append(agent.Agent(Fake(), [], "", [chain.Chain([])]))
            return made[-1]

        return agents.get(key, make)

    first = get("a")
    assert get("a") is first
    get("b")
    assert get("a") is first
    get("c")  # in the place of b
    assert get("a") is first
    assert len(made) == 3


async def test_a_graph_is_compiled_once_beside_the_loop_and_only_for_hooks(monkeypatch: pytest.MonkeyPatch) -> None:
    compiling, walked = list[str](), list[object]()

    def compiled(*_: Any) -> object:
        compiling.append(threading.current_thread().name)
        return object()

    async def walk(graph: object, *_: Any) -> None:
        walked.append(graph)

    async def run(self: Rounds, attempt: Any) -> None:
        walked.append(self)

    monkeypatch.setattr(agent, "compiled", compiled)
    monkeypatch.setattr(agent, "walk", walk)
    monkeypatch.setattr(Rounds, "run", run)
    whole = chain.Chain([])
    plain, hooked = (agent.Agent(Fake(), [], "", parts) for parts in ([whole], [whole, whole]))
    attempt: Any = None
    await plain.run(attempt, {})
    assert isinstance(walked.pop(), Rounds)
    assert compiling == []
    await asyncio.gather(hooked.run(attempt, {}), hooked.run(attempt, {}))
    assert walked[0] is walked[1]
    assert not isinstance(walked[0], Rounds)
    await plain.run(attempt, {"callbacks": []})
    assert not isinstance(walked[-1], Rounds)
    assert len(compiling) == 2
    assert threading.main_thread().name not in compiling

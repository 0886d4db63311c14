"""Which agent does a run, and with which tools."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from actors.lead.loop import graph as agent
from actors.lead.setup.custom_agent import allowed, default_soul
from actors.lead.setup.options import Options
from core.tools import Tool
from core.user.agents import Definition
from tests.actors.lead.fakes import Fake


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


async def test_agents_are_compiled_beside_the_loop_and_forgotten_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[str] = []

    def compiled(*_: Any, **__: Any) -> object:
        threads.append(threading.current_thread().name)
        return object()

    monkeypatch.setattr(agent, "create_agent", compiled)
    monkeypatch.setattr(agent, "KEPT", 2)
    agents, model = agent.CompiledAgents(), Fake()

    async def get(key: str) -> object:
        return await agents.get(key, model, [], "", list)

    first, again = await asyncio.gather(get("a"), get("a"))
    assert first is again
    await get("b")
    assert await get("a") is first
    await get("c")  # in the place of b
    assert await get("a") is first
    assert len(threads) == 3
    assert threading.main_thread().name not in threads

"""Each skill is loaded when it should be, and not when it should not.

The model here is a matcher of words. It sees what a model would see: the names and descriptions in the system prompt
that the server really sends. So each skill is offered, described in the words of people, and apart from others.
"""

from __future__ import annotations

import html
import importlib.util
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from core.bus import embedded
from core.bus.endpoint import Endpoint
from tests.skills.conftest import NAMES, PUBLIC
from tests.support.model_server import ModelServer, ToolCall, Turn
from tests.support.workers import Client, configure, worker

pytestmark = pytest.mark.anyio
_SKILL = re.compile(r"<skill><name>(.*?)</name><description>(.*?)</description><location>(.*?)</location></skill>")
CASES = [(name, case) for name in NAMES for case in yaml.safe_load((PUBLIC / name / "examples/cases.yaml").read_text())]


def _triggers() -> Any:
    path = PUBLIC / "skill-creator/scripts/triggers.py"
    spec = importlib.util.spec_from_file_location("triggers", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


triggers = _triggers()
WEB = [{"name": name, "use": f"adapters.tools.{name}:{name}"} for name in ("web_search", "web_fetch")]
"""Tools without which some of the skills are not offered."""


def matcher(messages: Sequence[dict[str, Any]]) -> Turn:
    """Reads the SKILL.md of the skill that fits the request, if any; then answers."""
    if messages[-1]["role"] == "tool":
        return Turn(text="Done.")
    skills = {name: (text, location) for name, text, location in _SKILL.findall(str(messages[0]["content"]))}
    descriptions = {name: html.unescape(text) for name, (text, _) in skills.items()}
    request = next(str(message["content"]) for message in reversed(messages) if message["role"] == "user")
    name = triggers.chosen(request, descriptions)
    if name is None:
        return Turn(text="Done.")
    return Turn(tool_calls=(ToolCall("read_file", {"description": "look", "path": skills[name][1]}),))


async def loaded(home: Path, prompts: Sequence[str], descriptions: Mapping[str, str]) -> list[str | None]:
    """Returns the skill that each prompt loads, on a server with the shipped skills and these descriptions."""
    shutil.copytree(PUBLIC, home / "skills/public")
    for name, description in descriptions.items():
        path = home / "skills/public" / name / "SKILL.md"
        path.write_text(re.sub(r"(?m)^description: .*", f"description: {description}", path.read_text(), count=1))
    skills: list[str | None] = []
    async with ModelServer({"m": matcher}) as models, embedded.start(home) as server:
        config = configure(home / "config.yaml", models, tools=WEB)
        async with worker(Endpoint(server.url, token=server.token), home, config, skills=True) as running:
            client = Client(running)
            for number, prompt in enumerate(prompts):
                messages = await client.said(await client.thread(f"t{number}"), prompt, "m")
                texts = [str(message["content"]) for message in messages if message["type"] == "tool"]
                names = [name for name in NAMES if any(f"name: {name}\n" in text for text in texts)]
                skills.append(names[0] if names else None)
    return skills


async def test_each_skill_is_loaded_when_it_should_be_and_not_when_it_should_not(tmp_path: Path) -> None:
    skills = await loaded(tmp_path, [case["prompt"] for _, case in CASES], {})
    wrong = [
        (name, case, skill)
        for (name, case), skill in zip(CASES, skills, strict=True)
        if (skill == name) != case["loads"]
    ]
    assert wrong == []
    counts = {name: [case["loads"] for owner, case in CASES if owner == name] for name in NAMES}
    assert all(loads.count(True) >= 3 and loads.count(False) >= 3 for loads in counts.values())


@pytest.mark.parametrize("description", ["Helps with things.", "Use when the user wants to sail a boat."])
async def test_a_vague_or_wrong_description_fails(tmp_path: Path, description: str) -> None:
    prompts = [case["prompt"] for name, case in CASES if name == "documents" and case["loads"]]
    assert "documents" not in await loaded(tmp_path, prompts, {"documents": description})

"""The tools by which agents are made and change themselves: what they ask, and what the model is told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from adapters.tools.setup_agent import setup_agent
from adapters.tools.update_agent import update_agent
from core.tools import Result

pytestmark = pytest.mark.anyio


class Context:
    thread, user, run, call_id = "t", "u", "r", "c"

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.asked: list[tuple[str, Mapping[str, Any]]] = []

    async def call(self, actor: str, request: Mapping[str, Any]) -> Any:
        self.asked.append((actor, request))
        return self.answer


ABOUT = {"thread": "t", "user": "u", "run": "r"}


async def test_setup_says_which_agent_was_made() -> None:
    context = Context("nurse")
    found = await setup_agent.function(context, soul="Be kind.", description="Kind.")
    assert found == Result("The agent nurse is made.", {"created_agent_name": "nurse"})
    about = {"soul": "Be kind.", "description": "Kind.", "skills": None}
    assert context.asked == [("agents", {"op": "setup", **ABOUT, **about})]


@pytest.mark.parametrize(
    ("given", "answer", "words"),
    [
        ({"soul": "x", "skills": []}, ["soul", "skills"], "Changed: soul, skills. "),
        ({"model": "fast"}, [], "Nothing has changed"),
        ({}, [], "Nothing has changed"),
    ],
)
async def test_update_says_what_changed(given: dict[str, Any], answer: list[str], words: str) -> None:
    context = Context(answer)
    assert (await update_agent.function(context, **given)).startswith(words)
    assert context.asked == [("agents", {"op": "update", **ABOUT, **given})]

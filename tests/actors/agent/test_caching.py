"""The prompt cache: requests that begin as the one before, and marks for providers that cache only what is marked."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage

from actors.agent.model.caching import MARK, takes_marks, with_cache_marks
from adapters.models import factory
from core.tools import ToolContext, tool
from tests.actors.agent.fakes import Instant
from tests.support.model_server import Record, ToolCall, Turn
from tests.support.workers import site

pytestmark = pytest.mark.anyio

STEPS = 50
CALL: Any = {"name": "f", "args": {}, "id": "c1"}
TALK: list[BaseMessage] = [
    SystemMessage("prompt"),
    HumanMessage("question"),
    AIMessage("", tool_calls=[CALL]),
    ToolMessage("result", tool_call_id="c1"),
]


class ChatAnthropic(Instant):
    """Stands in for the class of the package, which is not installed here."""


ChatAnthropic.__module__ = "langchain_anthropic.chat_models"


def router(model: str, url: str = "https://openrouter.ai/api/v1") -> Any:
    return factory.build({"name": "m", "model": model, "base_url": url, "api_key": "k"})


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (ChatAnthropic(), True),
        (Instant(), False),
        (router("anthropic/claude-opus-4.6"), True),
        (router("openai/gpt-5.4"), False),
        (router("anthropic/claude-opus-4.6", "https://openrouter.ai.example/v1"), False),
        (router("gpt-5.4", "http://localhost/v1"), False),
    ],
    ids=range(6),
)
def test_who_takes_marks(model: Any, expected: bool) -> None:
    assert takes_marks(model) is expected
    assert (with_cache_marks(TALK, model) is TALK) is not expected


def places(messages: Sequence[BaseMessage]) -> list[int]:
    return [place for place, message in enumerate(messages) if "cache_control" in str(message.content)]


def test_where_the_marks_are() -> None:
    model = ChatAnthropic()
    assert places(with_cache_marks(TALK, model)) == [0, 1, 3]
    assert places(with_cache_marks(TALK[:2], model)) == [0, 1]
    more = [*TALK, AIMessage("", tool_calls=[CALL, CALL]), ToolMessage("a", tool_call_id="c1"), TALK[3]]
    assert places(with_cache_marks(more, model)) == [0, 3, 6], "the end of the request before, and the end"
    empty = [*TALK[:3], ToolMessage("", tool_call_id="c1")]
    assert places(with_cache_marks(empty, model)) == [0, 1], "no provider takes a mark on an empty text"
    blocks = HumanMessage([{"type": "text", "text": "a"}, {"type": "image", "url": "x"}])
    content: Any = with_cache_marks([blocks], model)[0].content
    [block, image] = content
    assert block == {"type": "text", "text": "a", **MARK}
    assert image == {"type": "image", "url": "x"}
    assert "cache_control" not in str([*TALK, blocks]), "the conversation does not change"


def test_marks_reach_the_router() -> None:
    model = router("anthropic/claude-opus-4.6")
    sent = model._get_request_payload(list(with_cache_marks(TALK, model)))["messages"]
    assert [message["content"] for message in sent] == [
        [{"type": "text", "text": "prompt", **MARK}],
        [{"type": "text", "text": "question", **MARK}],
        sent[2]["content"],
        [{"type": "text", "text": "result", **MARK}],
    ]


# ── a session ───────────────────────────────────────────────────────────────────────────────────────────────────────


@tool(effect="pure")
async def look(ctx: ToolContext, place: int) -> str:
    """Look at a place."""
    return f"Place {place}: " + "nothing of interest " * 40


def wire(record: Record) -> str:
    """The request in the order in which providers cache: tools, system prompt, messages."""
    return json.dumps([record.body.get("tools"), record.body["messages"]])


def common(before: str, after: str) -> int:
    """Returns the length of the common beginning."""
    for place, (one, other) in enumerate(zip(before, after, strict=False)):
        if one != other:
            return place
    return min(len(before), len(after))


@pytest.mark.parametrize("context", [{}, {"is_plan_mode": True, "subagent_enabled": True}], ids=["plain", "plan"])
async def test_a_request_begins_as_the_one_before(tmp_path: Path, context: dict[str, Any]) -> None:
    script = [*(Turn(tool_calls=(ToolCall("look", {"place": n}),)) for n in range(STEPS)), Turn(text="Seen.")]
    limits = {"recursion_limit": 300, "max_recursion_limit": 300}
    frequent = {"tool_freq_warn": 300, "tool_freq_hard_limit": 300}
    sections: dict[str, Any] = {"runs": limits, "loop_detection": frequent}
    async with site(tmp_path, {"m": script}, tools=[look], **sections) as (client, models):
        await client.said(await client.thread(), "Look at fifty places", "m", context={"model_name": "m", **context})
    requests = list(map(wire, models.requests))
    assert len(requests) == STEPS + 1
    pairs = list(pairwise(requests))
    shares = [common(before, after) / len(before) for before, after in pairs]
    cached = sum(common(before, after) for before, after in pairs) / sum(len(after) for _, after in pairs)
    print(f"\n{STEPS} steps: {cached:.1%} of all input is in the cache, of each request at least {min(shares):.1%}")
    assert cached >= 0.95
    assert min(shares) >= 0.95

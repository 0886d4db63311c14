"""Old results of tools as one line each: which, when, and that it changes in steps only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage

from actors.agent.policies.context.thinning import LEAST_STEPS, STEP, Thinning, end_of_old
from core.config.windows import Window
from core.events import Json, Message
from core.thread.usage import estimate
from tests.actors.agent.turns import Asked, model_call, turn
from tests.support.records import ai, call, human

pytestmark = pytest.mark.anyio

WINDOW = 10_000
MODELS: Json = {"models": [{"name": "m", "model": "m", "context_window": WINDOW}]}


def step(n: int, text: str = "x" * 4000, name: str = "bash", **args: Any) -> list[Message]:
    args = args or {"command": f"make {n}"}
    result: Message = {"type": "tool", "id": f"t{n}", "tool_call_id": f"c{n}", "name": name, "content": text}
    return [ai(f"a{n}", "", [call(f"c{n}", name, **args)]), result]


def session(steps: int, first: int = 0) -> list[Message]:
    return [human("h", "Go"), *(message for n in range(first, steps) for message in step(n))]


async def sent(messages: Sequence[Message]) -> list[BaseMessage]:
    handler = Asked()
    await model_call(Thinning(), turn(messages, config=MODELS), handler)
    return handler.messages


def thinned(messages: Sequence[BaseMessage]) -> list[str]:
    return [str(message.id) for message in messages if "is left out" in str(message.content)]


async def test_from_half_of_what_fits() -> None:
    assert thinned(await sent(session(3))) == []
    assert thinned(await sent(session(5))) == ["t0"]
    assert thinned(await sent(session(9))) == ["t0", "t1", "t2", "t3", "t4"]


async def test_a_line_says_what_it_was_how_it_ended_and_how_to_get_it_again() -> None:
    file = "/mnt/user-data/workspace/.tool-results/bash-0a1b.txt"
    first = step(0, f"{'x' * 4000} All of it is in {file}. {'y ' * 300} 3 failed, 20 passed")
    second = step(1, "z" * 4000, "read_file", path="/mnt/user-data/workspace/a.py")
    messages = await sent([human("h", "Go"), *first, *second, *session(8, 2)[1:]])
    line, other = [str(message.content) for message in messages if isinstance(message, ToolMessage)][:2]
    assert line.startswith("[The result of bash(command=make 0) is left out, as it is old: ")
    assert f"All of it is in {file}." in line
    assert line.endswith("3 failed, 20 passed]")
    assert "read_file(path=/mnt/user-data/workspace/a.py)" in other
    assert "search_conversation finds it, or make the call again." in other
    assert len(line) < 600


async def test_what_stays() -> None:
    short = step(0, "done")
    skill = step(1, "how to " * 600, "read_file", path="/mnt/skills/public/x/SKILL.md")
    lost: Message = {"type": "tool", "id": "lost", "tool_call_id": "gone", "name": "bash", "content": "x" * 4000}
    messages = await sent([human("h", "y" * 4000), *short, *skill, lost, *session(9, 2)[1:]])
    assert not {"h", "t0", "t1", "lost"} & set(thinned(messages)), "short, of a skill, without its call, of a person"
    assert thinned(messages) != []
    giant = await sent([human("h", "Go"), *step(0), *step(1), *step(2, "x" * 400_000)])
    assert thinned(giant) == [], "results of the newest steps"


async def test_the_conversation_does_not_change() -> None:
    messages = session(8)
    on, handler = turn(messages, config=MODELS), Asked()
    policy = Thinning()
    await model_call(policy, on, handler)
    first = handler.messages
    await model_call(policy, on, handler)
    assert [a is b for a, b in zip(first, handler.messages, strict=True)] == [True] * len(first), "objects are cached"
    assert on.state.messages == messages
    assert sum(len(str(message.content)) for message in first) < sum(len(str(m["content"])) for m in messages) / 1.5


def sizes(messages: Sequence[BaseMessage]) -> list[int]:
    return [estimate([{"type": message.type, "content": message.content}]) for message in messages]


@given(st.lists(st.integers(1, 3000), min_size=1, max_size=80))
def test_it_moves_on_in_steps(lengths: list[int]) -> None:
    """It only moves on, and between two moves the conversation grew by a step, so most requests begin as before."""
    window, talk, ends, totals = Window(WINDOW), [HumanMessage("Go")], [0], [0]
    messages: list[BaseMessage] = [*talk]
    for n, length in enumerate(lengths):
        messages.append(AIMessage("", tool_calls=[{"name": "f", "args": {}, "id": f"c{n}"}]))
        messages.append(ToolMessage("x" * length, tool_call_id=f"c{n}"))
        counted = sizes(messages)
        end = end_of_old(messages, counted, window)
        assert end <= max(0, len(messages) - 2 * LEAST_STEPS)
        assert end >= ends[-1]
        if end != ends[-1]:
            ends.append(end)
            totals.append(sum(counted))
    limit = window.limit
    moves = [total for total in totals if total]
    assert len(moves) <= sum(sizes(messages)) / (limit * STEP) * 2 + 1

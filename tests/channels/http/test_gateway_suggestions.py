"""The routes of suggestions without anybody who answers: nothing to suggest, and odd input."""

from __future__ import annotations

from typing import Any

import pytest

from tests.channels.http.conftest import Api, Worker

pytestmark = pytest.mark.anyio

TALK = [{"role": "user", "content": "What is an otter?"}]


async def test_without_an_actor_there_are_none(api: Api) -> None:
    thread = await api.thread()
    assert await api.ask("POST", f"/threads/{thread}/suggestions", {"messages": TALK}) == {"suggestions": []}
    assert await api.ask("POST", "/input-polish", {"text": "x"}) == {"rewritten_text": "x", "changed": False}


async def test_an_unknown_model_or_agent_is_refused(api: Api) -> None:
    thread = f"/threads/{await api.thread()}"
    bodies: list[tuple[str, Any]] = [(f"{thread}/suggestions", {"messages": TALK}), (f"{thread}/compact", {})]
    for path, body in (*bodies, ("/input-polish", {"text": "x"})):
        refused = await api.ask("POST", path, {**body, "model_name": "zz"}, status=400)
        assert refused["detail"] == "model_name: no model 'zz'; there are: demo"
    assert await api.ask("POST", f"{thread}/compact", {"agent_name": "ZZ"}, status=404) == {
        "detail": "Agent zz not found", "code": "not_found",
    }  # fmt: skip


async def test_only_for_ones_own_threads(api: Api, worker: Worker) -> None:
    await worker.system.intake.create_thread("theirs", user="somebody")
    for thread in ("theirs", "never"):
        await api.ask("POST", f"/threads/{thread}/suggestions", {"messages": TALK}, status=404)


@pytest.mark.parametrize(
    "odd",
    [
        {},
        {"messages": "x"},
        {"messages": [{"role": "user"}]},
        {"messages": [{"role": "x" * 41, "content": ""}]},
        {"messages": TALK, "n": 0},
        {"messages": TALK, "n": 6},
        {"messages": TALK, "n": None},
        {"messages": TALK, "model_name": 5},
    ],
)
async def test_odd_requests_are_refused(api: Api, odd: Any) -> None:
    thread = await api.thread()
    await api.ask("POST", f"/threads/{thread}/suggestions", odd, status=422)


@pytest.mark.parametrize("odd", [{}, {"text": ""}, {"text": 5}, {"text": "x" * 4001}, {"text": "x", "locale": "a b"}])
async def test_odd_texts_are_refused(api: Api, odd: Any) -> None:
    await api.ask("POST", "/input-polish", odd, status=422)

"""Models that stand in for one that does not answer, and what the person is told when none does."""

from __future__ import annotations

from pathlib import Path

import pytest

from core.events import ModelCompleted, ModelFailed, RunFailed
from core.thread.usage import by_model
from tests.support.model_server import Failure, Script, Turn
from tests.support.workers import site

pytestmark = pytest.mark.anyio

DOWN = Failure(status=503, message="scripted outage", headers={"retry-after": "0"})
REFUSED = Failure(status=401, message="Invalid API key", code="invalid_api_key")
ROLES = {"lead": ["first", "second", "third"]}


@pytest.mark.parametrize("failure", [DOWN, REFUSED], ids=["down", "refused"])
async def test_the_next_model_answers(tmp_path: Path, failure: Failure) -> None:
    scripts = {"first": [Turn(error=failure)], "second": [Turn(text="Second.")], "third": [Turn(text="Third.")]}
    async with site(tmp_path, scripts, model_roles=ROLES) as (client, models):
        messages = await client.said(await client.thread(), "Hi")
        failures = [r.event for r in await client.records("t1", ModelFailed)]
        [answer] = [r.event for r in await client.records("t1", ModelCompleted)]
        state = await client.state("t1")
    assert messages[-1]["content"] == "Second."
    assert isinstance(answer, ModelCompleted)
    [decision] = answer.decisions
    assert (decision.policy, decision.action) == ("failover", "switched")
    assert decision.text.startswith("first → second: ")
    assert [f.wait_ms for f in failures if isinstance(f, ModelFailed)][-1] == 0
    assert not models.answered("third")
    [run] = state.runs.values()
    assert (run.model, list(by_model(state, run))) == ("first", ["second"])


async def test_a_run_begins_with_its_own_model_wherever_that_stands_in_the_list(tmp_path: Path) -> None:
    scripts = {"first": [Turn(text="First.")], "second": [Turn(text="Second.")], "third": [Turn(error=REFUSED)]}
    async with site(tmp_path, scripts, model_roles=ROLES) as (client, _):
        thread = await client.thread()
        assert (await client.said(thread, "Hi", "second"))[-1]["content"] == "Second."
        assert (await client.said(thread, "Hi", "third"))[-1]["content"] == "First."


async def test_when_none_answers_the_run_fails_and_the_conversation_says_so(tmp_path: Path) -> None:
    scripts = {"first": [Turn(error=DOWN)], "second": [Turn(error=REFUSED)]}
    async with site(tmp_path, scripts, model_roles={"lead": ["first", "second"]}) as (client, models):
        thread = await client.thread()
        run = await client.ended(thread, await client.ask(thread, "Hi"))
        messages = (await client.state(thread)).messages
        [failed] = [r.event for r in await client.records(thread, RunFailed)]
        tries = [r.event for r in await client.records(thread, ModelFailed)]
        models.scripts["second"] = Script((Turn(text="Back."),))
        again = await client.said(thread, "And now?", "second")
    assert run.status == "error"
    assert isinstance(failed, RunFailed)
    assert (messages[-1], messages[-1]["type"]) == (failed.message, "ai")
    assert messages[-1]["additional_kwargs"] == {"deerflow_error_fallback": True, "error_reason": "auth"}
    assert [(t.model, t.wait_ms) for t in tries if isinstance(t, ModelFailed)] == [
        (None, 0),
        (None, 0),
        (None, 0),
        ("second", None),
    ]
    assert again[-1]["content"] == "Back."
    roles = [message["role"] for message in models.requests[-1].body["messages"]]
    assert "assistant" not in roles, "the model does not hear what the server said in its place"

"""What becomes of answers that say nothing."""

from __future__ import annotations

from typing import Any, cast

import pytest
from langchain_core.messages import AIMessage

from actors.agent.messages.convert import dump
from actors.agent.policies.repair.terminal_response import AGAIN, EXPLANATION, TerminalResponse
from actors.agent.run.attempt import Attempt, VisibleFailure
from core.events import ModelCompleted, RunCompleted, RunRequested, RunStarted
from core.thread.fold import fold
from tests.actors.agent.turns import RUN, Asked, Kept, model_call, turn
from tests.support.records import ai, call, human, record

pytestmark = pytest.mark.anyio

THOUGHT = {"type": "thinking", "thinking": "hm"}
EMPTY: dict[str, Any] = {
    "nothing": "",
    "null": None,
    "blank": " \n",
    "no blocks": [],
    "a thought": [THOUGHT],
    "an empty block": [{"type": "text", "text": " "}],
    "an empty string in a list": [""],
    "thoughts in the text": "<think>hm</think>\n",
    "thoughts that do not end": "<think>hm",
}
SPEAKING: dict[str, Any] = {
    "text": "Done.",
    "a block": [THOUGHT, {"type": "text", "text": "Done."}],
    "a picture": [{"type": "image_url", "image_url": {"url": "data:"}}],
    "a string in a list": ["Done."],
    "text after thoughts": "<think>hm</think>Done.",
}
CALLING: dict[str, dict[str, Any]] = {
    "structured": {"tool_calls": [{"name": "bash", "args": {}, "id": "c"}]},
    "invalid": {"invalid_tool_calls": [{"name": "bash", "args": "{", "id": "c", "error": None}]},
    "raw": {"additional_kwargs": {"tool_calls": [{"id": "c"}]}},
    "legacy": {"additional_kwargs": {"function_call": {"name": "bash"}}},
}


def said(content: Any, **more: Any) -> AIMessage:
    return AIMessage("", id="a").model_copy(update={"content": content, **more})


async def answered(on: Attempt, message: AIMessage) -> AIMessage:
    """One answer of the run, recorded as the policy leaves it."""
    answer = await model_call(TerminalResponse(), on, Asked(message))
    recorded = {**dump(answer), "id": f"{on.state.seq}", "content": answer.content or ""}
    await on.journal.model_completed(ModelCompleted(message=recorded, decisions=on.decided()))
    return answer


@pytest.mark.parametrize("name", EMPTY)
async def test_after_an_empty_answer_the_model_is_asked_again(name: str) -> None:
    on, message = turn([human("h")]), said(EMPTY[name])
    assert await model_call(TerminalResponse(), on, Asked(message)) is message
    [decision] = on.decided()
    assert (decision.policy, decision.action, decision.again) == ("terminal_response", "continued", True)
    assert decision.note is not None
    assert decision.note["content"] == AGAIN


@pytest.mark.parametrize("name", EMPTY)
async def test_when_it_is_empty_again_the_person_is_told(name: str) -> None:
    on = turn([human("h")])
    await answered(on, said(EMPTY[name]))
    assert on.state.runs[RUN].again
    with pytest.raises(VisibleFailure) as failure:
        await answered(on, said(EMPTY[name]))
    assert (failure.value.error, failure.value.message()["content"]) == ("EmptyAnswer", EXPLANATION)


async def test_it_is_one_try_a_run() -> None:
    on = turn([human("h")])
    await answered(on, said(""))
    await answered(on, said("", **CALLING["structured"]))
    with pytest.raises(VisibleFailure, match="empty, twice"):
        await answered(on, said(""))


async def test_empty_answers_of_others_do_not_count() -> None:
    """Neither those of an earlier run, nor those that called tools."""
    events = [
        (ModelCompleted(message=ai("a1", "")), RUN),
        (RunCompleted(), RUN),
        (RunRequested(input={}), "next"),
        (RunStarted(attempt=1, worker="w", lease=2, model="m"), "next"),
        (ModelCompleted(message=ai("a2", "", [call("c")])), "next"),
    ]
    on = turn([human("h"), ai("x", "")])
    journal = cast(Kept, on.journal)
    journal.state = fold([record(on.state.seq + 1 + n, event, run) for n, (event, run) in enumerate(events)], on.state)
    journal.id = "next"
    assert len(on.state.messages) == 4
    await model_call(TerminalResponse(), on, Asked(said("")))
    assert [decision.action for decision in on.decided()] == ["continued"]


@pytest.mark.parametrize("name", SPEAKING)
async def test_an_answer_that_says_something_is_not_touched(name: str) -> None:
    on, message = turn(), said(SPEAKING[name])
    assert await model_call(TerminalResponse(), on, Asked(message)) is message
    assert on.decided() == []


@pytest.mark.parametrize("form", CALLING)
async def test_an_answer_that_calls_something_is_not_touched(form: str) -> None:
    on, message = turn(), said("", **CALLING[form])
    assert await model_call(TerminalResponse(), on, Asked(message)) is message
    assert on.decided() == []

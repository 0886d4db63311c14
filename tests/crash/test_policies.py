"""The power goes off after every event of runs that policies have changed: sent back to work, summarised, stopped."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from core.errors import Refused
from core.events import ContextCompacted, Json, Message, ModelFailed, RunRequested
from core.runtime.system import System
from core.thread.state import ThreadState
from tests.crash.place import Mode, Place, cuts, place
from tests.support.model_server import Failure, Script, ToolCall, Turn
from tests.support.workers import Client, Power

pytestmark = [pytest.mark.anyio, pytest.mark.long(keep=5)]


def todos(status: str) -> ToolCall:
    return ToolCall("write_todos", {"todos": [{"content": "look around", "status": status}]})


PLANNED = (
    Turn(text="A plan.", tool_calls=(todos("in_progress"),)),
    Turn(text="All done."),
    Turn(text="Not quite.", tool_calls=(todos("completed"),)),
    Turn(tool_calls=(ToolCall("ask_clarification", {"question": "Blue?", "clarification_type": "missing_info"}),)),
    Turn(text="Blue it is."),
)
SAID = ["Go on.", "A plan.", "All done.", "Not quite.", "", "Yes.", "Blue it is."]
EVENTS = 17


async def person(system: System, texts: Sequence[str], context: Json) -> ThreadState:
    """Says one thing after the other; goes on wherever it was left."""
    client = Client(system)
    await client.thread()
    for number, text in enumerate(texts):
        message: Message = {"type": "human", "id": f"h{number}", "content": text}
        with suppress(Refused):  # it is there already
            request = RunRequested(input={"messages": [message]}, context=context)
            await system.intake.request_run("t1", f"run{number}", request)
        await client.ended("t1", f"run{number}")
    return await client.state("t1")


async def cut(place: Place, power: Power, texts: Sequence[str], context: Json) -> ThreadState:
    """The same, with the power going off in between: what it came to."""
    await place.cut(power, lambda system: person(system, texts, context))
    async with place.worker() as system:
        return await person(system, texts, context)


def said(state: ThreadState) -> list[str]:
    return [str(m["content"]) for m in state.messages if m["type"] != "tool"]


PLAN: Json = {"model_name": "m", "is_plan_mode": True}
TALK = ["Go on.", "Yes."]


async def test_a_plan_without_a_crash(tmp_path: Path) -> None:
    async with place(tmp_path, {"m": Script(PLANNED, count="total")}) as here, here.worker() as system:
        state = await person(system, TALK, PLAN)
        records = await Client(system).records("t1")
    assert said(state) == SAID
    assert len(records) == EVENTS
    assert [run.status for run in state.runs.values()] == ["success", "success"]


@pytest.mark.parametrize(("last", "mode"), cuts(range(2, EVENTS), "unheard", "later"))
async def test_a_plan(tmp_path: Path, last: int, mode: Mode) -> None:
    async with place(tmp_path, {"m": Script(PLANNED, count="total")}) as here:
        state = await cut(here, Power(last, mode), TALK, PLAN)
    assert said(state) == SAID
    assert state.values["todos"] == [{"content": "look around", "status": "completed"}]
    assert [run.status for run in state.runs.values()] == ["success", "success"]
    answered = here.models.answered("m")
    assert len(answered) == len(set(answered)) or mode == "later", "nothing that was recorded is paid twice"


LONG = ["One", "Two", "Three", "Four"]
SUMMARISED = {"enabled": True, "trigger": [{"type": "messages", "value": 6}], "keep": {"type": "messages", "value": 2}}
SCRIPTS = {"m": Script((Turn(text="Yes."),)), "s": Script((Turn(text="They counted."),))}


@pytest.mark.parametrize(("last", "mode"), cuts(range(11, 18), "unheard", "later"))
async def test_a_summary(tmp_path: Path, last: int, mode: Mode) -> None:
    settings = {**SUMMARISED, "model_name": "s"}
    async with place(tmp_path, SCRIPTS, summarization=settings) as here:
        state = await cut(here, Power(last, mode), LONG, {"model_name": "m"})
        async with here.worker() as system:
            summaries = await Client(system).records("t1", ContextCompacted)
    assert len(summaries) == 1
    assert "They counted." in str(state.messages[0]["content"])
    assert said(state)[-2:] == ["Four", "Yes."]
    assert [run.status for run in state.runs.values()] == ["success"] * len(LONG)


LOOK = ToolCall("ls", {"description": "look", "path": "/mnt/user-data/workspace"})
LOOP = Script((*[Turn(text="Once more.", tool_calls=(LOOK,))] * 3, Turn(text="It is empty.")), count="total")
STOP_EVENTS = 14
CIRCLES = {"loop_detection": {"warn_threshold": 2, "hard_limit": 3}}
SENTENCE = "Stopped: the agent made the same calls 3 times, with the same results (`loop_detection`)."


async def test_a_limit_without_a_crash(tmp_path: Path) -> None:
    async with place(tmp_path, {"m": LOOP}, **CIRCLES) as here, here.worker() as system:
        state = await person(system, ["Go on."], {"model_name": "m"})
        records = await Client(system).records("t1")
    assert_stopped(state)
    assert len(records) == STOP_EVENTS


@pytest.mark.parametrize(("last", "mode"), cuts(range(2, STOP_EVENTS), "unheard", "later"))
async def test_a_limit(tmp_path: Path, last: int, mode: Mode) -> None:
    async with place(tmp_path, {"m": LOOP}, **CIRCLES) as here:
        state = await cut(here, Power(last, mode), ["Go on."], {"model_name": "m"})
    assert_stopped(state)
    answered = here.models.answered("m")
    assert len(answered) == len(set(answered)) or mode == "later", "nothing that was recorded is paid twice"


def assert_stopped(state: ThreadState) -> None:
    [run] = state.runs.values()
    assert (run.status, run.stopped_by, run.calls) == ("success", "loop_detection", 4)
    assert said(state) == ["Go on.", *["Once more."] * 3, f"It is empty.\n\n{SENTENCE}"]


def short(messages: Sequence[dict[str, Any]]) -> Turn:
    """Takes six messages beside the system's; refuses more as too long."""
    said = [message for message in messages if message["role"] != "system" and "<system-reminder>" not in str(message)]
    if len(said) > 6:
        return Turn(error=Failure(status=400, message="prompt is too long"))
    return Turn(text="Yes.")


@pytest.mark.parametrize(("last", "mode"), cuts(range(14, 20), "unheard", "later"))
async def test_a_refusal_for_the_length(tmp_path: Path, last: int, mode: Mode) -> None:
    """A crash between the refusal and the summary, or after it: the run goes on, with one summary."""
    scripts: dict[str, Any] = {"m": short, "s": SCRIPTS["s"]}
    async with place(tmp_path, scripts, summarization={"model_name": "s"}) as here:
        state = await cut(here, Power(last, mode), LONG, {"model_name": "m"})
        async with here.worker() as system:
            summaries = await Client(system).records("t1", ContextCompacted)
            failures = await Client(system).records("t1", ModelFailed)
    assert len(summaries) == 1
    assert 1 <= len(failures) <= 2, "a refusal that is not followed by a summary is met again"
    assert "They counted." in str(state.messages[0]["content"])
    assert said(state)[-2:] == ["Four", "Yes."]
    assert [run.status for run in state.runs.values()] == ["success"] * len(LONG)

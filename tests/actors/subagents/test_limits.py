"""What bounds subagents, and what their callers are told of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from actors.agent.actor import AgentActor
from actors.agent.run import attempt as attempts
from core.config import load as configuration
from core.config.agent import ToolOutput
from core.errors import Invalid
from core.events import Message, SubagentCompleted, SubagentStarted
from core.log.kinds import SUBAGENT
from core.thread.prune import prune
from core.thread.state import ThreadState
from core.thread.subagents import NOT_BEGUN, UNFINISHED, tool_message_of
from tests.actors.subagents.test_task import LEAD, ON, OWN, events, ls, task
from tests.support.model_server import Failure, Script, Turn
from tests.support.workers import site

pytestmark = pytest.mark.anyio

LOOPING = Script(tuple(Turn(text=f"Look {n}.", tool_calls=(ls(),)) for n in range(9)), count="total")
CAPPED = "Task failed. Error: it was stopped"
OPEN = ", so the work is not finished. What it says of it: "
ASKING = {"tool": "ls", "allowed": ["approve", "reject"]}


def override(**settings: Any) -> Mapping[str, Any]:
    return {**settings, "agents": {"general-purpose": {"model": "sub", **settings.pop("own", {})}}}


def results(messages: Sequence[Message]) -> list[Message]:
    return [message for message in messages if message["type"] == "tool"]


Sections = Mapping[str, Any]
ENDS: Mapping[str, tuple[Sequence[Turn] | Script, Sections, str, Mapping[str, Any]]] = {
    "an error of the model": (
        [Turn(error=Failure(status=400, message="no such thing"))],
        {},
        "Task failed. Error: ",
        {"subagent_status": "failed"},
    ),
    "too many turns, with something to say": (
        LOOPING,
        {"subagents": override(own={"max_turns": 5})},
        f"{CAPPED} at its limit of model calls{OPEN}Look 5.\n\nStopped: the "
        "agent made 5 model calls, the limit of this run (`subagents.agents.general-purpose.max_turns`).",
        {"subagent_status": "completed", "subagent_stop_reason": "turn_capped"},
    ),
    "too many turns, with nothing to say": (
        Script((Turn(tool_calls=(ls(),)),) * 9, count="total"),
        {"subagents": override(own={"max_turns": 3})},
        f"{CAPPED} at its limit of model calls{OPEN}Stopped: the agent made",
        {"subagent_status": "completed", "subagent_stop_reason": "turn_capped"},
    ),
    "too many tokens": (
        LOOPING,
        {"subagents": override(token_budget={"max_tokens": 10})},
        f"{CAPPED} by a budget{OPEN}Look 1.\n\nStopped: this run used ",
        {"subagent_status": "completed", "subagent_stop_reason": "token_capped"},
    ),
    "the caller's budget": (
        LOOPING,
        {"budgets": {"run": {"tokens": 40}}},
        f"{CAPPED} by a budget{OPEN}Look",
        {"subagent_status": "completed", "subagent_stop_reason": "token_capped"},
    ),
    "a loop": (
        LOOPING,
        {"loop_detection": {"warn_threshold": 2, "hard_limit": 3}},
        f"{CAPPED} because it went in circles{OPEN}Look 3.\n\nStopped: the ",
        {"subagent_status": "completed", "subagent_stop_reason": "loop_capped"},
    ),
    "an error after work": (
        Script((Turn(text="Half is done.", tool_calls=(ls(),)), Turn(error=Failure(status=400))), count="total"),
        {},
        "Task failed. Error: ",
        {"subagent_status": "failed"},
    ),
    "no words": ([Turn()] * 3, {}, "Task failed. Error: the model's answer was empty", {"subagent_status": "failed"}),
    "too much time": (
        [Turn(text="One.", gate="never")],
        {"subagents": override(own={"timeout_seconds": 0.5})},
        "Task timed out. Error: the run had not ended after 0.5 s",
        {"subagent_status": "timed_out"},
    ),
    "an approval": (
        [Turn(tool_calls=(ls(),)), Turn(text="Not allowed.")],
        {"approvals": [ASKING]},
        "Task Succeeded. Result: Not allowed.",
        {"subagent_status": "completed"},
    ),
}


@pytest.mark.parametrize("case", ENDS)
async def test_the_end_of_a_subagent(tmp_path: Path, case: str) -> None:
    sub, sections, text, fields = ENDS[case]
    sections = {"subagents": OWN, **sections}
    async with site(tmp_path, {"lead": LEAD, "sub": sub}, **sections) as (client, _):
        thread = await client.thread()
        run = await client.ended(thread, await client.ask(thread, "Go on.", context=ON))
        state = await client.state(thread)
        [started] = await events(client, SubagentStarted)
        [completed] = await events(client, SubagentCompleted)
        subagent = await client.system.subagents.threads.load(started.subagent)
        await client.idle()
    [result] = results(state.messages)
    assert str(result["content"]).startswith(text)
    shown = result["additional_kwargs"]
    assert {name: shown.get(name) for name in fields} == fields
    assert ("status" in result) == (fields["subagent_status"] != "completed")
    assert completed.status == fields["subagent_status"]
    assert run.status == ("error" if case == "the caller's budget" else "success")
    assert not any(run.open for run in subagent.runs.values())
    if case == "an approval":
        assert "needs the approval of a person" in str(results(subagent.messages)[0]["content"])
        assert not subagent.approvals


async def test_more_calls_than_fit(tmp_path: Path) -> None:
    """Of four calls in an answer three are made; of the next two, one: the run has had its four subagents."""
    lead = [
        Turn(text="Four.", tool_calls=tuple(task(f"Part {n}.") for n in range(4))),
        Turn(text="Two.", tool_calls=(task("More."), task("Too much."))),
        Turn(text="Done."),
    ]
    more: dict[str, Any] = {"subagents": {**OWN, "max_total_per_run": 4}}
    scripts: dict[str, Any] = {"lead": Script(tuple(lead), count="total"), "sub": [Turn(text="One.")]}
    async with site(tmp_path, scripts, **more) as (client, models):
        thread = await client.thread()
        messages = await client.said(thread, "Go on.", context=ON)
        assert len(await events(client, SubagentStarted)) == 4
        asked = [r.body["messages"][-1]["content"] for r in models.requests if r.model == "sub"]
        second = [r for r in models.requests if r.model == "lead"][1].body["messages"]
    assert sorted(str(m["content"])[:30] for m in results(messages)) == [
        "Error: this run has had its 4 ",
        *["Task Succeeded. Result: One."] * 4,
    ]
    assert sorted(asked) == ["More.", "Part 0.", "Part 1.", "Part 2."]
    assert "1 call of task dropped" in str(second[-1]["content"])


@pytest.mark.parametrize(
    ("name", "sandbox", "text"),
    [
        ("nobody", True, "Error: Unknown subagent type 'nobody'. Available: general-purpose, bash, poet"),
        ("bash", False, "Error: the subagent 'bash' is off"),
        ("poet", True, "Task Succeeded. Result: A verse."),
    ],
)
async def test_types(tmp_path: Path, name: str, sandbox: bool, text: str) -> None:
    poet = {"description": "verses", "system_prompt": "You are a poet.", "model": "sub", "tools": ["ls", "bash"]}
    sections: dict[str, Any] = {
        "subagents": {"custom_agents": {"poet": poet}},
        "sandbox": {"provider": "host", "allow_host_bash": sandbox},
    }
    lead = [Turn(tool_calls=(task(name=name),)), Turn(text="Done.")]
    async with site(tmp_path, {"lead": lead, "sub": [Turn(text="A verse.")]}, **sections) as (client, models):
        thread = await client.thread()
        [result] = results(await client.said(thread, "Go on.", context=ON))
        asked = [r.body for r in models.requests]
    assert str(result["content"]).startswith(text)
    prompt = asked[0]["messages"][0]["content"]
    assert "- poet: verses" in prompt
    assert ("- bash: " in prompt) == sandbox
    if name == "poet":
        assert asked[1]["messages"][0]["content"].startswith("You are a poet.")
        assert {tool["function"]["name"] for tool in asked[1]["tools"]} == {"ls", "bash"}


async def test_a_run_without_subagents_has_no_task(tmp_path: Path) -> None:
    async with site(tmp_path, {"lead": LEAD}) as (client, models):
        context = {"model_name": "lead", "subagent_enabled": False}
        [result] = results(await client.said(await client.thread(), "Go on.", context=context))
    assert "task is not a valid tool" in str(result["content"])
    assert "<subagent_system>" not in models.requests[0].body["messages"][0]["content"]


async def test_a_subagent_of_a_subagent(tmp_path: Path) -> None:
    """Depth 2 is the last one: the inner subagent has no `task`. Its usage counts up to the thread's run. There is one
    slot, which the outer one does not keep while it waits.
    """
    scripts = {
        "lead": LEAD,
        "sub": [Turn(tool_calls=(task(name="inner"), task(name="inner"))), Turn(text="It says two.")],
        "inner": [Turn(text="Two.")],
    }
    role = {"description": "d", "system_prompt": "p", "model": "inner"}
    settings = {**OWN, "max_depth": 2, "custom_agents": {"inner": role}}
    async with site(tmp_path, scripts, subagents=settings, slots=1) as (client, models):
        thread = await client.thread()
        [result] = results(await client.said(thread, "Go on.", context=ON))
        [started], [completed] = await events(client, SubagentStarted), await events(client, SubagentCompleted)
        subagent = await client.system.subagents.threads.load(started.subagent)
    assert result["content"] == "Task Succeeded. Result: It says two."
    tools = {r.model: {tool["function"]["name"] for tool in r.body["tools"]} for r in models.requests}
    assert ("task" in tools["sub"], "task" in tools["inner"]) == (True, False)
    inner = subagent.runs[started.subagent].subagents.values()
    own = [message["usage_metadata"]["total_tokens"] for message in subagent.messages if message["type"] == "ai"]
    assert completed.usage is not None
    assert completed.usage["total_tokens"] == sum(own) + sum(one.tokens.total for one in inner)
    assert len(inner) == 2


async def test_a_long_result_goes_to_a_file(tmp_path: Path) -> None:
    long = "word " * 8000
    async with site(tmp_path, {"lead": LEAD, "sub": [Turn(text=long)]}, subagents=OWN) as (client, _):
        [result] = results(await client.said(await client.thread(), "Go on.", context=ON))
        [completed] = await events(client, SubagentCompleted)
    [file] = (tmp_path / "users/ada/threads/t1/user-data/workspace/.tool-results").iterdir()
    assert len(str(result["content"])) <= ToolOutput().externalize_min_chars < len(long)
    assert f"/mnt/user-data/workspace/.tool-results/{file.name}" in str(result["content"])
    assert file.read_text() == f"Task Succeeded. Result: {long}"
    assert completed.result == long


@pytest.mark.parametrize("action", ["interrupt", "rollback"])
async def test_a_stopped_run_stops_its_subagents(tmp_path: Path, action: str) -> None:
    lead = [Turn(tool_calls=(task("One."), task("Two."))), Turn(text="Done.")]
    gated = [Turn(text="One.", gate="g")]
    async with site(tmp_path, {"lead": lead, "sub": gated}, subagents=OWN) as (client, models):
        thread = await client.thread()
        run_id = await client.ask(thread, "Go on.", context=ON)
        await client.until(thread, lambda state, _: len(state.runs[run_id].subagents) == 2 if state.runs else False)
        await models.reached("g")
        await client.system.intake.cancel(thread, run_id, action)
        run = await client.ended(thread, run_id)
        state = await client.state(thread)
        await client.idle()
        subagents = [await client.system.subagents.threads.load(name) for name in run.subagents]
        completed = await events(client, SubagentCompleted)
    assert [event.status for event in completed] == ["cancelled"] * 2
    assert [ended(subagent) for subagent in subagents] == [["interrupted"]] * 2
    if action == "interrupt":
        assert [m["content"] for m in results(state.messages)] == ["Task cancelled by user."] * 2
        assert {m["additional_kwargs"]["subagent_status"] for m in results(state.messages)} == {"cancelled"}


def ended(state: ThreadState) -> list[str]:
    return [run.status for run in state.runs.values()]


async def test_a_subagent_is_steered(tmp_path: Path) -> None:
    sub = [Turn(text="One.", tool_calls=(ls(),), gate="g"), Turn(text="Two.")]
    async with site(tmp_path, {"lead": LEAD, "sub": sub}, subagents=OWN) as (client, models):
        thread = await client.thread()
        run_id = await client.ask(thread, "Go on.", context=ON)
        await models.reached("g")
        state = await client.state(thread)
        [name] = state.runs[run_id].subagents
        await client.system.subagents.steer(name, name, {"type": "human", "id": "s", "content": "Faster!"}, user="ada")
        models.release("g")
        await client.ended(thread, run_id)
        subagent = await client.system.subagents.threads.load(name)
    assert "Faster!" in [message["content"] for message in subagent.messages]


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ("custom_agents: {bash: {description: d, system_prompt: p}}", "custom_agents.bash: is built in"),
        ("custom_agents: {'1': {description: d, system_prompt: p}}", "a name begins with a letter"),
        ("agents: {nobody: {}}", "agents.nobody: there is no such type; there are: general-purpose, bash"),
        ("agents: {bash: {model: gpt}}", "subagents.agents.bash.model: gpt is none of the models"),
        ("max_depth: 4", "max_depth"),
        ("timeout_seconds: 0", "timeout_seconds"),
    ],
)
def test_bad_settings(settings: str, text: str) -> None:
    with pytest.raises(Invalid, match="subagents") as raised:
        configuration.parse(f"subagents: {{{settings}}}" if ":" in settings else settings)
    assert text in str(raised.value)


@pytest.mark.parametrize("way", ["erase", "prune"])
async def test_a_thread_takes_its_subagents_with_it(tmp_path: Path, way: str) -> None:
    lead = [Turn(text="I delegate.", tool_calls=(task(name="outer"),)), Turn(text="Done.")]
    outer = [Turn(text="I, too.", tool_calls=(task(name="general-purpose"),)), Turn(text="One.")]
    role = {"description": "d", "system_prompt": "p", "model": "outer"}
    settings = {**OWN, "max_depth": 2, "custom_agents": {"outer": role}}
    scripts = {"lead": lead, "outer": outer, "sub": [Turn(text="One.")]}
    async with site(tmp_path, scripts, subagents=settings) as (client, _):
        system, thread = client.system, await client.thread()
        await client.said(thread, "Go on.", context=ON)
        if way == "erase":
            await system.intake.erase(thread, by="ada")
        else:
            assert await prune(system.threads, thread, actor="test")
        last = (await client.records(thread))[-1]
        assert await system.threads.erase(thread, before=last.seq)
        left = [r async for r in system.log.between(0, await system.log.last()) if r.aggregate.kind == SUBAGENT]
    assert [record.type for record in left] == ["thread.erased"] * 2


@pytest.mark.parametrize("why", ["a person", "its deadline"])
async def test_subagents_of_subagents_stop_with_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    """The caller's run also stops them when it fails: here, at the deadline of an attempt."""
    role = {"description": "d", "system_prompt": "p", "model": "outer"}
    scripts: dict[str, Any] = {
        "lead": [Turn(tool_calls=(task(name="outer"),))],
        "outer": [Turn(tool_calls=(task(),))],
        "sub": [Turn(text="One.", gate="g")],
    }
    settings = {**OWN, "max_depth": 2, "custom_agents": {"outer": role}}
    if why == "its deadline":
        monkeypatch.setattr(AgentActor, "run_seconds", 10.0)  # the time in which a subagent's subagent begins
        monkeypatch.setattr(attempts.Limits, "seconds_left", lambda _: None)  # no time is kept for a last answer
    async with site(tmp_path, scripts, subagents=settings) as (client, models):
        system, thread = client.system, await client.thread()
        run_id = await client.ask(thread, "Go on.", context=ON)
        await models.reached("g")
        if why == "a person":
            await system.intake.cancel(thread, run_id)
        run = await client.ended(thread, run_id)
        [outer] = [await system.subagents.threads.load(name) for name in run.subagents]
        [inner] = [await system.subagents.threads.load(name) for run in outer.runs.values() for name in run.subagents]
        [completed] = await events(client, SubagentCompleted)
        [result] = results((await client.state(thread)).messages)
        await client.idle()
    assert run.status == ("interrupted" if why == "a person" else "error")
    assert (ended(outer), ended(inner), completed.status) == (["interrupted"], ["interrupted"], "cancelled")
    assert result["content"] == "Task cancelled by user."
    assert results(outer.messages)[0]["content"] == "Task cancelled by user."


async def test_a_subagent_has_no_more_time_than_its_caller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the caller's 120 seconds 96 are kept for its last answer, and as large a part of the subagent's."""
    monkeypatch.setattr(AgentActor, "run_seconds", 120.0)
    monkeypatch.setattr(attempts, "LAST_SHARE", 0.8)
    lead = Script((Turn(tool_calls=(task(),)), Turn(text="It was not done in time.")), count="total")
    sub = [Turn(text="Half is done.", tool_calls=(ls(),)), Turn(text="Never.", gate="never")]
    async with site(tmp_path, {"lead": lead, "sub": sub}, subagents=OWN) as (client, _):
        thread = await client.thread()
        run = await client.ended(thread, await client.ask(thread, "Go on.", context=ON))
        state = await client.state(thread)
        [started] = await events(client, SubagentStarted)
        subagent = await client.system.subagents.threads.load(started.subagent)
    context = subagent.runs[started.subagent].request.context
    assert 0 < context["timeout_seconds"] <= 24
    assert (run.status, state.messages[-1]["content"].splitlines()[0]) == ("success", "It was not done in time.")
    [result] = results(state.messages)
    assert result["content"].startswith("Task timed out. Error: Stopped: the ")
    assert "`subagents." not in result["content"]
    assert "What it had said until then, which is not finished: Half is done." in result["content"]


@pytest.mark.parametrize("when", ["at work", "not begun", "ended"])
async def test_a_caller_without_time_gets_what_was_done(tmp_path: Path, when: str) -> None:
    sub = [Turn(text="Half is done.", tool_calls=(ls(),)), Turn(text="All is done.", gate="g")]
    async with site(tmp_path, {"lead": LEAD, "sub": sub}, subagents=OWN) as (client, models):
        thread = await client.thread()
        run_id = await client.ask(thread, "Go on.", context=ON)
        await models.reached("g")
        [started] = await events(client, SubagentStarted)
        if when == "ended":
            models.release("g")
            await client.ended(thread, run_id)
        state = await client.state(thread)
        key = f"{next(c.seq for c in state.commits if c.node == 'model')}-{started.call_id}"
        question = {"op": "late", "thread": thread, "user": "ada", "run": run_id, "caller": None}
        call_id = key if when != "not begun" else f"{key}-other"
        outcome = await client.system.call("subagents", {**question, "call_id": call_id}, attempts.no_progress)
        models.release("g")
        await client.ended(thread, run_id)
        ends = await events(client, SubagentCompleted)
        subagent = await client.system.subagents.threads.load(started.subagent)
    text, _ = tool_message_of(msgspec.convert(outcome, SubagentCompleted))
    unfinished = "What it had said until then, which is not finished: Half is done."
    assert (
        text
        == {
            "at work": f"Task timed out. Error: {UNFINISHED}\n{unfinished}",
            "not begun": f"Task timed out. Error: {NOT_BEGUN}",
            "ended": "Task Succeeded. Result: All is done.",
        }[when]
    )
    assert [end.status for end in ends] == ["timed_out" if when == "at work" else "completed"]
    assert ended(subagent) == ["interrupted" if when == "at work" else "success"]


@pytest.mark.parametrize(
    ("mode", "thinking", "effort"),
    [({}, None, None), ({"mode": "flash"}, False, None), ({"mode": "ultra", "reasoning_effort": "low"}, None, "low")],
    ids=str,
)
async def test_a_subagent_thinks_as_its_caller_does(
    tmp_path: Path, mode: Mapping[str, Any], thinking: bool | None, effort: str | None
) -> None:
    async with site(tmp_path, {"lead": LEAD, "sub": [Turn(text="One.")]}, subagents=OWN) as (client, _):
        thread = await client.thread()
        await client.said(thread, "Go on.", context={**ON, **mode})
        [started] = await events(client, SubagentStarted)
        subagent = await client.system.subagents.threads.load(started.subagent)
    context = subagent.runs[started.subagent].request.context
    assert (context.get("thinking_enabled"), context.get("reasoning_effort")) == (thinking, effort)
    assert context["unattended"] is True

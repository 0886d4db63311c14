"""Middlewares of the configuration: where they stand, what they may change, and what is wrong with them."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain.agents.middleware import AgentMiddleware, ModelRequest, ModelResponse
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage, ToolMessage
from langgraph.graph.message import REMOVE_ALL_MESSAGES
from langgraph.runtime import Runtime

from actors.agent.loop.chain import Ports, arranged, policies
from actors.agent.setup.environment import Environment, Known
from core.config import load as configuration
from core.config.settings import MiddlewareEntry, Secret
from core.errors import Invalid
from core.events import StatePatched, ToolCompleted, ToolRequested
from tests.actors.agent import chains
from tests.support.laws import EXAMPLES
from tests.support.model_server import Failure, ToolCall, Turn
from tests.support.workers import site

pytestmark = pytest.mark.anyio

HERE = "tests.actors.agent.test_middlewares"


class Shout(AgentMiddleware[Any, Any, Any]):
    """Changes what the model says."""

    name = "shout"

    def __init__(self, mark: str = "!") -> None:
        super().__init__()
        self.mark = mark

    async def awrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]]
    ) -> ModelResponse[Any]:
        response = await handler(request)
        message = response.result[-1]
        assert isinstance(message, AIMessage)
        return ModelResponse(result=[message.model_copy(update={"content": message.text.upper() + self.mark})])


class InPlace(AgentMiddleware[Any, Any, Any]):
    """Changes the very message that it gets."""

    name = "in_place"

    async def awrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]]
    ) -> ModelResponse[Any]:
        response = await handler(request)
        response.result[-1].content = "Changed."
        return response


class Whisper(Shout):
    name = "whisper"


class Introduced(AgentMiddleware[Any, Any, Any]):
    """Changes the state in a hook: a message more, once."""

    name = "introduced"

    async def abefore_agent(self, state: Any, runtime: Runtime[Any]) -> dict[str, Any] | None:
        if any(message.id == "intro" for message in state["messages"]):
            return None
        return {"messages": [HumanMessage("I am Ada.", id="intro")]}


class Forgetful(AgentMiddleware[Any, Any, Any]):
    """Changes the state in a hook: only the last message stays."""

    name = "forgetful"

    async def abefore_model(self, state: Any, runtime: Runtime[Any]) -> dict[str, Any] | None:
        if len(state["messages"]) == 1:
            return None
        return {"messages": [RemoveMessage(id=REMOVE_ALL_MESSAGES), state["messages"][-1]]}


def names(*entries: MiddlewareEntry) -> list[str]:
    config = configuration.parse("budgets: {run: {tokens: 5}}")
    return [policy.name for policy in arranged(policies(chains.plan(config), Ports()), entries)]


def test_where_they_stand() -> None:
    plain = names()
    assert (plain[0], plain[-1]) == ("recorder", "effects")
    assert names(MiddlewareEntry(use=f"{HERE}:Shout")) == [*plain[:-3], "shout", *plain[-3:]]
    assert plain[-3:] == ["dangling_calls", "clarification", "effects"]
    first = MiddlewareEntry(use=f"{HERE}:Shout", before="budgets")
    place = plain.index("budgets")
    assert names(first) == [*plain[:place], "shout", *plain[place:]]
    second = MiddlewareEntry(use=f"{HERE}:Whisper", after="shout")
    assert names(first, second) == [*plain[:place], "shout", "whisper", *plain[place:]]


def test_only_unconfined_commands_are_audited() -> None:
    config = configuration.parse("{}")
    entry = MiddlewareEntry(use=f"{HERE}:Shout", before="command_audit")
    built_in = policies(chains.plan(config), Ports())
    unconfined, confined = (arranged(built_in, [entry], confined=confined) for confined in (False, True))
    names = [policy.name for policy in unconfined]
    assert names[names.index("shout") + 1] == "command_audit"
    assert [policy.name for policy in confined] == [name for name in names if name != "command_audit"]


@pytest.mark.parametrize(("provider", "confined"), [("host", False), ("", False), ("bubblewrap", True), ("x", True)])
def test_who_confines_commands(provider: str, confined: bool) -> None:
    assert Environment(Known(provider=provider)).confined is confined


BUILT_IN = chains.everything(configuration.parse(json.dumps(chains.EVERYTHING)))[1:-1]


@given(st.randoms(use_true_random=False), st.lists(st.sampled_from(["before", "after", ""]), max_size=2), st.data())
@settings(max_examples=4 * EXAMPLES)
def test_in_any_order_clarification_is_the_last(random: Random, places: list[str], data: st.DataObject) -> None:
    built_in = list(BUILT_IN)
    random.shuffle(built_in)
    anchors = st.sampled_from([policy.name for policy in built_in])
    uses = [f"{HERE}:Shout", f"{HERE}:Whisper"]
    entries = [
        msgspec.structs.replace(MiddlewareEntry(use=use), **({place: data.draw(anchors)} if place else {}))
        for use, place in zip(uses, places, strict=False)
    ]
    chain = [policy.name for policy in arranged(built_in, entries)]
    assert (chain[0], chain[-2:]) == ("recorder", ["clarification", "effects"])
    assert len(chain) == len(built_in) + len(entries) + 2


@pytest.mark.parametrize(
    ("entry", "complaint"),
    [
        (
            {"use": "nowhere:Class"},
            r"middlewares\[0\].use: nowhere:Class: there is no module nowhere; .* pip install nowhere",
        ),
        ({"use": f"{HERE}:Missing"}, r"middlewares\[0\].use: .*has no attribute 'Missing'"),
        ({"use": f"{HERE}:names"}, r"middlewares\[0\].use: .* is neither a sika.Policy nor a LangChain"),
        ({"use": f"{HERE}:Shout", "config": {"volume": 11}}, r"middlewares\[0\].config: TypeError: .*volume"),
        ({"use": f"{HERE}:Shout", "after": "nobody"}, r"middlewares\[0\]: there is no 'nobody' .*there are: .*asides"),
    ],
    ids=["module", "class", "type", "settings", "anchor"],
)
def test_what_is_wrong_with_them(entry: dict[str, Any], complaint: str) -> None:
    with pytest.raises(Invalid, match=complaint):
        names(MiddlewareEntry(**entry))


def test_a_secret_is_given_and_not_told() -> None:
    entry = MiddlewareEntry(use=f"{HERE}:Whisper", config={"mark": Secret("hush")})
    [whisper] = [policy for policy in arranged([], [entry]) if isinstance(policy, Whisper)]
    assert whisper.mark == "hush"
    with pytest.raises(Invalid, match=r"^middlewares\[0\]\.config: TypeError$"):
        arranged([], [msgspec.structs.replace(entry, config={"hush": Secret("hush")})])


def test_two_of_one_name() -> None:
    with pytest.raises(Invalid, match=r"tests\.\S+:Shout and tests\.\S+:Shout are both named shout"):
        names(MiddlewareEntry(use=f"{HERE}:Shout"), MiddlewareEntry(use=f"{HERE}:Shout"))


async def test_what_they_make_of_an_answer_is_what_was_said(tmp_path: Path) -> None:
    entries = [f"{HERE}:Shout", {"use": f"{HERE}:Whisper", "before": "shout", "config": {"mark": "?"}}]
    async with site(tmp_path, {"m": [Turn(text="hello")]}, middlewares=entries) as (client, _):
        messages = await client.said(await client.thread(), "Hi")
    assert messages[-1]["content"] == "HELLO!?"


async def test_a_message_that_is_changed_in_place_is_recorded_as_it_is_then(tmp_path: Path) -> None:
    async with site(tmp_path, {"m": [Turn(text="hello")]}, middlewares=[f"{HERE}:InPlace"]) as (client, _):
        messages = await client.said(await client.thread(), "Hi")
    assert messages[-1]["content"] == "Changed."


async def test_what_a_hook_adds_is_a_fact(tmp_path: Path) -> None:
    async with site(tmp_path, {"m": [Turn(text="Hello")]}, middlewares=[f"{HERE}:Introduced"]) as (client, models):
        thread = await client.thread()
        messages = await client.said(thread, "Hi")
        again = await client.said(thread, "And?")
        patches = [r.event for r in await client.records(thread, StatePatched)]
    assert [m["content"] for m in messages] == ["Hi", "I am Ada.", "Hello"]
    assert [m["content"] for m in again[3:]] == ["And?", "Hello"]
    assert [(p.as_node, p.source) for p in patches if isinstance(p, StatePatched)] == [("hooks", "loop")]
    assert [m["content"] for m in models.requests[-1].body["messages"][2:]] == ["Hi", "I am Ada.", "Hello", "And?"]


class NoFridays(AgentMiddleware[Any, Any, Any]):
    """As in actors/README.md."""

    name = "no_fridays"

    async def awrap_tool_call(self, request: Any, handler: Any) -> Any:
        call, turn = request.tool_call, request.runtime.context
        if call["name"] == "bash" and "deploy" in call["args"].get("command", ""):
            turn.decide(self.name, "blocked", "it is Friday", call_id=call["id"])
            return ToolMessage("Error: no deployments on a Friday.", tool_call_id=call["id"], status="error")
        return await handler(request)


async def test_a_policy_of_ones_own(tmp_path: Path) -> None:
    calls = tuple(ToolCall("bash", {"description": "d", "command": f"echo {word}"}) for word in ("deploy", "wait"))
    turns = [Turn(tool_calls=calls), Turn(text="Well.")]
    async with site(tmp_path, {"m": turns}, middlewares=[f"{HERE}:NoFridays"]) as (client, _):
        messages = await client.said(await client.thread(), "Go")
        done = [r.event for r in await client.records("t1", ToolCompleted)]
        begun = await client.records("t1", ToolRequested)
    assert sorted(m["content"] for m in messages if m["type"] == "tool") == [
        "Error: no deployments on a Friday.",
        "wait",
    ]
    decisions = [(d.policy, d.action, d.text) for event in done for d in event.decisions]  # type: ignore[union-attr]
    assert decisions == [("no_fridays", "blocked", "it is Friday")]
    assert len(begun) == 1


READY = "langchain.agents.middleware"


async def test_a_ready_made_one_that_ends_the_run(tmp_path: Path) -> None:
    """Its last word is part of the conversation; what it counts for a run is not part of the thread."""
    limit = {"use": f"{READY}:ModelCallLimitMiddleware", "config": {"run_limit": 2, "exit_behavior": "end"}}
    look = ToolCall("ls", {"description": "d", "path": "/mnt/user-data"})
    async with site(tmp_path, {"m": [Turn(tool_calls=(look,))] * 9}, middlewares=[limit]) as (client, models):
        thread = await client.thread()
        for count in (2, 4):
            messages = await client.said(thread, "Go")
            assert "limit" in messages[-1]["content"].lower()
            assert messages[-1]["type"] == "ai"
            assert len(models.requests) == count
        values = (await client.state(thread)).values
    assert "run_model_call_count" not in values


async def test_a_ready_made_one_that_asks_again(tmp_path: Path) -> None:
    """Also where the server itself would not."""
    retry = {"use": f"{READY}:ModelRetryMiddleware", "config": {"max_retries": 1, "initial_delay": 0}}
    declined = Failure(status=401, message="Invalid API key", code="invalid_api_key")
    scripts = {"m": [Turn(text="Late.", error=declined, times=1)]}
    async with site(tmp_path, scripts, middlewares=[retry]) as (client, models):
        messages = await client.said(await client.thread(), "Go")
    assert messages[-1]["content"] == "Late."
    assert [record.outcome for record in models.requests] == ["failed", "answered"]


async def test_what_a_hook_removes_is_gone(tmp_path: Path) -> None:
    async with site(tmp_path, {"m": [Turn(text="Hello")]}, middlewares=[f"{HERE}:Forgetful"]) as (client, models):
        thread = await client.thread()
        await client.said(thread, "Hi")
        messages = await client.said(thread, "And?")
    assert [m["content"] for m in messages] == ["And?", "Hello"]
    assert [m["content"] for m in models.requests[-1].body["messages"][1:]] == ["And?"]

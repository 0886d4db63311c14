"""Tools whose schemas the model gets when it looks for them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.language_models import FakeListChatModel
from langchain_core.messages import ToolMessage
from langchain_core.tools import BaseTool, StructuredTool
from langgraph.types import Command

from actors.agent.policies.context.deferred_tools import Deferred, DeferredTools, block, matching
from actors.agent.run.attempt import Attempt
from core.events import Json, Message, ModelCompleted, ToolCompleted
from tests.actors.agent.turns import Asked, model_call, tool_call, turn

pytestmark = pytest.mark.anyio


def tool(name: str, description: str = "does it") -> BaseTool:
    async def run(what: str) -> str:
        return what

    return StructuredTool.from_function(coroutine=run, name=name, description=description)


SEND, LIST, MAIL = (
    tool("slack_send", "Send a message."),
    tool("slack_list", "List channels."),
    tool("mail", "Send mail."),
)
LS = tool("ls")
BUILT_IN = {"type": "web_search"}
DEFERRED = [SEND, LIST, MAIL]
HUMAN: Message = {"type": "human", "id": "h", "content": "send it"}


def promoted(policy: DeferredTools, *names: str, catalog_hash: str = "") -> Json:
    return {"promoted": {"catalog_hash": catalog_hash or policy.catalog_hash, "names": list(names)}}


async def shown(policy: DeferredTools, on: Attempt, tools: list[Any]) -> list[str]:
    handler = Asked()
    await model_call(policy, on, handler, tools=tools)
    return [tool["type"] if isinstance(tool, dict) else tool.name for tool in handler.requests[-1].tools]


@pytest.mark.parametrize(
    ("values", "names"),
    [
        ({}, []),
        ({"promoted": None}, []),
        ({"promoted": {"catalog_hash": "H", "names": ["mail"]}}, ["mail"]),
        ({"promoted": {"catalog_hash": "H", "names": ["mail", "gone", 3, "slack_send"]}}, ["slack_send", "mail"]),
        ({"promoted": {"catalog_hash": "H", "names": None}}, []),
        ({"promoted": {"catalog_hash": "other", "names": ["mail"]}}, []),
        ({"promoted": {"names": ["mail"]}}, []),
    ],
    ids=["nothing", "null", "one", "odd ones", "no names", "another catalogue", "no catalogue"],
)
async def test_what_the_model_is_shown(values: Json, names: list[str]) -> None:
    policy = DeferredTools(DEFERRED)
    if (values.get("promoted") or {}).get("catalog_hash") == "H":
        values = {"promoted": values["promoted"] | {"catalog_hash": policy.catalog_hash}}
    tools = [LS, *DEFERRED, *policy.tools, BUILT_IN]
    assert await shown(policy, turn([HUMAN], values=values), tools) == ["ls", *names, "tool_search", "web_search"]


def test_the_catalogue_is_known_by_its_content() -> None:
    same, order = DeferredTools(DEFERRED), DeferredTools(reversed(DEFERRED))
    assert same.catalog_hash == order.catalog_hash
    assert same.catalog_hash != DeferredTools([SEND, LIST]).catalog_hash
    assert same.catalog_hash != DeferredTools([SEND, LIST, tool("mail", "Read mail.")]).catalog_hash


def asking(*calls: tuple[str, str]) -> Message:
    parsed = [{"name": name, "args": {}, "id": identity} for name, identity in calls]
    return {"type": "ai", "id": "a", "content": "", "tool_calls": parsed}


@pytest.mark.parametrize(
    ("name", "promotions", "denied"),
    [("ls", [], False), ("mail", [], True), ("mail", ["slack_send"], True), ("mail", ["mail"], False)],
)
async def test_what_the_model_may_call(name: str, promotions: list[str], denied: bool) -> None:
    policy = DeferredTools(DEFERRED)
    on = turn([HUMAN, asking((name, "c1"))], values=promoted(policy, *promotions))
    result, calls = await tool_call(policy, on, name)
    assert isinstance(result, ToolMessage)
    assert (calls == [], result.status == "error") == (denied, denied)
    if denied:
        assert result.text.startswith("Error: ")
        assert "tool_search with the query select:mail" in result.text
    assert [decision.action for decision in on.decided("c1")] == (["denied"] if denied else [])


async def test_a_search_promotes() -> None:
    policy = DeferredTools(DEFERRED)
    on = turn([HUMAN], values=promoted(policy, "mail"))
    result, calls = await tool_call(policy, on, "tool_search", {"query": "slack"})
    assert (calls, isinstance(result, Command)) == ([], True)
    assert isinstance(result, Command)
    assert isinstance(result.update, dict)
    assert result.update["promoted"] == promoted(policy, "mail", "slack_list", "slack_send")["promoted"]
    [message] = result.update["messages"]
    assert (message.tool_call_id, message.name, message.status) == ("c1", "tool_search", "success")
    schemas = json.loads(message.content)
    assert [schema["name"] for schema in schemas] == ["slack_list", "slack_send"]
    assert schemas[1]["description"] == "Send a message."
    assert list(schemas[1]["parameters"]["properties"]) == ["what"]
    assert [decision.action for decision in on.decided("c1")] == ["promoted"]


async def test_what_was_promoted_of_another_catalogue_is_dropped() -> None:
    policy = DeferredTools(DEFERRED)
    on = turn([HUMAN], values=promoted(policy, "mail", catalog_hash="other"))
    result, _ = await tool_call(policy, on, "tool_search", {"query": "select:slack_send"})
    assert isinstance(result, Command)
    assert isinstance(result.update, dict)
    assert result.update["promoted"] == promoted(policy, "slack_send")["promoted"]


@pytest.mark.parametrize(
    ("args", "text"),
    [
        ({"query": "nothing like it"}, "No tool was found."),
        ({}, "Error: query"),
        ({"query": 3}, "Error: query"),
        ({"query": "  "}, "Error: query"),
        ({"query": "x" * 501}, "Error: query"),
    ],
    ids=["none", "missing", "number", "blank", "long"],
)
async def test_a_search_that_finds_nothing(args: Json, text: str) -> None:
    on = turn([HUMAN])
    result, _ = await tool_call(DeferredTools(DEFERRED), on, "tool_search", args)
    assert isinstance(result, ToolMessage)
    assert result.text.startswith(text)
    assert (result.status == "error") == text.startswith("Error")
    assert on.decided("c1") == []


@pytest.mark.parametrize("search_first", [True, False])
@pytest.mark.parametrize("before", [[], ["mail"]], ids=["unknown", "known"])
async def test_a_search_in_the_same_answer_comes_too_late(search_first: bool, before: list[str]) -> None:
    """Calls of one answer run side by side: what may be called must not depend on which is done first."""
    policy = DeferredTools(DEFERRED)
    on = turn([HUMAN], values=promoted(policy, *before))
    await on.journal.model_completed(ModelCompleted(message=asking(("tool_search", "c1"), ("mail", "c2"))))
    if search_first:
        done = {"type": "tool", "id": "t", "content": "[]", "tool_call_id": "c1"}
        event = ToolCompleted(call_id="c1", message=done, update=promoted(policy, "mail"))
        await on.journal.tool_completed(event)
    _, calls = await tool_call(policy, on, "mail", call_id="c2")
    assert bool(calls) == bool(before)


# ── the search ──────────────────────────────────────────────────────────────────────────────────────────────────────

CATALOGUE = [
    Deferred("calendar_add", "Add an event.", {}),
    Deferred("github_issue", "Create or update (an) issue.", {}),
    Deferred("mail_send", "Send a mail.", {}),
    Deferred("slack_list", "List channels, send nothing.", {}),
    Deferred("slack_send", "Send a message.", {}),
]


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("select:slack_send,mail_send", "slack_send mail_send"),
        ("select: slack_send , nothing, slack_send", "slack_send"),
        ("select:", ""),
        ("select:slack", ""),
        ("+slack", "slack_list slack_send"),
        ("+slack send", "slack_send slack_list"),
        ("+SLACK message", "slack_send slack_list"),
        ("+nothing send", ""),
        ("send", "mail_send slack_send slack_list"),
        ("SEND", "mail_send slack_send slack_list"),
        ("slack|mail", "mail_send slack_list slack_send"),
        ("^slack.*d$", "slack_send"),
        ("issues?", "github_issue"),
        ("(create|delete) or", "github_issue"),
        ("(an", "github_issue"),
        ("(an) i", ""),
        ("[", ""),
        (".", "calendar_add github_issue mail_send slack_list slack_send"),
    ],
)
def test_matching(query: str, names: str) -> None:
    assert [tool.name for tool in matching(query, CATALOGUE)] == names.split()


ASKED = [
    Deferred("web_fetch", "Get the content of a URL as text.", {"parameters": {"properties": {"url": {}}}}),
    Deferred("web_search", "Search the internet for pages.", {}),
    Deferred("calc_addNumbers", "Sum two values.", {"parameters": {"properties": {"a": {}, "b": {}}}}),
    Deferred("files_moveFile", "Rename or move a file.", {"parameters": {"properties": {"destination": {}}}}),
    Deferred("wetter_holen", "Holt die Vorhersagen für eine Stadt.", {}),
    Deferred("map_route", "道路の経路を計算します。", {}),
    *(Deferred(f"other_{number}", f"Does the thing number {number}.", {}) for number in range(200)),
]


@pytest.mark.parametrize(
    ("query", "name"),
    [
        ("web fetch", "web_fetch"),
        ("read the contents of a web page", "web_fetch"),
        ("fetching urls", "web_fetch"),
        ("searching on the internet", "web_search"),
        ("add numbers", "calc_addNumbers"),
        ("adding a number to another", "calc_addNumbers"),
        ("calc add", "calc_addNumbers"),
        ("moving files to a destination", "files_moveFile"),
        ("+files rename", "files_moveFile"),
        ("Vorhersage der Städte", "wetter_holen"),
        ("経路", "map_route"),
    ],
)
def test_tools_are_found_by_words(query: str, name: str) -> None:
    """As models ask: in phrases, in other forms of the words, in parts of names."""
    assert name in [tool.name for tool in matching(query, ASKED)[:2]]


@pytest.mark.parametrize("query", ["tool", "+tool", "select:" + ",".join(f"tool_{n}" for n in range(9))])
def test_at_most_five(query: str) -> None:
    many = [Deferred(f"tool_{number}", "", {}) for number in range(9)]
    assert [tool.name for tool in matching(query, many)] == [f"tool_{number}" for number in range(5)]


def test_an_expression_that_never_ends() -> None:
    assert matching("(a|a)*(a|a)*$b", [Deferred("a" * 64, "a" * 5000, {})] * 100) == []


def test_the_block_of_the_prompt() -> None:
    assert block(["b", "a"]) == "<available-deferred-tools>\na\nb\n</available-deferred-tools>"
    assert block([]) == ""


def test_the_agent_gets_the_search() -> None:
    policy = DeferredTools(DEFERRED)
    agent = create_agent(FakeListChatModel(responses=["ok"]), tools=DEFERRED, middleware=[policy])
    assert set(agent.get_graph().nodes) == {"__start__", "model", "tools", "__end__"}
    assert set(agent.nodes["tools"].bound.tools_by_name) == {"tool_search", "slack_send", "slack_list", "mail"}  # type: ignore[attr-defined]
    [search] = policy.tools
    assert isinstance(search, BaseTool)
    assert list(search.tool_call_schema.model_json_schema()["properties"]) == ["query"]  # type: ignore[union-attr]

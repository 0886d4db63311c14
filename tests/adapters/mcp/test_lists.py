"""Lists and results of servers as they really come: each entry is judged alone, and no good one is lost."""

from __future__ import annotations

import os
from typing import Any

import mcp.types as protocol
import msgspec
import pytest
from mcp import McpError

from actors.mcp.actor import listing_fact
from adapters.mcp.lists import MOST_PROBLEMS, MOST_TOOLS, Raw, entries, most_of, others_of, tools_of
from adapters.mcp.results import outcome_of, prompt_parts, resource_parts, result_of
from core.errors import Invalid
from core.mcp.names import names_of
from core.mcp.servers import listing_of
from core.ports.mcp_frames import Listing, Offer, Outcome, Problem, Reply, framed
from tests.core.mcp.test_schemas import shown
from tests.support import hostile_mcp
from tests.support.hostile_mcp import GOOD

pytestmark = pytest.mark.anyio
COUNT = 10_000 if os.environ.get("SIKA_LONG") else 300
BAD = {"name": "bad", "inputSchema": {"type": "object"}}


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ({**BAD, "inputSchema": True}, "its schema is true instead of an object"),
        ({**BAD, "inputSchema": []}, "its schema is a list instead of an object"),
        ({**BAD, "inputSchema": {"type": "object", "description": "x" * 5_000_000}}, "its schema has "),
        ({**BAD, "name": 3}, "it has no name"),
        ({**BAD, "name": " "}, "it has no name"),
        ({"inputSchema": {}}, "it has no name"),
        ({**BAD, "name": "x" * 300}, "its name has more than 200 characters"),
        ({**BAD, "name": "good"}, "another tool has its name"),
        (None, "it is no object"),
        ("text", "it is no object"),
    ],
)
@pytest.mark.parametrize("first", [True, False])
def test_a_bad_tool_is_left_out_alone(bad: Any, reason: str, first: bool) -> None:
    if first and isinstance(bad, dict) and bad.get("name") == "good":
        return  # then the first one of the name stays
    problems = list[Problem]()
    tools = tools_of([bad, GOOD] if first else [GOOD, bad], problems)
    assert [tool.name for tool in tools] == ["good"]
    [problem] = problems
    assert problem.left_out
    assert problem.reason.startswith(reason)


@pytest.mark.parametrize(
    "odd",
    [
        {**BAD, "icons": "x"},
        {**BAD, "annotations": [1]},
        {**BAD, "description": 3, "outputSchema": "x", "_meta": 1},
        {"name": "bad"},
        {**BAD, "inputSchema": None},
        {**BAD, "name": "functions.bäd"},
    ],
)
def test_an_odd_detail_costs_no_tool(odd: Any) -> None:
    problems = list[Problem]()
    assert len(tools_of([odd, GOOD], problems)) == 2
    assert problems == []


def test_what_is_left_out_of_a_schema_is_said() -> None:
    problems = list[Problem]()
    schema = {"type": "object", "properties": {"x": {"$ref": "#/$defs/Missing"}}}
    [tool] = tools_of([{**BAD, "inputSchema": schema}], problems)
    assert tool.schema["properties"] == {"x": {}}
    assert problems == [
        Problem(tool="bad", reason="left out of its schema: a reference that leads nowhere (#/$defs/Missing)")
    ]


@pytest.mark.parametrize("name", [" ", "\t", "\x1b[2J", "", 3, None])
def test_a_tool_without_a_name_is_named_by_its_place(name: Any) -> None:
    problems = list[Problem]()
    tools_of([GOOD, {**BAD, "name": name}], problems)
    assert [(problem.tool, problem.reason) for problem in problems] == [("tool 2", "it has no name")]


@pytest.mark.parametrize(
    ("left_out", "notes", "last"),
    [
        (0, 100, None),
        (100, 0, None),
        (30, 90, "21 more faults, 0 of them"),
        (150, 20, "71 more faults, 51 of them"),
    ],
)
def test_what_is_left_out_is_named_first(left_out: int, notes: int, last: str | None) -> None:
    problems = [
        *(Problem(tool=f"note {n}", reason="r") for n in range(notes)),
        *(Problem(tool=f"bad {n}", reason="r", left_out=True) for n in range(left_out)),
    ]
    kept = most_of(problems)
    assert len(kept) == min(MOST_PROBLEMS, left_out + notes)
    assert [problem.left_out for problem in kept].count(True) == min(left_out, MOST_PROBLEMS - bool(last))
    assert kept[-1].reason.startswith(last or "r")


def test_no_list_takes_a_good_tool_with_it() -> None:
    for seed in range(COUNT):
        problems = list[Problem]()
        tools = tools_of(hostile_mcp.listing(seed), problems)
        good = next(tool for tool in tools if tool.name == "good")
        assert good.description or any(problem.tool == "good" for problem in problems), seed
        for name, (_, original) in names_of((("s", tool.name) for tool in tools), ()).items():
            tool = next(tool for tool in tools if tool.name == original)
            assert len(name) <= 64
            assert shown(tool.schema)["type"] == "object"
        framed(Reply(kind="listing", listing=Listing(tools=tools, problems=problems)))
        msgspec.json.encode(listing_fact("s", "c", Listing(tools=tools, problems=problems)))


def test_each_result_keeps_its_good_part() -> None:
    for seed in range(COUNT):
        outcome = outcome_of(result_of(Raw.model_validate(hostile_mcp.result(seed))))
        assert "MARK" in [part.text for part in outcome.parts], seed
        framed(Reply(kind="outcome", outcome=outcome))
        msgspec.json.encode(outcome.structured)


@pytest.mark.parametrize(
    ("raw", "texts"),
    [
        ({"content": [{"type": "image", "data": "aGk="}, {"type": "text", "text": "MARK"}]}, [None, "MARK"]),
        ({"content": [{"type": "video", "url": "x"}]}, ['{"type":"video","url":"x"}']),
        ({"content": "plain"}, ["plain"]),
        ({"structuredContent": {"a": 1}}, []),
        ({"content": None, "answer": 42}, []),
        ({"content": [{"type": "text", "text": "\ud83d"}]}, ["\ufffd"]),
        ({}, []),
    ],
)
def test_results_of_other_forms(raw: Any, texts: list[str | None]) -> None:
    outcome: Outcome = outcome_of(result_of(Raw.model_validate(raw)))
    assert [part.text for part in outcome.parts] == texts
    if not texts and raw:
        assert outcome.structured in ({"a": 1}, {"answer": 42})


def test_resources_and_prompts_of_other_forms() -> None:
    contents = [{"uri": "a", "text": "T"}, {"uri": 3, "blob": "aGk="}, {"x": 1}, None]
    parts = resource_parts(Raw.model_validate({"contents": contents}))
    assert [(part.text, part.data) for part in parts] == [("T", None), (None, b"hi"), ('{"x":1}', None), ("null", None)]
    prompt = {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}, {"content": "b"}, 3]}
    assert [part.text for part in prompt_parts(Raw.model_validate(prompt))] == ["a", "b", "3"]
    for read in (resource_parts, prompt_parts):
        with pytest.raises(Invalid, match="the server answered without"):
            read(Raw.model_validate({}))


def test_resources_that_are_none_are_left_out() -> None:
    problems = list[Problem]()
    raw = [{"uri": "file:///a"}, {"name": "no address"}, 3, {"uri": "b", "name": 3}]
    offers = others_of("resources", raw, problems)
    assert [offer.name for offer in offers] == ["b", "file:///a"]
    assert [problem.left_out for problem in problems] == [True, True]


# ── pages ───────────────────────────────────────────────────────────────────────────────────────────────────────────


class Pages:
    """A server's pages: each a result, or an error."""

    def __init__(self, *pages: Any) -> None:
        self.pages, self.asked = pages, list[Any]()

    async def __call__(self, request: Any, kind: type[Any]) -> Any:
        params = request.root.params
        self.asked.append(params.cursor if params else None)
        page = self.pages[min(len(self.asked), len(self.pages)) - 1]
        if isinstance(page, Exception):
            raise page
        return kind.model_validate(page)


REFUSED = McpError(protocol.ErrorData(code=-32000, message="no"))


@pytest.mark.parametrize(
    ("pages", "count", "reason"),
    [
        ([{"tools": [1, 2], "nextCursor": "a"}, {"tools": [3]}], 3, ""),
        ([{"tools": [1], "nextCursor": "a"}, {"tools": [2], "nextCursor": "a"}], 2, "pages that repeat"),
        ([{"tools": [1], "nextCursor": "a"}, REFUSED], 1, "page 2 of its tools was refused"),
        ([{"tools": [1], "nextCursor": 7}], 1, "pages that repeat"),
        ([{"tools": None}], 0, "has no list"),
        ([{"tools": [0] * 3000}], MOST_TOOLS, "more than 1000 tools"),
        ([{"tools": [0] * MOST_TOOLS, "nextCursor": "a"}], MOST_TOOLS, "more than 1000 tools"),
        ([{"tools": [0] * MOST_TOOLS}], MOST_TOOLS, ""),
    ],
)
async def test_pages(pages: list[Any], count: int, reason: str) -> None:
    problems = list[Problem]()
    assert len(await entries(Pages(*pages), "tools", MOST_TOOLS, problems)) == count
    assert [reason in problem.reason for problem in problems] == ([True] if reason else [])


async def test_a_list_that_is_refused() -> None:
    with pytest.raises(McpError):
        await entries(Pages(REFUSED), "tools", MOST_TOOLS, [])


def test_lists_of_an_earlier_time_are_judged_when_they_are_read() -> None:
    """Their facts have schemas as the servers sent them."""
    missing = {"type": "object", "properties": {"x": {"$ref": "#/$defs/Missing"}}}
    tools = [Offer(name="a", schema=missing), Offer(name="b", schema={"type": "string"}), Offer(name="c")]
    event = msgspec.structs.replace(listing_fact("s", "c", Listing(tools=tools)), problems=None)
    listing = listing_of(event)
    assert [tool.name for tool in listing.tools] == ["a", "c"]
    assert [(problem.tool, problem.left_out) for problem in listing.problems] == [("a", False), ("b", True)]

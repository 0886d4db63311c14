"""The names of MCP servers' tools, and the tools that runs see."""

from __future__ import annotations

import pytest

from actors.lead.setup.check import of_server
from core.mcp.names import MOST, name_of, names_of
from core.mcp.servers import Installed, Known, McpFailed
from core.mcp.tools import listed, made
from core.ports.mcp_frames import Listing, Offer
from core.tools import _NAME

NAMES = [
    ("git", "log", "git_log"),
    ("my.server", "read", "my_server_read_"),
    ("git", "a b/ç", "git_a_b___"),
    ("git", "x" * 100, "git_xxxxxxxx"),
]


@pytest.mark.parametrize(("server", "tool", "begin"), NAMES)
def test_names_fit_models(server: str, tool: str, begin: str) -> None:
    name = name_of(server, tool)
    assert name.startswith(begin)
    assert _NAME.fullmatch(name)
    assert len(name) <= MOST


def test_no_name_is_taken_twice() -> None:
    places = [
        ("a", "b_c"),
        ("a_b", "c"),
        ("read", "file"),
        ("s", "x" * 90),
        ("s", "x" * 91),
        ("s", "a.b"),
        ("s", "a_b"),
    ]
    names = names_of(places, {"read_file"})
    assert list(names.values()) == places
    assert "read_file" not in names
    assert names["a_b_c"] == ("a", "b_c")
    assert list(names) == list(names_of(places, {"read_file"}))


def state(**tools: int) -> Installed:
    offers = {
        name: [Offer(name=f"t{n:03}", description="Does.") for n in range(count)] for name, count in tools.items()
    }
    return Installed(known={name: Known("c", Listing(tools=listing), "h") for name, listing in offers.items()})


def test_tools_of_a_failed_server_are_left_out() -> None:
    known = dict(state(good=2, bad=2).known)
    known["bad"] = Known("c", known["bad"].listing, "h", McpFailed(server="bad", config="c", reason="down"))
    offered = made(Installed(known=known), {"good": "c", "bad": "c", "new": "c"}, (), 40)
    assert [tool.name for tool in offered.tools] == ["good_t000", "good_t001"]
    assert offered.unavailable == {"bad": "down", "new": "it was not listed yet"}
    assert not offered.tools[0].deferred


def test_many_tools_are_deferred_and_counted() -> None:
    offered = made(state(a=30, b=40), {"a": "c", "b": "c"}, (), 40)
    assert all(tool.deferred for tool in offered.tools)
    assert listed(offered.tools, offered.servers) == ["a_* (30 tools)", "b_* (40 tools)"]
    assert listed(offered.tools[:2], offered.servers) == ["a_t000", "a_t001"]


PATTERNS = [("git_*", True), ("git_log", True), ("g*", True), ("*", True), ("gut_*", False), ("git", False)]


@pytest.mark.parametrize(("pattern", "fits"), PATTERNS)
def test_patterns_of_approvals_for_a_server(pattern: str, fits: bool) -> None:
    assert of_server(pattern, "git") is fits

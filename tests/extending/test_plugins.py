"""What is wrong with an installed extension is said before the server starts, with its entry point."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from actors import compose, discovery
from channels.http.app import all_routes
from core import plugins
from core.config.load import parse
from core.errors import Invalid
from core.policy import Policy, View
from core.tools import Tool, ToolContext, tool

HERE = "tests.extending.test_plugins"

NOWHERE = "there is no module nowhere; if it is a package, install it with: pip install nowhere"
Install = Callable[[str, str], None]


@tool(effect="pure")
async def ls(ctx: ToolContext) -> str:
    """Has the name of one of ours."""
    return ""


@tool(effect="pure")
async def stroll(ctx: ToolContext) -> str:
    """Has a name of its own."""
    return ""


class Moody(Policy):
    def __init__(self, settings: dict[str, str]) -> None:
        self.mood = settings["mood"]

    async def before_model(self, view: View) -> None:
        view.note(self.mood)


ROUTES = tuple(route for route in all_routes() if route.path == "/threads/{thread_id}/log")
number = 5


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Makes a package with one entry point, as an installer leaves it."""

    def make(group: str, value: str) -> None:
        folder = tmp_path / "stranger-1.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: stranger\nVersion: 1.0\n")
        (folder / "entry_points.txt").write_text(f"[sika.{group}]\nmine = {value}\n")
        monkeypatch.syspath_prepend(tmp_path)
        plugins.plugins.cache_clear()

    yield make
    monkeypatch.undo()
    plugins.plugins.cache_clear()


@pytest.mark.parametrize(
    ("group", "value", "problem"),
    [
        ("actors", "nowhere:Nobody", NOWHERE),
        ("actors", f"{HERE}:number", "not an Actor class"),
        ("tools", f"{HERE}:number", "not a core.tools.Tool; declare it with @tool()"),
        ("policies", f"{HERE}:number", "not a core.policy.Policy class"),
        ("protocols", "tests.extending.pages", "a module with ROUTES, a list of Route, is expected"),
        ("protocols", HERE, "GET /api/threads/{thread_id}/log is taken"),
        ("events", "nowhere", NOWHERE),
    ],
)
def test_what_cannot_be_added_is_named(install: Install, group: str, value: str, problem: str) -> None:
    install(group, value)
    assert compose.problems(parse("")) == [f"entry point mine of sika.{group}: {value}: {problem}"]


def test_a_tool_must_have_a_name_of_its_own(install: Install) -> None:
    install("tools", f"{HERE}:ls")
    [problem] = compose.problems(parse(""))
    assert "the name ls is taken by" in problem


def test_an_installed_tool_has_a_group(install: Install) -> None:
    """So agents that are limited to groups, and exclusive lists, have it only where they say so."""
    install("tools", f"{HERE}:stroll")

    def found(tools: list[Tool]) -> list[str | None]:
        return [each.group for each in tools if each.name == "stroll"]

    assert found(discovery.load_tools()) == ["installed"]
    assert found(discovery.load_tools((), True)) == []


def test_a_policy_has_its_settings(install: Install) -> None:
    """Of `installed`, or of the entry under `middlewares:` that places it; then it is not there twice."""
    install("policies", f"{HERE}:Moody")
    without = f"installed.moody: {HERE}:Moody: KeyError: 'mood'"
    assert compose.problems(parse("")) == [without]
    assert compose.problems(parse("installed: {moody: {mood: good}}")) == []
    placed = f"middlewares: [{{use: '{HERE}:Moody', after: approvals, config: {{mood: good}}}}]"
    assert compose.problems(parse(placed)) == []


def test_an_unknown_sandbox_is_named(install: Install) -> None:
    install("sandboxes", f"{HERE}:number")
    with pytest.raises(Invalid, match=r"magic: there is no such provider; there are: auto, bubblewrap, host, mine$"):
        discovery.provider_of(parse("sandbox: {provider: magic}"))


def test_events_that_cannot_be_imported_stay_unknown(install: Install) -> None:
    """Reading a log goes on without them."""
    install("events", "nowhere")
    assert [str(problem) for problem in plugins.load_events()] == [
        f"entry point mine of sika.events: nowhere: {NOWHERE}"
    ]

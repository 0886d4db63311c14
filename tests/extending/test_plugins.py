"""A broken plug-in costs nothing but itself; what the configuration names, and policies, must be there."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from actors.wiring import compose, discovery, parts
from channels import cli
from channels.cli.common import OK, WRONG
from channels.http.endpoints.table import all_routes
from core import plugins
from core.actor import Actor
from core.config.load import parse
from core.errors import Invalid
from core.events import RunCompleted, catalogue
from core.policy import Policy, View
from core.tools import Tool, ToolContext, tool

HERE = "tests.extending.test_plugins"

NOWHERE = "there is no module nowhere; if it is a package, install it with: pip install nowhere"
Install = Callable[..., None]


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
HOSTILE = {
    "quits": "raise SystemExit(3)",
    "hangs": "import threading\nthreading.Event().wait(5)",
    "confused": "def arguments(parser):\n    parser.runs(None)\n    parser.add_argument('--home')",
    "claims": "from core.events import Event\nclass RunCompleted(Event, frozen=True):\n    pass",
}


class Picky(Actor[RunCompleted]):
    name = "picky"

    def __init__(self, settings: dict[str, str]) -> None:
        self.token = settings["token"]


class Wiry(Actor[RunCompleted]):
    name = "wiry"

    def __init__(self, wires: int) -> None:
        self.wires = wires


class Webhooks(Actor[RunCompleted]):
    name = "webhooks"


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Makes a package with one entry point, as an installer leaves it."""

    def make(group: str, value: str, name: str = "mine") -> None:
        folder = tmp_path / "stranger-1.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: stranger\nVersion: 1.0\n")
        (folder / "entry_points.txt").write_text(f"[sika.{group}]\n{name} = {value}\n")
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
        ("actors", f"{HERE}:Wiry", "actor wiry: cannot be given wires; there is: config"),
        ("actors", f"{HERE}:Picky", "cannot be built with the settings installed.picky: KeyError: 'token'"),
        ("actors", f"{HERE}:Webhooks", "the name webhooks is taken by actors.webhooks:Webhooks"),
        ("channels", f"{HERE}:Picky", "not a module; one with TRAITS and connect is expected"),
        ("channels", HERE, f"{HERE} has no TRAITS"),
        ("channels", "tests.support", "there is no Python package tests.support with traits.py"),
        ("channels", "nowhere", NOWHERE),
        ("tools", f"{HERE}:number", "not a sika.Tool; declare it with @tool()"),
        ("tools", f"{HERE}:ls", "the name ls is taken by adapters.tools.ls"),
        ("protocols", "tests.extending.pages", "a module with ROUTES, a list of Route, is expected"),
        ("protocols", HERE, "GET /api/threads/{thread_id}/log is taken"),
        ("events", "nowhere", NOWHERE),
        ("models", f"{HERE}:number", "not a langchain_core.language_models.BaseChatModel class"),
        ("sandboxes", f"{HERE}:number", "not a function that makes a provider"),
        ("skills", HERE, "not a package: a module with a folder of its own is expected"),
        ("skills", "tests.support", "there is no */SKILL.md in its folder; are the files part of the wheel?"),
        ("views", HERE, "not a package: a module with a folder of its own is expected"),
        ("views", "tests.support", "view.js: No such file or directory; are the files part of the wheel?"),
        ("views", "untitled", "words.json: `en` has no `title`, which the menu shows"),
        ("views", "garbled", "words.json: Expected `object`, got `array`"),
        ("verbs", "nowhere", NOWHERE),
        ("verbs", "tests.support", "a module with arguments(parser) is expected"),
        ("verbs", "confused", "ArgumentError: argument --home: conflicting option string: --home"),
        ("tools", "quits:me", "cannot be imported: SystemExit: 3"),
        ("tools", "hangs:me", "its import does not end within 0.2 s"),
        ("events", "claims", "event run.completed: the name is taken by core.events"),
    ],
)
def test_what_cannot_be_added_is_left_out(
    install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group: str, value: str, problem: str
) -> None:
    """The server starts without it, and its problem is listed."""
    for name, code in HOSTILE.items():
        (tmp_path / f"{name}.py").write_text(code)
    monkeypatch.setattr(plugins, "IMPORT_SECONDS", 0.2 if value == "hangs:me" else 60)
    for name, words in (("untitled", "{}"), ("garbled", "[]")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "view.js").touch()
        (tmp_path / name / "words.json").write_text(words)
    install(group, value)
    config = parse("")
    assert compose.problems(config) == []
    [plugin] = parts.plugins_of(config)
    assert plugin.problem.startswith(problem)
    assert plugin.place == f"entry point mine of sika.{group}: {value}"
    assert (plugin.package, plugin.version) == ("stranger", "1.0")
    assert catalogue()["run.completed"] is RunCompleted


@pytest.mark.parametrize(
    ("group", "value", "name", "problem"),
    [
        ("channels", "tests.actors.chat.office", "slack", "the name slack is taken by channels.slack"),
        (
            "channels",
            "tests.actors.chat.office",
            "my-pager",
            "its name is that of the platform: small letters",
        ),
        ("views", "tests.support", "Mine", "its name is part of an address: small letters, digits and dashes"),
        ("verbs", "channels.cli.use.threads", "chat", "the name chat is taken by one of ours"),
        (
            "verbs",
            "channels.cli.use.threads",
            "--chat",
            "its name is a word of the command line: small letters",
        ),
    ],
)
def test_the_name_of_an_entry_is_its_own(install: Install, group: str, value: str, name: str, problem: str) -> None:
    install(group, value, name)
    [plugin] = parts.plugins_of(parse(""))
    assert plugin.problem.startswith(problem)


@pytest.mark.parametrize(
    ("value", "code", "output"),
    [
        ("tests.extending.verb", OK, "counted 3\n"),
        ("nowhere", WRONG, f"entry point mine of sika.verbs: nowhere: {NOWHERE}\n"),
    ],
)
def test_a_verb_is_called_or_says_what_is_wrong(
    install: Install, capsys: pytest.CaptureFixture[str], value: str, code: int, output: str
) -> None:
    install("verbs", value)
    with pytest.raises(SystemExit) as ended:
        sys.exit(cli.main(["mine", "3"]))
    assert ended.value.code == code
    printed = capsys.readouterr()
    assert (printed.out + printed.err).endswith(output)
    assert "  mine         of the package stranger\n" in cli.parser(["--help"]).format_help()


@pytest.mark.parametrize("value", [f"{HERE}:number", "nowhere:Nobody"])
def test_nothing_starts_without_a_policy(install: Install, value: str) -> None:
    """The agent would do what the policy is there to keep it from."""
    install("policies", value)
    [problem] = compose.problems(parse(""))
    assert problem.startswith(f"entry point mine of sika.policies: {value}: ")


@pytest.mark.parametrize(
    ("group", "value", "config", "problem"),
    [
        ("sandboxes", "nowhere:make", "sandbox: {provider: mine}", NOWHERE),
        ("models", "nowhere:Model", "models: [{name: m, model: m, use: mine}]", NOWHERE),
        ("models", "nowhere:Model", "models: [{name: m, model: m, use: other}]", "nor an installed model: mine"),
        ("channels", HERE, "channels: {mine: {enabled: true}}", f"{HERE} has no TRAITS"),
        ("channels", "nowhere", "channels: {mine: {enabled: true}}", NOWHERE),
        ("tools", f"{HERE}:number", f"tools: [{{name: n, use: '{HERE}:number'}}]", "neither a sika.Tool nor a"),
        ("actors", f"{HERE}:number", f"actors: ['{HERE}:number']", "not an Actor class"),
    ],
)
def test_what_the_configuration_names_must_be_there(
    install: Install, group: str, value: str, config: str, problem: str
) -> None:
    install(group, value)
    assert any(problem in line for line in compose.problems(parse(config)))


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
    line = Moody.__init__.__code__.co_firstlineno + 1
    without = f"installed.moody: {HERE}:Moody: KeyError: 'mood' (test_plugins.py:{line}, in __init__)"
    assert compose.problems(parse("")) == [without]
    assert compose.problems(parse("installed: {moody: {mood: good}}")) == []
    placed = f"middlewares: [{{use: '{HERE}:Moody', after: approvals, config: {{mood: good}}}}]"
    assert compose.problems(parse(placed)) == []


def test_an_unknown_sandbox_is_named(install: Install) -> None:
    install("sandboxes", f"{HERE}:number")
    with pytest.raises(
        Invalid,
        match=r"magic: there is no such provider; there are: aio, auto, bubblewrap, docker, host, provisioner, mine$",
    ):
        discovery.provider_of(parse("sandbox: {provider: magic}"))


def test_events_that_cannot_be_imported_stay_unknown(install: Install) -> None:
    """Reading a log goes on without them."""
    install("events", "nowhere")
    assert [plugin.problem for plugin in plugins.load_events()] == [NOWHERE]

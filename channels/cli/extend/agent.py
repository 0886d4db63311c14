"""`sika agent`: custom agents, their versions, and their files."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
from anyio import to_thread

from channels.cli.common import OK, count, options_of
from channels.cli.verbs import Parser
from channels.terminal.table import table
from channels.terminal.text import clean, one_line
from core.config.load import Config, load
from core.errors import Invalid
from core.user.agent_bundles import bundle, read
from core.user.agents import OPTIONS, Definition, Rosters, Version, known, valid_name


def arguments(parser: Parser) -> None:
    add = parser.below()
    for name, text in (
        ("list", "the agents"),
        ("show", "an agent's definition"),
        ("export", "print an agent as one file"),
        ("import", "make agents of a file, or of DeerFlow's folders"),
        ("history", "an agent's versions, the newest first"),
        ("rollback", "make an agent what it was in a version"),
    ):
        verb = add(name, _agent, text, verb=name, writes=name == "import")
        verb.add_argument("--user", default="default", metavar="ID", help="whose (default: default)")
        if name in ("show", "export", "history", "rollback"):
            verb.add_argument("name")
        if name == "rollback":
            verb.add_argument("version", type=count)
        if name == "import":
            verb.add_argument("path", type=Path)
            verb.add_argument("--name", help="call it so")
            verb.add_argument("--replace", action="store_true", help="replace an agent of that name")


async def _agent(arguments: argparse.Namespace) -> int:
    from actors.wiring import compose

    def warn(text: str) -> None:
        print(f"warning: {text}", file=sys.stderr)

    options = options_of(arguments)
    async with compose.attach(options) as system:
        shelf = Shelf(Rosters(system.log, actor=ACTOR), arguments.user, load(options.config), warn)
        match arguments.verb:
            case "list":
                lines = await shelf.list()
            case "show":
                lines = await shelf.show(arguments.name)
            case "export":
                lines = [await shelf.export(arguments.name)]
            case "import":
                lines = await shelf.take(arguments.path, arguments.name, replace=arguments.replace)
            case "history":
                lines = await shelf.history(arguments.name)
            case _:
                lines = await shelf.rollback(arguments.name, arguments.version)
    print("\n".join(lines))
    return OK


ACTOR = "cli"


class Shelf:
    """The agents of a user. Methods return the lines to print."""

    def __init__(self, rosters: Rosters, user: str, config: Config, warn: Callable[[str], None]) -> None:
        self._rosters, self._user, self._config, self._warn = rosters, user, config, warn

    async def list(self) -> Sequence[str]:
        agents = (await self._rosters.of(self._user)).agents.values()
        return table((agent.name, one_line(agent.description, 80)) for agent in agents)

    async def show(self, name: str) -> Sequence[str]:
        return [*definition_lines(known(await self._rosters.of(self._user), valid_name(name)))]

    async def export(self, name: str) -> str:
        """Returns the agent's bundle."""
        agent = known(await self._rosters.of(self._user), valid_name(name))
        return msgspec.json.format(msgspec.json.encode(bundle(agent)), indent=2).decode()

    async def take(self, path: Path, name: str | None, *, replace: bool) -> Sequence[str]:
        """Imports a bundle, a folder of DeerFlow's agent, or a folder of such folders."""
        folders = await to_thread.run_sync(_agents_in, path)
        if name is not None and len(folders) > 1:
            raise Invalid(f"--name: {path} has {len(folders)} agents")
        lines = []
        for folder in folders:
            agent = await to_thread.run_sync(read, folder)
            agent = msgspec.structs.replace(agent, name=valid_name(name)) if name else agent
            self._check(agent)
            await self._rosters.take(self._user, agent, replace=replace)
            lines.append(f"{agent.name}: imported")
        return lines

    async def history(self, name: str) -> Sequence[str]:
        versions = await self._rosters.history(self._user, valid_name(name))
        rows = ((v.version, v.at[:19].replace("T", " "), v.by, changes_of(v)) for v in versions)
        return table(rows, right=[0], indent="  ")

    async def rollback(self, name: str, version: int) -> Sequence[str]:
        agent = await self._rosters.rollback(self._user, valid_name(name), version)
        return [f"{agent.name}: as in version {version}"]

    def _check(self, agent: Definition) -> None:
        models = [model.name for model in self._config.models]
        if agent.model is not None and agent.model not in models:
            self._warn(f"{agent.name}: its model {agent.model!r} is not configured; its runs fail until it is")


def _agents_in(path: Path) -> list[Path]:
    """Returns the path, or the agents' folders in it."""
    if not path.is_dir() or (path / "config.yaml").exists():
        return [path]
    folders = sorted(entry for entry in path.iterdir() if (entry / "config.yaml").is_file())
    if not folders:
        raise Invalid(f"{path}: no agent is there: neither a config.yaml nor folders with one")
    return folders


def definition_lines(agent: Definition) -> Iterator[str]:
    yield f"name: {agent.name}"
    yield f"description: {one_line(agent.description, 2000)}"
    yield f"model: {agent.model or '(default)'}"
    for label, names in (
        ("tool groups", agent.tool_groups),
        ("skills", agent.skills),
        ("MCP servers", agent.mcp_servers),
    ):
        yield f"{label}: {'(all)' if names is None else ', '.join(one_line(n, 100) for n in names) or '(none)'}"
    for option in OPTIONS:
        if (value := getattr(agent, option)) is not None:
            yield f"{option}: {str(value).lower()}"
    if agent.soul:
        yield ""
        yield clean(agent.soul)


def changes_of(version: Version) -> str:
    """Returns what a version changed."""
    if version.agent is None:
        return "removed"
    return f"changed: {', '.join(version.changed)}" if version.changed else "defined"

"""The commands `sika agent …`: custom agents."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from channels.cli.common import OK, Add, count, options_of


def agent_commands(add: Add) -> None:
    """Adds the group `agent`."""
    agents = add("agent", None, "custom agents").add_subparsers(required=True, metavar="WHAT")
    for name, text in (
        ("list", "the agents"),
        ("show", "an agent's definition"),
        ("export", "print an agent as one file"),
        ("import", "make agents of a file, or of DeerFlow's folders"),
        ("history", "an agent's versions, the newest first"),
        ("rollback", "make an agent what it was in a version"),
    ):
        subparser = add(name, _agent, text, agents)
        subparser.set_defaults(verb=name, writes=name == "import")
        subparser.add_argument("--user", default="default", metavar="ID", help="whose (default: default)")
        if name in ("show", "export", "history", "rollback"):
            subparser.add_argument("name")
        if name == "rollback":
            subparser.add_argument("version", type=count)
        if name == "import":
            subparser.add_argument("path", type=Path)
            subparser.add_argument("--name", help="call it so")
            subparser.add_argument("--replace", action="store_true", help="replace an agent of that name")


async def _agent(arguments: argparse.Namespace) -> int:
    from actors.wiring import compose
    from channels.cli.extend.agent import ACTOR, Shelf
    from core.config.load import load
    from core.user.agents import Rosters

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

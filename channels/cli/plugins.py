"""The commands for plug-ins: `sika new`, `sika plugins` and `sika asyncapi`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from channels.cli.common import FAILED, OK, Add


def extend_commands(add: Add) -> None:
    new = add("new", _new, "write the package of a plug-in: a skeleton that works, with its test")
    new.add_argument("kind", choices=("actor", "tool", "policy", "skill", "channel"))
    new.add_argument("name", help="small letters, digits and dashes")
    new.add_argument("--dir", type=Path, default=Path(), metavar="DIR", help="where the package's folder is made")

    add("asyncapi", _asyncapi, "print the AsyncAPI document of the bus, for actors in other languages")

    extensions = add("plugins", _plugins, "what installed packages add, and why some of it is left out")
    extensions.add_argument("--json", action="store_true")


async def _new(arguments: argparse.Namespace) -> int:
    from channels.cli.extend import new

    print(new.write(arguments.kind, arguments.name, arguments.dir))
    print("next: pip install -e that folder, sika plugins, and pytest in it", file=sys.stderr)
    return OK


async def _asyncapi(arguments: argparse.Namespace) -> int:
    from importlib.metadata import version

    import anyio.to_thread
    import msgspec

    from actors.wiring import parts
    from core.config.load import load
    from core.runtime.asyncapi import document

    config = load(arguments.config)
    await anyio.to_thread.run_sync(parts.plugins_of, config, abandon_on_cancel=True)  # imports all event types
    print(msgspec.json.format(msgspec.json.encode(document(version("sika"), config.nats.prefix))).decode())
    return OK


async def _plugins(arguments: argparse.Namespace) -> int:
    import anyio.to_thread
    import msgspec
    from rich.console import Console

    from actors.wiring import parts
    from channels.cli.extend import plugins
    from core.config.load import load

    config = load(arguments.config)
    listed = [p.listed() for p in await anyio.to_thread.run_sync(parts.plugins_of, config, abandon_on_cancel=True)]
    if arguments.json:
        print(msgspec.json.encode(listed).decode())
    elif listed:
        Console(soft_wrap=not sys.stdout.isatty()).print(plugins.table(listed))
    else:
        print("no plug-ins: no installed package has an entry point of a group sika.*", file=sys.stderr)
    return FAILED if any(plugin.problem for plugin in listed) else OK

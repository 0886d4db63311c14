"""`sika plugins`: what installed packages add, and why some of it is left out."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import anyio.to_thread
import msgspec
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from channels.cli.common import FAILED, OK
from channels.cli.verbs import Parser
from channels.terminal.text import clean, one_line
from core.config.load import load
from core.plugins import POLICIES, Listed
from core.runtime.readiness import Finding


def arguments(parser: Parser) -> None:
    parser.runs(_plugins)
    parser.add_argument("--json", action="store_true")


async def _plugins(arguments: argparse.Namespace) -> int:
    from rich.console import Console

    from actors.wiring import parts

    config = load(arguments.config)
    listed = [p.listed() for p in await anyio.to_thread.run_sync(parts.plugins_of, config, abandon_on_cancel=True)]
    if arguments.json:
        print(msgspec.json.encode(listed).decode())
    elif listed:
        Console(soft_wrap=not sys.stdout.isatty()).print(table(listed))
    else:
        print("no plug-ins: no installed package has an entry point of a group sika.*", file=sys.stderr)
    return FAILED if any(plugin.problem for plugin in listed) else OK


CHARACTERS = 400
"""Limit of a cell: problems quote code of strangers."""


def table(listed: Sequence[Listed]) -> Table:
    """Returns a row for each plug-in, by group."""
    table = Table("GROUP", "NAME", "PACKAGE", "GIVES", box=SIMPLE_HEAD, pad_edge=False)
    for plugin in listed:
        outcome = Text(_cell(plugin.gives))
        if plugin.problem:
            fate = "no server starts with it" if plugin.group == POLICIES else "left out"
            outcome = Text(f"{fate}: {_cell(plugin.problem)}", style="red")
        package = f"{plugin.package} {plugin.version}"
        table.add_row(*(Text(_cell(cell)) for cell in (plugin.group, plugin.name, package)), outcome)
    return table


def _cell(text: str) -> str:
    return one_line(clean(text), CHARACTERS)


def findings(listed: Sequence[Listed]) -> list[Finding]:
    """Returns what `sika doctor` says of them; policies with a problem fail its check of what can be loaded."""
    problems = [plugin for plugin in listed if plugin.problem and plugin.group != POLICIES]
    advice = "the server runs without it; `sika plugins` lists what came from where"
    if not problems:
        return [Finding("plug-ins", "ok", f"{len(listed)} of installed packages")]
    return [
        Finding("plug-ins", "warn", f"{plugin.name} of {plugin.group} ({plugin.package}): {plugin.problem}", advice)
        for plugin in problems
    ]

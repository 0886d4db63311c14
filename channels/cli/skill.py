"""The commands `sika skill …`: instructions for agents."""

from __future__ import annotations

import argparse
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from channels.cli.common import FAILED, OK, Add, options_of

if TYPE_CHECKING:
    from core.skills.library import Library


def skill_commands(add: Add) -> None:
    """Adds the group `skill`."""
    skills = add("skill", None, "skills: instructions for the agent").add_subparsers(required=True, metavar="WHAT")
    for name, command, text, argument in (
        ("list", _skill_list, "the skills, and why others are not used", ""),
        ("show", _skill_show, "the instructions of a skill", "name"),
        ("install", _skill_install, "install a folder or a .skill archive for a user, after a check", "source"),
        ("enable", _skill_enable, "let agents use a skill", "name"),
        ("disable", _skill_disable, "let agents use a skill no longer", "name"),
        ("new", _skill_new, "write a skill to begin with", "name"),
        ("check", _skill_check, "look for what keeps a folder or an archive from being installed", "source"),
        ("test", _skill_test, "parse its scripts and run its tests/ in a sandbox", "source"),
    ):
        subparser = add(name, command, text, skills)
        subparser.set_defaults(writes=name in ("install", "enable", "disable"))
        if argument:
            subparser.add_argument(argument, type=Path if argument == "source" else str)
        if name == "new":
            subparser.add_argument("--to", type=Path, default=Path(), metavar="DIR", help="default: here")
        elif argument != "source" or name == "install":
            subparser.add_argument("--user", default="default", metavar="ID", help="default: default")


@asynccontextmanager
async def _library(arguments: argparse.Namespace) -> AsyncIterator[Library]:
    from actors.wiring import compose, parts
    from core.config.load import ConfigSource

    options = options_of(arguments)
    async with compose.attach(options) as system:
        yield parts.library(system.log, ConfigSource(options.config), options.home)


async def _skill_list(arguments: argparse.Namespace) -> int:
    from channels.cli.extend import skill

    async with _library(arguments) as library:
        for line in skill.lines(await library.of(arguments.user)):
            print(line)
    return OK


async def _skill_show(arguments: argparse.Namespace) -> int:
    async with _library(arguments) as library:
        skill = await library.get(arguments.user, arguments.name)
    print(f"{skill.folder} ({'on' if skill.enabled else 'off'}), for agents {skill.path}", file=sys.stderr)
    print(skill.text())
    return OK


async def _skill_install(arguments: argparse.Namespace) -> int:
    from actors.skills.writer import Writer
    from adapters.models.configured import Configured
    from channels.cli.extend import skill
    from core.config.load import ConfigSource

    async with _library(arguments) as library:
        source = ConfigSource(options_of(arguments).config)
        writer = Writer(library, Configured(source), source, actor=skill.ACTOR)
        print(await writer.install(arguments.user, arguments.source, skill.copied))
    return OK


async def _skill_enable(arguments: argparse.Namespace) -> int:
    return await _skill_switch(arguments, True)


async def _skill_disable(arguments: argparse.Namespace) -> int:
    return await _skill_switch(arguments, False)


async def _skill_switch(arguments: argparse.Namespace, enabled: bool) -> int:
    from channels.cli.extend import skill

    async with _library(arguments) as library:
        known = await library.get(arguments.user, arguments.name)
        await library.switch(arguments.user, known, enabled, actor=skill.ACTOR)
    return OK


async def _skill_new(arguments: argparse.Namespace) -> int:
    from channels.cli.extend import skill

    print(skill.create(arguments.name, arguments.to))
    return OK


async def _skill_check(arguments: argparse.Namespace) -> int:
    from channels.cli.extend import skill

    wrong, remarks = skill.report(arguments.source)
    for line in wrong:
        print(line)
    for line in remarks:
        print(f"remark: {line}")
    return FAILED if wrong else OK


async def _skill_test(arguments: argparse.Namespace) -> int:
    from actors.wiring import sandboxes
    from channels.cli.extend import skill
    from core.config.load import ConfigSource
    from core.skills.folders import Folders
    from core.skills.library import folders_of

    source = ConfigSource(options_of(arguments).config)
    failed, others = False, Folders(folders_of(source.current(), source.project)).scan().skills.values()
    async for title, problem in skill.test(arguments.source, sandboxes.for_tests(source.current()), list(others)):
        failed = failed or bool(problem)
        print(f"{'FAILED' if problem else 'ok'}  {title}" + (f"\n{problem}" if problem else ""))
    return FAILED if failed else OK

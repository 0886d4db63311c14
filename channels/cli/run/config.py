"""`sika config`: the configuration file, and its keys as text."""

from __future__ import annotations

import argparse
import difflib
import textwrap
from collections.abc import Iterator

from channels.cli.common import OK
from channels.cli.verbs import Parser
from core.config.load import ConfigSource, find
from core.config.reference import REQUIRED, Key, all_keys, matching
from core.config.upgrade import upgrade_file
from core.errors import Invalid


def arguments(parser: Parser) -> None:
    add = parser.below()
    add("check", _config_check, "look for mistakes")
    upgrade = add("upgrade", _config_upgrade, "write the file with the keys of today; without --write, say what")
    upgrade.add_argument("--write", action="store_true", help="change the file, and keep the old one beside it")
    reference = add("reference", _config_reference, "explain the keys: type, default, meaning")
    reference.add_argument("key", nargs="?", default="", help="a key, a section, or a part of a name (default: all)")


async def _config_check(arguments: argparse.Namespace) -> int:
    from actors.wiring import compose, names

    source = ConfigSource(arguments.config)
    config = source.current()
    for warning in config.warnings:
        print(f"warning: {warning}")
    if problems := compose.problems(config):
        raise Invalid("\n  ".join(problems))
    for remark in names.remarks(config, source.project):
        print(f"warning: {remark}")
    print(f"ok: {find(arguments.config) or 'no config.yaml, everything is default'}")
    return OK


async def _config_upgrade(arguments: argparse.Namespace) -> int:
    path = find(arguments.config)
    if path is None:
        raise Invalid("there is no config.yaml: everything is default")
    changes, backup = upgrade_file(path, write=arguments.write)
    for change in changes:
        print(change)
    if not changes:
        print(f"ok: {path} has the keys of today")
    else:
        print(f"written: {path}; the old file is {backup}" if backup else "nothing was written; --write does it")
    return OK


async def _config_reference(arguments: argparse.Namespace) -> int:
    for line in lines(arguments.key):
        print(line)
    return OK


WIDTH = 100
INDENT = "    "


def lines(name: str) -> Iterator[str]:
    """Returns the keys that a name matches, all of them for "". Raises `Invalid` if there are none."""
    keys = matching(name)
    if not keys:
        close = difflib.get_close_matches(name, [key.path for key in all_keys()], n=1)
        raise Invalid(f"{name}: no such key" + (f"; did you mean {close[0]}?" if close else ""))
    for key in keys:
        yield _heading(key)
        for paragraph in key.text.split("\n\n"):
            yield from textwrap.wrap(paragraph, WIDTH, initial_indent=INDENT, subsequent_indent=INDENT)


def _heading(key: Key) -> str:
    default = f", {key.default}" if key.default == REQUIRED else f", default: {key.default}" if key.default else ""
    return f"{key.path}: {key.type}{default}{' [restart]' if key.restart else ''}"

"""Commands that messages, documents and pages tell people to type are there."""

from __future__ import annotations

import argparse
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from channels.cli import parser

ROOT = Path(__file__).parents[3]
NAMED = re.compile(r"(?<![@\w/-])(?<!from )sika ([a-z][a-z-]+)(?:[ \n]+([a-z][a-z-]+))?")
NOT_COMMANDS = {"days", "dompurify", "process", "sandbox"}
"""Words that follow the name of the program in sentences and in other programs' names, and a guide's own verb."""


def subcommands(of: argparse.ArgumentParser) -> Mapping[str, argparse.ArgumentParser]:
    """The commands below a command."""
    return {
        name: parser
        for action in of._actions
        if isinstance(action, argparse._SubParsersAction)
        for name, parser in action.choices.items()
    }


def named() -> Iterator[tuple[str, str, str]]:
    """Files with the commands that they name."""
    listed = subprocess.run(
        ["git", "ls-files", "actors", "adapters", "channels", "core", "skills", "*.md", "*.yaml"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    for name in listed.stdout.split("\n"):
        path = ROOT / name
        if path.suffix in (".py", ".md", ".js", ".yaml", ".html", ".txt") and "vendor" not in path.parts:
            for match in NAMED.finditer(path.read_text(encoding="utf-8")):
                yield name, match[1], match[2] or ""


def test_commands_that_people_are_told_to_type_are_there() -> None:
    commands = subcommands(parser())
    wrong = []
    total = 0
    for file, command, _ in named():
        if command in NOT_COMMANDS:
            continue
        total += 1
        if command not in commands:
            wrong.append(f"{file}: sika {command}")
    assert wrong == []
    assert total > 300


@pytest.mark.parametrize("command", ["agent", "config", "dlq", "eval", "key", "mcp", "user", "skill"])
def test_so_are_those_below_them(command: str) -> None:
    known = subcommands(subcommands(parser())[command])
    told = {below for _, name, below in named() if name == command and below}
    assert told & known.keys()
    words = {"acp", "and", "as", "is", "for", "in", "it", "or", "says", "shows", "the", "with"}
    assert told - known.keys() - words == set()

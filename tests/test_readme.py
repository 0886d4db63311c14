"""The README and the pages of the documentation: their commands, code and configuration are valid."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from channels.cli import parser
from core.config.load import parse

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
CORE = ROOT / "core"
NAME = re.compile(r"`([a-z]\w*(?:/\w+)*/?)`")
FILES = [README, *sorted((ROOT / "channels/http/docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^\$ (?:[A-Z_]+=\S+ )?sika (.*)$", re.MULTILINE)


def blocks(language: str) -> Iterator[tuple[str, str]]:
    """File and text of each block in a language."""
    for file in FILES:
        yield from ((file.name, text) for name, text in BLOCK.findall(file.read_text()) if name == language)


def arguments(line: str) -> list[str]:
    """The words of a command, without comments, pipes and `&`."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&>")
    lexer.whitespace_split = True
    words = list(lexer)
    return words[: next((n for n, word in enumerate(words) if word in ("|", "&", ">", "2>")), len(words))]


def test_every_command_can_be_called() -> None:
    lines = [(name, line) for name, text in blocks("console") for line in COMMAND.findall(text)]
    assert len(lines) > 10
    for name, line in lines:
        try:
            options = parser().parse_args(arguments(line))
        except SystemExit:
            pytest.fail(f"{name}: sika {line}")
        assert options.command is not None, f"{name}: sika {line}"


def test_python_compiles() -> None:
    for name, text in blocks("python"):
        compile(text, name, "exec")


def test_configurations_are_valid() -> None:
    for name, text in blocks("yaml"):
        variables = dict.fromkeys(re.findall(r"\$([A-Z_]+)", text), "a value")
        assert parse(text, name, environ=variables).warnings == (), text


def test_links_of_the_readme_lead_to_files() -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)", README.read_text())
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_the_readme_begins_with_the_two_commands() -> None:
    first = next(text for name, text in blocks("console"))
    assert re.findall(r"^\$ (make \w+)", first, re.MULTILINE) == ["make run", "make test"]
    targets = set(re.findall(r"^(\w[\w-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"[`$] ?make ([a-z][\w-]*)", README.read_text())) <= targets


def missing(folder: Path, names: Iterable[str]) -> list[str]:
    """The names that are neither a module nor a room of the folder."""
    return [name for name in names if not (folder / f"{name.rstrip('/')}.py").exists() and not (folder / name).is_dir()]


def test_the_map_of_core_names_every_room_and_only_what_is_there() -> None:
    text = (CORE / "README.md").read_text()
    names = {name for name in NAME.findall(text) if name != "sika" and not name.startswith("tests/")}
    assert missing(CORE, names) == []
    rooms = {path.parent.name for path in CORE.glob("*/__init__.py")}
    assert set(re.findall(r"^\| `(\w+)/`", text, re.MULTILINE)) == rooms


FOR_OTHERS = ("extend", "testing")
"""Rooms whose docstrings are for those who import from them."""


@pytest.mark.parametrize("room", sorted({path.parent.name for path in CORE.glob("*/__init__.py")} - {*FOR_OTHERS}))
def test_a_room_of_core_names_modules_that_it_has(room: str) -> None:
    described = ast.get_docstring(ast.parse((CORE / room / "__init__.py").read_text())) or ""
    assert missing(CORE / room, NAME.findall(described)) == []

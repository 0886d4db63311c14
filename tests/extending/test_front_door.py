"""The front door: what pages, templates and example packages import, and that it only names what is elsewhere."""

from __future__ import annotations

import ast
import importlib
import re
import textwrap
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from core.events import Event, catalogue
from tests.extending.pages import PAGES, ROOT

SKELETONS = ROOT / "channels" / "cli" / "extend" / "skeletons"
OURS = {"actors", "adapters", "channels", "core", "sika"}
PROGRAMS = {"channels.client", "core.replay"}
"""Libraries for programs that use a server, or read its files."""
DOORS: Mapping[str, str] = {
    Path(installed).with_suffix("").as_posix().replace("/__init__", "").replace("/", "."): source
    for source, installed in tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"][
        "wheel"
    ]["force-include"].items()
    if source.endswith(".py")
}
"""The modules of `sika`, and the files that they are made of."""


def _fences(page: Path) -> Iterator[str]:
    for token in MarkdownIt().parse(page.read_text()):
        if token.type == "fence" and token.info.split()[:1] == ["python"]:
            yield token.content


def _sources() -> Iterator[tuple[str, str]]:
    """Yields the code that strangers are shown."""
    for page in (ROOT / "README.md", *sorted(PAGES.glob("*.md")), *sorted((ROOT / "channels").glob("*/README.md"))):
        for number, block in enumerate(_fences(page)):
            yield f"{page.name}:{number}", block
    for template in sorted(SKELETONS.glob("*/*.py.txt")):
        yield f"{template.parent.name}/{template.name}", re.sub(r"\$(\w+)", r"x_\1", template.read_text())
    for module in sorted((Path(__file__).parent / "every").rglob("*.py")):
        yield f"every/{module.name}", module.read_text()


SOURCES = dict(_sources())


def _imports(code: str) -> Iterator[tuple[str, str]]:
    """Yields the modules of ours that a code imports, with the names: none for a whole module."""
    for node in ast.walk(ast.parse(textwrap.dedent(code))):
        match node:
            case ast.Import(names=names):
                yield from ((alias.name, "") for alias in names)
            case ast.ImportFrom(module=str(module), names=names):
                yield from ((module, alias.name) for alias in names)


@pytest.mark.parametrize("source", SOURCES)
def test_strangers_import_from_the_front_door(source: str) -> None:
    for module, name in _imports(SOURCES[source]):
        if module.partition(".")[0] not in OURS or module in PROGRAMS:
            continue
        assert module in DOORS, f"{module} is not public"
        assert not name or _is_public(module, name), f"{module} has no {name}"


def test_there_is_code_of_every_place() -> None:
    """The test above has something to look at: pages, templates and packages use the door."""
    used = {name.split(":")[0] for name, code in SOURCES.items() if any(m in DOORS for m, _ in _imports(code))}
    assert used >= {"README.md", "extend-actor.md", "extend-protocol.md", "tool/module.py.txt", "every/routes.py"}


def _is_public(module: str, name: str) -> bool:
    door = importlib.import_module(module)
    return name in door.__all__ if hasattr(door, "__all__") else hasattr(door, name)


@pytest.mark.parametrize("page", sorted(PAGES.glob("extend-*.md")), ids=lambda page: page.stem)
def test_pages_on_extending_name_what_is_public(page: Path) -> None:
    """No other module of ours is named in their sentences, but as a file of the repository."""
    assert re.findall(r"`(?:actors|adapters|channels|core)\.[\w.]+", page.read_text()) == []


@pytest.mark.parametrize("door", DOORS)
def test_a_door_names_and_has_no_code(door: str) -> None:
    """Its objects are those that our own parts use. What is installed is this checkout's."""
    source = (ROOT / DOORS[door]).read_text()
    docstring, *statements = ast.parse(source).body
    assert isinstance(docstring, ast.Expr)
    for statement in statements:
        imports = isinstance(statement, ast.ImportFrom) and not statement.level
        assert imports or (isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "__all__")
    installed = importlib.import_module(door)
    assert installed.__file__ is not None
    assert Path(installed.__file__).read_text() == source, "make install copies it anew"
    for module, name in _imports(source):
        if module != "__future__" and name != "*":
            assert getattr(installed, name) is getattr(importlib.import_module(module), name)


def test_every_event_of_the_log_is_public() -> None:
    events = importlib.import_module("sika.events")
    own: list[type[Event]] = [cls for cls in catalogue().values() if cls.__module__ == "core.events"]
    assert len(own) > 50
    assert all(getattr(events, cls.__name__) is cls for cls in own)


def test_nothing_of_ours_goes_through_the_door() -> None:
    """In a wheel it lies at `sika` only."""
    doors = {
        *DOORS,
        *(source.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for source in DOORS.values()),
    }
    for folder in ("actors", "adapters", "channels", "core"):
        for file in (ROOT / folder).rglob("*.py"):
            used = {module for module, _ in _imports(file.read_text())} & doors
            assert not used, f"{file.relative_to(ROOT)}: {used}"

"""`sika skill`: instructions for agents: what people see of them, check of them, and begin with."""

from __future__ import annotations

import argparse
import shlex
import shutil
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import yaml
from anyio import CancelScope

from channels.cli.common import FAILED, OK, options_of
from channels.cli.verbs import Parser
from channels.terminal.table import table
from channels.terminal.text import one_line
from core.config.load import ConfigSource
from core.errors import Invalid
from core.memory.words import words
from core.ports.sandbox import Sandbox, SandboxProvider, ShellCommand, StartsMachines
from core.skills import archive
from core.skills.facts import scope_of
from core.skills.folders import Folders, Listing, Skill, content, skill_at
from core.skills.format import FILE, problems, remarks
from core.skills.library import Library, folders_of
from core.skills.rules import material
from core.skills.search import search


def arguments(parser: Parser) -> None:
    add = parser.below()
    for name, command, text, argument in (
        ("list", _skill_list, "the skills, and why others are not used", ""),
        ("show", _skill_show, "the instructions of a skill", "name"),
        (
            "install",
            _skill_install,
            "install a folder, a .skill archive or an address for a user, after a check",
            "source",
        ),
        ("enable", _skill_enable, "let agents use a skill", "name"),
        ("disable", _skill_disable, "let agents use a skill no longer", "name"),
        ("new", _skill_new, "write a skill to begin with", "name"),
        ("check", _skill_check, "look for what keeps a folder or an archive from being installed", "source"),
        ("test", _skill_test, "parse its scripts and run its tests/ in a sandbox", "source"),
    ):
        verb = add(name, command, text, writes=name in ("install", "enable", "disable"))
        if argument:
            verb.add_argument(argument, type=Path if argument == "source" and name != "install" else str)
        if name == "new":
            verb.add_argument("--to", type=Path, default=Path(), metavar="DIR", help="default: here")
        elif argument != "source" or name == "install":
            verb.add_argument("--user", default="default", metavar="ID", help="default: default")


@asynccontextmanager
async def _library(arguments: argparse.Namespace) -> AsyncIterator[Library]:
    from actors.wiring import compose, parts

    options = options_of(arguments)
    async with compose.attach(options) as system:
        yield parts.library(system.log, ConfigSource(options.config), options.home)


async def _skill_list(arguments: argparse.Namespace) -> int:
    async with _library(arguments) as library:
        for line in lines(await library.of(arguments.user)):
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
    from adapters.egress import Downloads
    from adapters.models.configured import Configured

    async with _library(arguments) as library:
        source = ConfigSource(options_of(arguments).config)
        writer = Writer(library, Configured(source), source, actor=ACTOR)
        if not arguments.source.startswith(("https://", "http://")):
            print(await writer.install(arguments.user, Path(arguments.source), copied))
            return OK
        print(name := await writer.install_from(arguments.user, arguments.source, Downloads()))
        scope = await library.scopes.load(scope_of(arguments.user))
    checked = scope.versions[name][-1].checked
    print(
        f"check: {checked.get('decision')}: {checked.get('reason')}; off until `sika skill enable {name}`",
        file=sys.stderr,
    )
    return OK


async def _skill_enable(arguments: argparse.Namespace) -> int:
    return await _skill_switch(arguments, True)


async def _skill_disable(arguments: argparse.Namespace) -> int:
    return await _skill_switch(arguments, False)


async def _skill_switch(arguments: argparse.Namespace, enabled: bool) -> int:
    async with _library(arguments) as library:
        known = await library.get(arguments.user, arguments.name)
        await library.switch(arguments.user, known, enabled, actor=ACTOR)
    return OK


async def _skill_new(arguments: argparse.Namespace) -> int:
    print(create(arguments.name, arguments.to))
    return OK


async def _skill_check(arguments: argparse.Namespace) -> int:
    wrong, remarks = report(arguments.source)
    for line in wrong:
        print(line)
    for line in remarks:
        print(f"remark: {line}")
    return FAILED if wrong else OK


async def _skill_test(arguments: argparse.Namespace) -> int:
    from actors.wiring import sandboxes

    source = ConfigSource(options_of(arguments).config)
    failed, others = False, Folders(folders_of(source.current(), source.project)).scan().skills.values()
    async for title, problem in test(arguments.source, sandboxes.for_tests(source.current()), list(others)):
        failed = failed or bool(problem)
        print(f"{'FAILED' if problem else 'ok'}  {title}" + (f"\n{problem}" if problem else ""))
    return FAILED if failed else OK


ACTOR = "cli"
CASES, MOST_CASES = "examples/cases.yaml", 100
LEAST_SHARED = 3
"""Words that a request has to share with a description, with their stems. Fewer are chance."""
TEST_SECONDS = 300.0
_SKELETON = """\
---
name: {name}
description: What it does, and when to use it. Write the words that people use when they need it.
---
# {title}

1. Say what to do first.
2. Name the files beside this one where they are needed, as `scripts/example.py`.
3. Say how to check the result.
"""
_SCRIPT = '''\
"""Prints a greeting. Replace it with what the skill needs."""

import sys

print("Hello", *sys.argv[1:])
'''
_TEST = """\
set -e
test "$(python3 "$SKILL/scripts/example.py" you)" = "Hello you"
"""


class _Case(msgspec.Struct, forbid_unknown_fields=True):
    prompt: str
    loads: bool


def lines(listing: Listing) -> Iterator[str]:
    """Yields a line for each skill, and for each that is not used with the reason."""
    yield from table(_cells(skill) for skill in listing.skills.values())
    for skipped in listing.skipped:
        yield f"not used: {skipped.path}: {one_line(skipped.reason, 160)}"
    if not listing.skills:
        yield "there are no skills"


def _cells(skill: Skill) -> Sequence[str]:
    state, owner = "on" if skill.enabled else "off", "own" if skill.own else skill.category
    return state, owner, skill.name, one_line(skill.description, 90)


def create(name: str, parent: Path) -> Path:
    """Writes a skill to begin with, which passes its check and its test. Raises `Invalid`."""
    text = _SKELETON.format(name=name, title=name.replace("-", " ").capitalize())
    if wrong := problems(text, name):
        raise Invalid("; ".join(wrong))
    folder = parent / name
    try:
        for path, body in ((FILE, text), ("scripts/example.py", _SCRIPT), ("tests/example.sh", _TEST)):
            (folder / path).parent.mkdir(parents=True, exist_ok=path != FILE)
            (folder / path).write_text(body)
    except FileExistsError:
        raise Invalid(f"{folder}: is there already") from None
    return folder


def report(source: Path) -> tuple[list[str], list[str]]:
    """Returns what keeps a skill, a folder or an archive, from being installed, and what else is to be said."""
    with TemporaryDirectory(prefix="sika-skill-") as temporary:
        folder = Path(temporary) / "skill"
        try:
            name = copied(source, folder)
            text = content(folder / FILE)
        except Invalid as error:
            return [str(error)], []
        wrong = problems(text, name if source.is_dir() and source.resolve().name != name else None)
        return wrong + [str(finding) for finding in material(folder).findings], remarks(text)


def copied(source: Path, folder: Path) -> str:
    """Copies a skill, a folder or an archive, into a new folder, and returns its name. Raises `Invalid`."""
    if source.is_dir():
        hidden = shutil.ignore_patterns(".*", "__pycache__")
        shutil.copytree(source, folder, ignore=lambda at, names: {*hidden(at, names), *_links(Path(at), names)})
        return archive.check(folder)
    if not source.is_file():
        raise Invalid(f"{source}: a folder or a file is expected")
    return archive.unpack(source, folder)


def _links(at: Path, names: list[str]) -> Iterator[str]:
    return (name for name in names if (at / name).is_symlink())


async def test(
    source: Path, provider: Callable[[Path, Path], SandboxProvider], others: Sequence[Skill]
) -> AsyncIterator[tuple[str, str]]:
    """Runs a skill's tests: its scripts are parsed, and the files in `tests/` executed, in a sandbox of its own. The
    requests of `examples/cases.yaml` are looked up among its description and those of the `others`.

    Yields the name of each test with what went wrong, "" if nothing did. `provider` makes a sandbox of a data directory
    and a folder of skills.
    """
    with TemporaryDirectory(prefix="sika-skill-") as temporary:
        root = Path(temporary) / "skills/public"
        root.mkdir(parents=True)
        name = copied(source, root / "skill")
        (root / "skill").rename(root / name)
        for outcome in _cases(root / name, others):
            yield outcome
        (Path(temporary) / "home").mkdir()
        place = provider(Path(temporary) / "home", root.parent)
        if problem := await place.check():
            raise Invalid(f"sandbox: {problem}")
        path = f"/mnt/skills/public/{name}"
        async with _sandbox(place) as sandbox:
            for number, (title, command) in enumerate(_commands(root / name, path)):
                result = await sandbox.exec(f"test-{number}", ShellCommand(command, TEST_SECONDS), lambda _: None)
                output = f"{result.stdout}{result.stderr}".strip() or f"exit code {result.exit_code}"
                yield title, "" if result.exit_code == 0 else output[-2000:]


@asynccontextmanager
async def _sandbox(provider: SandboxProvider) -> AsyncIterator[Sandbox]:
    """Yields the sandbox of a test. Ends its machine, which nobody else knows of."""
    if not isinstance(provider, StartsMachines):
        yield await provider.acquire("test", "test")
        return
    machine = await provider.start("test", "test")
    try:
        yield await provider.open(machine, "test", "test")
    finally:
        with CancelScope(shield=True):
            await provider.end(machine)


def _cases(folder: Path, others: Sequence[Skill]) -> Iterator[tuple[str, str]]:
    """Yields the requests that should load a skill, and those that should not, with what went wrong."""
    if not (folder / CASES).is_file():
        return
    try:
        cases = msgspec.convert(yaml.safe_load(content(folder / CASES)), list[_Case])
    except (yaml.YAMLError, msgspec.ValidationError, Invalid) as error:
        yield CASES, f"a list of {{prompt: text, loads: true or false}} is expected: {error}"
        return
    own = skill_at(folder, folder.name, "public")
    skills = [own, *(other for other in others if other.name != own.name)]
    for case in cases[:MOST_CASES]:
        best = next(iter(search(skills, case.prompt, 1)), None)
        shared = set(words(case.prompt)) & set(words(f"{own.name.replace('-', ' ')} {own.description}"))
        loads = best is own and len(shared) >= LEAST_SHARED
        verb = "loads" if case.loads else "does not load"
        problem = f"the words of its description say otherwise; best: {best.name if best else 'none'}"
        yield f"{CASES}: {one_line(case.prompt, 80)} {verb} it", "" if loads == case.loads else problem


def _commands(folder: Path, path: str) -> Iterator[tuple[str, str]]:
    for file in sorted(folder.rglob("*")):
        inner = file.relative_to(folder).as_posix()
        script = shlex.quote(f"{path}/{inner}")
        if file.suffix == ".py":
            yield (
                f"{inner} can be parsed",
                f"python3 -c 'import ast, sys; ast.parse(open(sys.argv[1]).read())' {script}",
            )
        elif file.suffix == ".sh":
            yield f"{inner} can be parsed", f"sh -n {script}"
        if inner.startswith("tests/") and file.suffix in (".py", ".sh"):
            program = "python3" if file.suffix == ".py" else "sh"
            yield inner, f"SKILL={shlex.quote(path)} {program} {script}"

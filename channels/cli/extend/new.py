"""`sika new`: the skeleton of a plug-in's package, which works, and its test."""

from __future__ import annotations

import argparse
import keyword
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from string import Template
from typing import NamedTuple

from channels.cli.common import OK
from channels.cli.verbs import Parser
from core import plugins
from core.errors import Invalid


def arguments(parser: Parser) -> None:
    parser.runs(_new)
    parser.add_argument("kind", choices=tuple(KINDS))
    parser.add_argument("name", help="small letters, digits and dashes")
    parser.add_argument("--dir", type=Path, default=Path(), metavar="DIR", help="where the package's folder is made")


async def _new(arguments: argparse.Namespace) -> int:
    print(write(arguments.kind, arguments.name, arguments.dir))
    print("next: pip install -e that folder, sika plugins, and pytest in it", file=sys.stderr)
    return OK


_FOLDER = Path(__file__).parent / "skeletons"
_NAME = re.compile(r"[a-z][a-z0-9]*(?:[-_][a-z0-9]+)*")
_MOST = 40
"""Limit of a name's length."""


class Kind(NamedTuple):
    """The entry-point group, the entry's target, and a sentence."""

    group: str
    target: str
    summary: str


KINDS: Mapping[str, Kind] = {
    "actor": Kind(plugins.ACTORS, "$module:$class_name", "An actor of Sika: counts the runs of a thread."),
    "tool": Kind(plugins.TOOLS, "$module:$word", "A tool for Sika's agents: counts the lines of files."),
    "policy": Kind(plugins.POLICIES, "$module:$class_name", "A policy of Sika: words that do not leave the house."),
    "skill": Kind(plugins.SKILLS, "$module", "A skill for Sika's agents: minutes of a meeting."),
    "channel": Kind(plugins.CHANNELS, "$module", "A chat platform for Sika: letters in a folder."),
    "verb": Kind(plugins.VERBS, "$module", "A verb of Sika's command line: counts conversations by the day."),
    "view": Kind(plugins.VIEWS, "$module", "A view of Sika's page: conversations by the day."),
}


def write(kind: str, name: str, folder: Path) -> Path:
    """Writes the package into a new folder below `folder`; returns it. Raises `Invalid`, and writes nothing then."""
    files = dict(_files(kind, name))
    target = folder / f"sika-{_kebab(name)}"
    draft = folder / f".{target.name}.part"
    if target.exists():
        raise Invalid(f"new {kind}: {target} is there already")
    try:
        shutil.rmtree(draft, ignore_errors=True)
        for path, text in files.items():
            (draft / path).parent.mkdir(parents=True, exist_ok=True)
            (draft / path).write_text(text, encoding="utf-8")
        draft.rename(target)
    except OSError as error:
        raise Invalid(f"new {kind}: {target}: {error.strerror or error}") from error
    return target


def _files(kind: str, name: str) -> Iterator[tuple[str, str]]:
    """Yields the package's files by path."""
    if not _NAME.fullmatch(name) or len(name) > _MOST or keyword.iskeyword(name):
        raise Invalid(f"new {kind}: {name!r}: small letters, digits and dashes, at most {_MOST}, and no word of Python")
    word = _kebab(name).replace("-", "_")
    values = {
        "kind": kind,
        "name": _kebab(name),
        "word": word,
        "module": f"sika_{word}",
        "package": f"sika-{_kebab(name)}",
    }
    values["entry"] = re.sub("[^a-z]", "", name) if kind == "channel" else values["name"]  # platforms have letters only
    values["class_name"] = "".join(part.title() for part in word.split("_"))
    about = KINDS[kind]
    source = f"sika_{word}" if kind in ("skill", "view") else f"sika_{word}.py"
    values |= {"group": about.group, "summary": about.summary, "included": source}
    values["target"] = Template(about.target).substitute(values)
    code = {
        "skill": [("skill/skill.md", f"{source}/{_kebab(name)}/SKILL.md")],
        "view": [(f"view/{file}", f"{source}/{file}") for file in ("view.js", "words.json", "view.css")],
    }.get(kind, [(f"{kind}/module.py", source)])
    for template, path in (
        ("pyproject.toml", "pyproject.toml"),
        ("README.md", "README.md"),
        *code,
        (f"{kind}/test.py", f"test_{values['module']}.py"),
    ):
        yield path, Template((_FOLDER / f"{template}.txt").read_text(encoding="utf-8")).substitute(values)


def _kebab(name: str) -> str:
    return name.replace("_", "-")

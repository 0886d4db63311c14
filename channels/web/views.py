"""Views of the page that installed packages add (`core.plugins.VIEWS`): folders with `view.js`, `words.json` and, if
it has a style of its own, `view.css`.

Whoever opens the page is sent the names and words; a script and a style are loaded when their view is entered. They are
files of the page as its own: under names with hashes, below the same content policy.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from core import plugins
from core.errors import Invalid
from core.plugins import Plugin

SCRIPT, STYLE, WORDS = "view.js", "view.css", "words.json"
LANGUAGES = ("en", "zh")
TITLE = "title"
"""The word that the menu shows."""
LARGEST = 1 << 20
"""Bytes of a file."""
_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


class View(NamedTuple):
    """A view. `script` and `style` (empty if there is none): their names as they are served."""

    name: str
    script: str
    style: str
    words: Mapping[str, Mapping[str, str]]
    """By language; English ones where another language has none."""


class Files(NamedTuple):
    """The views of a server, and their files by their names as they are served."""

    views: Sequence[View]
    bodies: Mapping[str, bytes]


@functools.cache
def files() -> Files:
    """Returns the views that can be used. Reads their folders once."""
    usable = [plugin for plugin in plugins.examined(plugins.VIEWS, describe) if not plugin.problem]
    folders = [(plugin.name, _folder(plugin)) for plugin in usable]
    named = [(_named(name, folder), folder) for name, folder in folders]
    bodies = {view.script: _body(folder, SCRIPT) for view, folder in named}
    return Files([view for view, _ in named], bodies | {v.style: _body(f, STYLE) for v, f in named if v.style})


def describe(plugin: Plugin) -> str:
    """Returns the address and the title of a view. Raises `Invalid` if the package has none that can be shown."""
    if not _NAME.fullmatch(plugin.name):
        raise Invalid("its name is part of an address: small letters, digits and dashes are expected")
    view = _named(plugin.name, _folder(plugin))
    return f"#/added/{view.name}: {view.words['en'][TITLE]}"


def _named(name: str, folder: Path) -> View:
    style = _served(name, folder, STYLE) if (folder / STYLE).is_file() else ""
    return View(name, _served(name, folder, SCRIPT), style, _words(folder))


def _folder(plugin: Plugin) -> Path:
    folders = [Path(folder) for folder in getattr(plugin.value, "__path__", ())]
    if not folders:
        raise Invalid("not a package: a module with a folder of its own is expected")
    return folders[0]


def _words(folder: Path) -> Mapping[str, Mapping[str, str]]:
    try:
        words = msgspec.json.decode(_body(folder, WORDS), type=dict[str, dict[str, str]])
    except msgspec.MsgspecError as error:
        raise Invalid(f"{WORDS}: {error}") from error
    if TITLE not in (english := words.get("en", {})):
        raise Invalid(f"{WORDS}: `en` has no `{TITLE}`, which the menu shows")
    return {language: english | words.get(language, {}) for language in LANGUAGES}


def _served(name: str, folder: Path, file: str) -> str:
    digest = hashlib.sha256(_body(folder, file)).hexdigest()
    return f"added-{name}-{digest[:12]}{Path(file).suffix}"


def _body(folder: Path, file: str) -> bytes:
    try:
        body = (folder / file).read_bytes()
    except OSError as error:
        raise Invalid(f"{file}: {error.strerror}; are the files part of the wheel?") from error
    if len(body) > LARGEST:
        raise Invalid(f"{file}: more than {LARGEST} bytes")
    return body

"""Attachments: files that a message names as `@path` or `@"path with spaces"`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from mimetypes import guess_type
from pathlib import Path
from typing import Any

from channels.terminal.text import one_line
from core.errors import Invalid

_NAMED = re.compile(r'(?<!\S)@(?:"([^"\n]+)"|(\S+))')
_DECORATORS = re.compile(r"^(?:[ \t]*@[\w.]+(?:\(.*\))?[ \t]*\n)+(?=[ \t]*(?:async def|class|def) )", re.MULTILINE)


def named(message: str) -> list[Path]:
    """Returns the files of this machine that a message names, each once. Other names are plain words."""
    return list(dict.fromkeys(_files(message)))


def check_names(message: str) -> None:
    """Raises `Invalid` for names that look like files (`@notes.md`, `@docs/plan`, `@"my notes"`), and are none here.
    Decorators of Python are no names.
    """
    if absent := list(_absent(message)):
        problems = "; ".join(f"@{one_line(name, 200)}: {_reason(name)}" for name in absent)
        raise Invalid(f"{problems} (a word is written in quotes: '@name')")


def names_files(message: str) -> bool:
    """Returns whether a message names files, here or not."""
    return any(True for names in (_files, _absent) for _ in names(message))


def pictures(files: Iterable[Path]) -> list[str]:
    """Returns the names of the files that are pictures."""
    return [path.name for path in files if (guess_type(path.name)[0] or "").startswith("image/")]


def _files(message: str) -> Iterator[Path]:
    for quoted, word in _NAMED.findall(message):
        for name in (quoted or word, word.rstrip(".,;:!?)")):
            if name and _is_file(name):
                yield Path(name).expanduser()


def _absent(message: str) -> Iterator[str]:
    names = [quoted or word.rstrip(".,;:!?)") for quoted, word in _NAMED.findall(_DECORATORS.sub("", message))]
    looks = [name for name in names if " " in name or re.search(r"[\w~.]/|\.\w+$", name)]
    yield from (name for name in dict.fromkeys(looks) if not _is_file(name))


def _is_file(name: str) -> bool:
    try:
        return Path(name).expanduser().is_file()
    except PermissionError:
        return True  # perhaps: its upload says why not
    except (OSError, RuntimeError):
        return False  # no path has such a name, or no user


def _reason(name: str) -> str:
    try:
        folder = Path(name).expanduser().is_dir()
    except (OSError, RuntimeError):
        folder = False
    return "is a folder, and only files can be sent" if folder else "there is no such file here"


def with_files(message: str, response: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a message with its uploaded files."""
    files = [
        {"filename": file["filename"], "size": int(file["size"]), "path": file["virtual_path"], "status": "uploaded"}
        for file in response.get("files") or ()
    ]
    return {"content": message, "additional_kwargs": {"files": files}}

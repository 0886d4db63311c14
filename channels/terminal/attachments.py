"""Attachments: files that a message names as `@path` or `@"path with spaces"`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

_NAMED = re.compile(r'(?<!\S)@(?:"([^"\n]+)"|(\S+))')


def named(message: str) -> list[Path]:
    """Returns the files of this machine that a message names, each once. Other names are plain words."""
    return list(dict.fromkeys(_files(message)))


def missing(message: str) -> list[str]:
    """Returns the names that look like files (`@notes.md`, `@docs/plan`, `@"my notes"`), and are none here."""
    names = [quoted or word.rstrip(".,;:!?)") for quoted, word in _NAMED.findall(message)]
    looks = [name for name in names if " " in name or re.search(r"[\w~.]/\w|\.\w+$", name)]
    return [name for name in dict.fromkeys(looks) if not _is_file(name)]


def _files(message: str) -> Iterator[Path]:
    for quoted, word in _NAMED.findall(message):
        for name in (quoted or word, word.rstrip(".,;:!?)")):
            if name and _is_file(name):
                yield Path(name).expanduser()


def _is_file(name: str) -> bool:
    try:
        return Path(name).expanduser().is_file()
    except PermissionError:
        return True  # perhaps: its upload says why not
    except (OSError, RuntimeError):
        return False  # no path has such a name, or no user


def with_files(message: str, response: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a message with its uploaded files."""
    files = [
        {"filename": file["filename"], "size": int(file["size"]), "path": file["virtual_path"], "status": "uploaded"}
        for file in response.get("files") or ()
    ]
    return {"content": message, "additional_kwargs": {"files": files}}

"""Program for glob and grep over open directories. It is killed if a pattern takes too long.

Reads its request (JSON) on stdin, writes `{"found": [...], "more": bool}` or `{"error": ...}`. It imports only the
standard library, as it starts with `python -I -S`. It follows no link, and walks down from inherited descriptors.
"""

from __future__ import annotations

import contextlib
import fnmatch
import json
import os
import re
import resource
import stat
import sys
from collections.abc import Container, Iterator
from typing import Any

MAX_FILE = 1 << 20
MAX_LINE = 2000
SHOWN_LINE = 200
MAX_DEPTH = 64
"""Limit of the depth; each level costs a descriptor."""
MAX_MEMORY = 1 << 30
BINARY_PROBE = 8192
"""Bytes in which a NUL marks a file as binary; git uses 8000."""

_NAMES = """
    .git .svn .hg .bzr CVS node_modules bower_components jspm_packages __pycache__ *.pyc *.pyo .venv venv env .env.local
    virtualenv .tox .nox .eggs *.egg-info .mypy_cache .pytest_cache .ruff_cache .ipynb_checkpoints build dist target out
    .next .nuxt .output .turbo .parcel-cache .cache .gradle .terraform .idea .vscode *.swp *.swo *~ .project .settings
    .DS_Store Thumbs.db desktop.ini *.lnk *.log *.tmp *.bak *.cache logs coverage .coverage .nyc_output htmlcov
    .tool-results
"""
IGNORED = tuple(_NAMES.split())
"""Names that ls, glob and grep skip; matched against each part of a path (contract §6)."""
_ignored = re.compile("|".join(fnmatch.translate(pattern) for pattern in IGNORED))


def ignored(name: str) -> bool:
    return _ignored.match(name) is not None


def shown(name: str) -> str:
    """Returns a file name as text: the kernel allows bytes that are no UTF-8, JSON does not."""
    return os.fsencode(name).decode("utf-8", "replace")


def path_pattern(pattern: str) -> re.Pattern[str]:
    """Compiles a pattern: `*` and `?` stay within a name, `**/` spans directories. Without `/` it matches names at any
    depth.
    """
    pattern = pattern if "/" in pattern else f"**/{pattern}"
    pieces = []
    for token in re.findall(r"\*\*/|\*\*|\*|\?|\[!?\]?[^]/]*\]|.", pattern, re.DOTALL):
        if token == "**/":
            pieces.append("(?:.*/)?")
        elif token[0] == "[" and len(token) > 1:
            pieces.append("[" + token[1:-1].replace("\\", "\\\\").replace("!", "^", token[1] == "!") + "]")
        else:
            pieces.append({"**": ".*", "*": "[^/]*", "?": "[^/]"}.get(token, re.escape(token)))
    return re.compile("".join(pieces) + r"\Z", re.DOTALL)


def walk(
    directory: int, prefix: str, hidden: Container[str], depth: int = 0
) -> Iterator[tuple[int, str, str, os.stat_result]]:
    """Yields (descriptor of the directory, name, path, stat) of all entries below, sorted, without links, ignored names
    and `hidden` paths.
    """
    for name in sorted(os.listdir(directory)):
        if ignored(name) or f"{prefix}/{name}" in hidden:
            continue
        with contextlib.suppress(OSError):
            info = os.stat(name, dir_fd=directory, follow_symlinks=False)
            if stat.S_ISLNK(info.st_mode):
                continue
            yield directory, name, f"{prefix}/{name}", info
            if stat.S_ISDIR(info.st_mode) and depth < MAX_DEPTH:
                below = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=directory)
                try:
                    yield from walk(below, f"{prefix}/{name}", hidden, depth + 1)
                finally:
                    os.close(below)


def entries(request: dict[str, Any]) -> Iterator[tuple[int, str, str, os.stat_result]]:
    for fd, name, path in request["targets"]:
        if name == ".":
            yield from walk(fd, path, frozenset(request["hidden"]))
        else:
            yield fd, name, path, os.stat(name, dir_fd=fd, follow_symlinks=False)


def glob(request: dict[str, Any]) -> Iterator[str]:
    pattern, start = path_pattern(request["pattern"]), len(request["base"].rstrip("/")) + 1
    for _, _, path, info in entries(request):
        directory = stat.S_ISDIR(info.st_mode)
        if (request["dirs"] or not directory) and pattern.match(path[start:] or path.rpartition("/")[2]):
            yield shown(path) + ("/" if directory else "")


def grep(request: dict[str, Any]) -> Iterator[str]:
    source = re.escape(request["pattern"]) if request["literal"] else request["pattern"]
    pattern = re.compile(source, 0 if request["case_sensitive"] else re.IGNORECASE)
    names = path_pattern(request["glob"]) if request["glob"] else None
    start = len(request["base"].rstrip("/")) + 1
    for directory, name, path, info in entries(request):
        relative = path[start:] or name
        if not stat.S_ISREG(info.st_mode) or info.st_size > MAX_FILE or (names and not names.match(relative)):
            continue
        with contextlib.suppress(OSError):
            for number, line in enumerate(lines(directory, name), 1):
                if len(line) <= MAX_LINE and pattern.search(line):
                    yield f"{shown(path)}:{number}: {line[:SHOWN_LINE]}"


def lines(directory: int, name: str) -> list[str]:
    """Returns the lines of a text file; none for other files."""
    fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=directory)
    with open(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return []
        data = file.read(MAX_FILE + 1)
    if len(data) > MAX_FILE or b"\0" in data[:BINARY_PROBE]:
        return []
    return data.decode("utf-8", "replace").splitlines()


def main() -> None:
    os.nice(10)
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY, MAX_MEMORY))
    request = json.load(sys.stdin)
    matches: list[str] = []
    try:
        for line in (glob if request["op"] == "glob" else grep)(request):
            matches.append(line)
            if len(matches) > request["limit"]:
                break
    except (re.error, RecursionError, OverflowError) as error:
        json.dump({"error": str(error)}, sys.stdout)
        return
    json.dump({"found": matches[: request["limit"]], "more": len(matches) > request["limit"]}, sys.stdout)


if __name__ == "__main__":
    main()

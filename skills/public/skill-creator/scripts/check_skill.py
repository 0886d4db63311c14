"""Checks a skill's folder: python3 check_skill.py FOLDER. Exit code 1: there are errors; warnings alone are fine."""

from __future__ import annotations

import ast
import re
import sys
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

try:
    import yaml
except ModuleNotFoundError as error:
    print(f"missing Python package {error.name}. Fix: pip install pyyaml", file=sys.stderr)
    sys.exit(3)

NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
RESERVED = {"public", "custom"}
KEYS = {"name", "description", "license", "compatibility", "metadata", "allowed-tools"}
FOLDERS = {"references", "templates", "scripts", "assets", "examples", "tests"}
MAX_LINES, MAX_DESCRIPTION, MIN_DESCRIPTION, MAX_BYTES, MAX_FILES = 500, 1024, 60, 10 << 20, 200
CASES = "examples/cases.yaml"
_FRONT = re.compile(r"\A---\n(.*?)\n---\n(.*)\Z", re.DOTALL)
_LEFTOVER = re.compile(r"\{\{[^{}]*\}\}")
_PLACE = re.compile(r"(?:references|templates|scripts|assets|examples)/[\w./-]*\w")
_SECRET = re.compile(r"AKIA[0-9A-Z]{16}|ghp_\w{30,}|sk-[\w-]{20,}|-----BEGIN [A-Z ]*PRIVATE KEY")
_HOME = re.compile(r"(?:/home/|/Users/|C:\\\\Users\\\\)\w+")
_TEXT = {".md", ".py", ".sh", ".js", ".txt", ".yaml", ".yml", ".json", ".html", ".css"}

Remark = tuple[str, str]


def check(folder: Path) -> Iterator[Remark]:
    path = folder / "SKILL.md"
    if not path.is_file():
        yield "error", "there is no SKILL.md"
        return
    text = path.read_text(encoding="utf-8")
    match = _FRONT.match(text)
    if not match:
        yield "error", "SKILL.md: does not begin with front matter between two lines ---"
        return
    yield from front(match[1], folder)
    yield from body(match[2], folder)
    yield from files(folder)
    yield from cases(folder)


def front(text: str, folder: Path) -> Iterator[Remark]:
    try:
        values: Any = yaml.safe_load(text)
    except yaml.YAMLError as error:
        yield "error", f"front matter: {str(error).splitlines()[0]}; quote a value that has ': ' in it"
        return
    if not isinstance(values, dict):
        yield "error", "front matter: is not lines `key: value`"
        return
    if unknown := sorted(set(map(str, values)) - KEYS):
        yield "error", f"front matter: unknown {', '.join(unknown)}; known are {', '.join(sorted(KEYS))}"
    name, description = str(values.get("name", "")), str(values.get("description", ""))
    if not NAME.fullmatch(name) or len(name) > 64:
        yield "error", f"name: {name!r} is not of a-z, 0-9 and single hyphens between, at most 64"
    elif name != folder.resolve().name:
        yield "error", f"name: {name} is not the name of the folder, {folder.resolve().name}"
    yield from _description(description)


def _description(text: str) -> Iterator[Remark]:
    if len(text) > MAX_DESCRIPTION or re.search("[<>]", text):
        yield "error", f"description: is longer than {MAX_DESCRIPTION} or has < or >"
    if len(text) < MIN_DESCRIPTION:
        yield "error", "description: too short to choose by; say what it does and when to use it"
    if not re.search(r"\b(use (it |this )?(when|for|if|to)|when the user)\b", text, re.IGNORECASE):
        yield "warning", "description: does not say when to use it ('Use when …')"
    if re.search(r"\b(I|you|your)\b", text):
        yield "warning", "description: write it in the third person ('Creates …')"


def body(text: str, folder: Path) -> Iterator[Remark]:
    if text.count("\n") > MAX_LINES:
        yield "error", f"SKILL.md: {text.count(chr(10))} lines (at most {MAX_LINES}); move parts to references/"
    if not text.strip():
        yield "error", "SKILL.md: has no instructions"
    for place in sorted(set(_PLACE.findall(text))):
        if not (folder / place).exists():
            yield "error", f"SKILL.md: names {place}, which is not there"
    for path in sorted(folder.glob("references/*")):
        if path.name not in text:
            yield "warning", f"references/{path.name}: SKILL.md does not say when to read it"
    for path in sorted(folder.glob("scripts/*.py")):
        if path.name not in text and not _imported(path, folder):
            yield "warning", f"scripts/{path.name}: SKILL.md does not say how to use it"


def _imported(path: Path, folder: Path) -> bool:
    word = re.compile(rf"(?:from|import) {re.escape(path.stem)}\b")
    return any(word.search(other.read_text(encoding="utf-8")) for other in folder.glob("scripts/*.py") if other != path)


def files(folder: Path) -> Iterator[Remark]:
    paths = sorted(path for path in folder.rglob("*") if path.is_symlink() or path.is_file())
    paths = [path for path in paths if "__pycache__" not in path.parts]
    if len(paths) > MAX_FILES or sum(path.lstat().st_size for path in paths) > MAX_BYTES:
        yield "error", f"{len(paths)} files or over {MAX_BYTES >> 20} MB: too much for a skill"
    for path in paths:
        place = path.relative_to(folder)
        if path.is_symlink():
            yield "error", f"{place}: is a link; it is not packed"
        elif any(part.startswith(".") for part in place.parts):
            yield "warning", f"{place}: begins with a dot; it is not packed"
        elif place.name == "SKILL.md" and place.parent != Path():
            yield "error", f"{place}: a skill in a skill"
        elif len(place.parts) > 1 and place.parts[0] not in FOLDERS:
            yield "warning", f"{place}: usual folders are {', '.join(sorted(FOLDERS))}"
        if not path.is_symlink() and path.suffix in _TEXT:
            yield from content(path, place)


def content(path: Path, place: Path) -> Iterator[Remark]:
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        yield "error", f"{place}: is not UTF-8"
        return
    for number, line in enumerate(text.splitlines(), start=1):
        if _SECRET.search(line):
            yield "error", f"{place}:{number}: a secret"
        if _HOME.search(line):
            yield "warning", f"{place}:{number}: a path of one machine"
        if hidden := [char for char in line if unicodedata.category(char) in ("Cf", "Co") and char != "\u00ad"]:
            yield "error", f"{place}:{number}: invisible character U+{ord(hidden[0]):04X}"
        if (
            place.parts[0] in ("SKILL.md", "references", "examples")
            and (match := _LEFTOVER.search(line))
            and " " in match[0]
        ):
            yield "error", f"{place}:{number}: leftover {match[0]}"
    if path.suffix == ".py":
        try:
            ast.parse(text)
        except SyntaxError as error:
            yield "error", f"{place}:{error.lineno}: {error.msg}"


def cases(folder: Path) -> Iterator[Remark]:
    path = folder / CASES
    if not path.is_file():
        yield "warning", f"{CASES}: is missing, so nobody knows when the skill should load"
        return
    try:
        entries = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        yield "error", f"{CASES}: {str(error).splitlines()[0]}"
        return
    if not isinstance(entries, list) or not all(
        isinstance(entry, dict) and isinstance(entry.get("prompt"), str) and isinstance(entry.get("loads"), bool)
        for entry in entries
    ):
        yield "error", f"{CASES}: is not a list of {{prompt: text, loads: true or false}}"
        return
    loads = [entry["loads"] for entry in entries]
    if loads.count(True) < 3 or loads.count(False) < 3:
        yield (
            "warning",
            f"{CASES}: {loads.count(True)} that should load and {loads.count(False)} that should not (three of each)",
        )


def main() -> int:
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    folder = Path(sys.argv[1])
    try:
        remarks = list(check(folder))
    except (OSError, UnicodeDecodeError) as error:
        print(f"{folder}: {error}", file=sys.stderr)
        return 2
    errors = sum(kind == "error" for kind, _ in remarks)
    print("\n".join(f"{kind}: {line}" for kind, line in remarks))
    print(f"{errors} errors, {len(remarks) - errors} warnings")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())

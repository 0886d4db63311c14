"""Checks that the places that a text names are there: python3 check_refs.py answer.md REPO."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from repo import Problem, files, text

_PLACE = re.compile(r"`([\w./@+-]+/[\w.@+-]+|[\w@+-]+\.\w{1,8})(?::(\d+)(?:-(\d+))?)?`")
"""A path in backticks, maybe with lines behind it."""


def problems(answer: str, repo: Path) -> tuple[int, list[str]]:
    """Returns how many places the text names, and those that are not there."""
    names = files(repo)
    folders = {parent.as_posix() for name in names for parent in Path(name).parents}
    wrong, count = [], 0
    for path, first, last in _PLACE.findall(answer):
        plain = path.removeprefix("./").rstrip("/")
        matches = [name for name in names if name == plain or name.endswith(f"/{plain}")]
        if not matches and (plain in folders or ("/" not in plain and not first)):
            continue
        count += 1
        most = max((len(text(repo, name).splitlines()) for name in matches), default=0)
        if not matches:
            wrong.append(f"{path}: no such file")
        elif first and max(int(first), int(last or 0)) > most:
            wrong.append(f"{path}:{first}{f'-{last}' if last else ''}: the file has {most} lines")
    return count, wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("answer", type=Path)
    parser.add_argument("repo", type=Path)
    options = parser.parse_args()
    try:
        count, wrong = problems(options.answer.read_text(encoding="utf-8"), options.repo)
    except (Problem, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    print("\n".join([*wrong, f"{count - len(wrong)} of {count} places are there"]))
    if not count:
        print("no places are named as `path:line`", file=sys.stderr)
    return 1 if wrong or not count else 0


if __name__ == "__main__":
    sys.exit(main())

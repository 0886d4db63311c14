"""Finds where something lives, definitions first: python3 find.py REPO "regex" [--limit 40]."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from repo import PROSE, Problem, files, is_foreign, is_test, language, text

_DEFINES = (
    r"\b(?:def|class|func|fn|function|interface|type|struct|enum|trait|module|const|let|var|package|CREATE TABLE)\s+"
)
KINDS = ("definition", "use", "test", "docs", "other")
WIDTH = 160


def hits(repo: Path, pattern: re.Pattern[str]) -> list[tuple[int, str, int, str]]:
    """Returns the kind, place and line of each hit, the most telling first."""
    defines = re.compile(rf"{_DEFINES}(?:\([^)]*\)\s*)?[\w.]*(?:{pattern.pattern})", pattern.flags)
    found = []
    for name in files(repo):
        base = 4 if is_foreign(name) else 3 if language(name) in PROSE else 2 if is_test(name) else 1
        for number, line in enumerate(text(repo, name).splitlines(), 1):
            if pattern.search(line):
                kind = 0 if base == 1 and defines.search(line) else base
                found.append((kind, name, number, line.strip()[:WIDTH]))
    return sorted(found)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("repo", type=Path)
    parser.add_argument("pattern")
    parser.add_argument("--limit", type=int, default=40)
    options = parser.parse_args()
    try:
        found = hits(options.repo, re.compile(options.pattern, re.IGNORECASE))
    except (Problem, re.error) as error:
        print(error, file=sys.stderr)
        return 2
    for kind, name, number, line in found[: options.limit]:
        print(f"{KINDS[kind]}: {name}:{number}: {line}")
    if len(found) > options.limit:
        print(f"({options.limit} of {len(found)} hits; --limit shows more)")
    if not found:
        print("no hits", file=sys.stderr)
    return 0 if found else 1


if __name__ == "__main__":
    sys.exit(main())

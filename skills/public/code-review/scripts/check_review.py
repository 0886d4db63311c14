"""Checks a written review: python3 check_review.py review.md REPO [--base main] | --diff FILE.

Each finding names a place as `path:line` whose line exists, has a severity, and quotes code that stands there.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator

from changes import Problem, arguments, git, load

SEVERITIES = ("critical", "major", "minor", "question")
_FINDING = re.compile(r"^###\s+(.*)$", re.MULTILINE)
_HEAD = re.compile(r"^(\w+):\s+.*`([^`]+?):(\d+)(?:-\d+)?`")
_QUOTE = re.compile(r"^```\w*\n(.*?)^```", re.MULTILINE | re.DOTALL)
WINDOW = 6


def check(review: str, lines_of: dict[str, dict[int, str]], changed: dict[str, set[int]]) -> Iterator[str]:
    pieces = _FINDING.split(review)
    if len(pieces) == 1:
        if "no findings" not in review.lower():
            yield "there is no finding (### severity: title `path:line`), and no sentence 'No findings'"
        return
    for title, body in zip(pieces[1::2], pieces[2::2], strict=True):
        match = _HEAD.match(title)
        if not match:
            yield f"{title!r}: is not 'severity: title `path:line`'"
            continue
        severity, path, line = match[1].lower(), match[2], int(match[3])
        if severity not in SEVERITIES:
            yield f"{title!r}: {match[1]} is not one of {', '.join(SEVERITIES)}"
        if path not in lines_of:
            yield f"{title!r}: {path} is not part of the change"
            continue
        if line not in lines_of[path]:
            yield f"{title!r}: {path} has no line {line} that can be seen here"
        elif not any(abs(line - place) <= WINDOW for place in changed[path]):
            yield f"{title!r}: line {line} is not near a changed line"
        yield from _quotes(title, body, lines_of[path], line)
        if severity in ("critical", "major") and not re.search(r"(?im)^\**fix\b", body):
            yield f"{title!r}: has no line 'Fix: …'"


def _quotes(title: str, body: str, lines: dict[int, str], line: int) -> Iterator[str]:
    quote = _QUOTE.search(body)
    if not quote:
        yield f"{title!r}: quotes no code"
        return
    near = {" ".join(text.split()) for number, text in lines.items() if abs(number - line) <= 4 * WINDOW}
    for text in filter(None, (" ".join(row.split()) for row in quote[1].splitlines())):
        if text not in ("...", "…") and text not in near:
            yield f"{title!r}: {text[:60]!r} does not stand near line {line}"


def main() -> int:
    options = arguments(__doc__, "review").parse_args()
    try:
        files = load(options)
        contents = {file.path: dict(file.added) for file in files}
        if not options.diff:
            for file in files:
                try:
                    text = (
                        git(options.repo, "show", f"{options.head}:{file.path}")
                        if options.base
                        else (options.repo / file.path).read_text(encoding="utf-8")
                    )
                except (Problem, OSError, UnicodeDecodeError):
                    continue
                contents[file.path] = dict(enumerate(text.splitlines(), start=1))
        changed = {file.path: set(file.added) | set(file.removed) for file in files}
        problems = list(check(options.review.read_text(encoding="utf-8"), contents, changed))
    except (Problem, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    print(f"{len(problems)} problems")
    print("\n".join(f"- {problem}" for problem in problems))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())

"""Shows what a change touches, riskiest first: python3 changes.py REPO [--base main] [--head HEAD] | --diff FILE.

Without --base: the commits since the branch left the main one, or else the uncommitted changes.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

SECONDS = 60
_HUNK = re.compile(r"^@@ -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@ ?(.*)")
RISKS = (
    (5, "access", re.compile(r"auth|login|session|permission|password|token|crypt|secret|acl|oauth", re.I)),
    (5, "data", re.compile(r"migrat|schema|\.sql$|models?\b|backup|delete", re.I)),
    (4, "money", re.compile(r"pay|invoice|billing|price|refund|tax", re.I)),
    (3, "concurrency", re.compile(r"lock|thread|async|queue|worker|retry|cache", re.I)),
    (
        3,
        "delivery",
        re.compile(r"dockerfile|\.github|\.gitlab|deploy|terraform|makefile|\.lock$|requirements|package\.json", re.I),
    ),
)
_TEST = re.compile(r"(^|/)(tests?|specs?|__tests__)/|(^|/)test_|_test\.|\.(test|spec)\.", re.I)
_GENERATED = re.compile(r"(^|/)(dist|vendor|node_modules)/|\.min\.|\.lock$|package-lock\.json|\.snap$", re.I)


class Problem(Exception):
    """A mistake in the request, or what git says."""


@dataclass
class File:
    path: str
    added: dict[int, str] = field(default_factory=dict)
    removed: dict[int, str] = field(default_factory=dict)
    places: list[str] = field(default_factory=list)

    @property
    def is_test(self) -> bool:
        return bool(_TEST.search(self.path))

    @property
    def is_generated(self) -> bool:
        return bool(_GENERATED.search(self.path))

    def risks(self) -> tuple[int, list[str]]:
        text = self.path + "\n" + "\n".join([*self.added.values(), *self.removed.values()])
        named = [(weight, name) for weight, name, pattern in RISKS if pattern.search(text)]
        size = min(len(self.added) + len(self.removed), 300) // 50
        score = 0 if self.is_generated else sum(weight for weight, _ in named) + size
        return (1 if self.is_test and score else score), [name for _, name in named]


def git(repo: Path, *words: str) -> str:
    command = ["git", "-c", f"safe.directory={repo.resolve()}", "-C", str(repo), *words]
    try:
        process = subprocess.run(
            command, capture_output=True, text=True, timeout=SECONDS, check=False, errors="replace"
        )
    except FileNotFoundError:
        print(
            "git is missing. Fix: install git, or save the change with `git diff` and use --diff FILE", file=sys.stderr
        )
        sys.exit(3)
    if process.returncode:
        raise Problem(f"git {' '.join(words)}: {process.stderr.strip()}")
    return process.stdout


def span(repo: Path, base: str | None, head: str) -> list[str]:
    """Returns what git is to compare, as arguments."""
    if base:
        return [f"{base}...{head}"]
    for name in ("origin/main", "origin/master", "main", "master"):
        try:
            fork = git(repo, "merge-base", name, head).strip()
        except Problem:
            continue
        if fork != git(repo, "rev-parse", head).strip():
            return [f"{fork}..{head}"]
    return ["HEAD"]


def parse(diff: str) -> list[File]:
    files: list[File] = []
    old = new = 0
    for line in diff.splitlines():
        if line.startswith("diff --git"):
            files.append(File(line.rpartition(" b/")[2]))
            old = new = 0
        elif match := _HUNK.match(line):
            old, new = int(match[1]), int(match[2])
            if match[3] and match[3] not in files[-1].places:
                files[-1].places.append(match[3].strip())
        elif new and line.startswith("+"):
            files[-1].added[new] = line[1:]
            new += 1
        elif new and line.startswith("-"):
            files[-1].removed[old] = line[1:]
            old += 1
        elif new and not line.startswith("\\"):
            old, new = old + 1, new + 1
    return files


def load(options: argparse.Namespace) -> list[File]:
    if options.diff:
        diff = options.diff.read_text(encoding="utf-8", errors="replace")
    else:
        if options.repo is None:
            raise Problem("a repository or --diff is needed")
        git(options.repo, "rev-parse", "--git-dir")  # says it best where there is no repository
        words = span(options.repo, options.base, options.head)
        diff = git(options.repo, "diff", "--no-color", "--no-ext-diff", "--no-textconv", "-M", "-U3", *words)
    if not (files := parse(diff)):
        raise Problem(
            "there are no changes; name them by --base and --head (uncommitted new files need `git add -N .`)"
        )
    return files


def arguments(doc: str | None, *first: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in first:
        parser.add_argument(name, type=Path)
    parser.add_argument("repo", type=Path, nargs="?")
    parser.add_argument("--base")
    parser.add_argument("--head", default="HEAD")
    parser.add_argument("--diff", type=Path, help="a unified diff instead of a repository")
    return parser


def main() -> int:
    options = arguments(__doc__).parse_args()
    try:
        files = load(options)
        log = (
            ""
            if options.diff
            else git(options.repo, "log", "--oneline", "-20", *span(options.repo, options.base, options.head))
        )
    except (Problem, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    added, removed = (
        sum(len(lines) for lines in kind) for kind in ([f.added for f in files], [f.removed for f in files])
    )
    print(f"{len(files)} files, +{added} -{removed}\n{log}")
    print("| risk | file | + | - | why | in |\n|--:|---|--:|--:|---|---|")
    for file in sorted(files, key=lambda file: (-file.risks()[0], file.path)):
        score, names = file.risks()
        reasons = [*names, *(["test"] if file.is_test else [])] or ["no sign of risk in its name, size and lines"]
        why = "generated" if file.is_generated else ", ".join(reasons)
        size = f"{len(file.added)} | {len(file.removed)}"
        print(f"| {score} | {file.path} | {size} | {why} | {'; '.join(file.places[:4])} |")
    code = [file for file in files if not file.is_test and not file.is_generated and file.added]
    if code and not any(file.is_test for file in files):
        print("\nNo test was changed.")
    if added + removed > 800:
        print("\nOver 800 lines: review in parts, riskiest first, and say which parts you did not read.")
    return 0


if __name__ == "__main__":
    sys.exit(main())

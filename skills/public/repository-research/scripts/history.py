"""Shows what the history of a repository tells: python3 history.py REPO [--json] [--since DATE]."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from datetime import UTC, datetime, timedelta
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

from repo import Problem, git, is_foreign, is_repository

MOST_COMMITS, MOST_FILES, MOST = 20_000, 20, 12
"""Commits that are read; files above which a commit says nothing about which belong together; entries of a list."""


class Commit(NamedTuple):
    when: datetime
    who: str
    files: list[str]


def commits(repo: Path, since: str | None) -> list[Commit]:
    form = "--format=%x01%aI%x02%aN"
    limits = [f"--max-count={MOST_COMMITS}", *([f"--since={since}"] if since else [])]
    listed = []
    for part in git(repo, "log", "--no-merges", "--name-only", form, *limits).split("\x01")[1:]:
        head, _, names = part.partition("\n")
        when, _, who = head.partition("\x02")
        files = [name for name in names.splitlines() if name and not is_foreign(name)]
        listed.append(Commit(datetime.fromisoformat(when).astimezone(UTC), who, files))
    return listed


def history(repo: Path, since: str | None) -> dict[str, Any]:
    if not is_repository(repo):
        raise Problem(f"{repo}: is no git repository, so it has no history")
    listed = commits(repo, since)
    if not listed:
        raise Problem(f"{repo}: has no commits" + (f" since {since}" if since else ""))
    newest = max(commit.when for commit in listed)
    year = [commit for commit in listed if commit.when > newest - timedelta(days=365)]
    quarter = [commit for commit in listed if commit.when > newest - timedelta(days=90)]
    people = Counter(commit.who for commit in year)
    there = set(git(repo, "ls-files").splitlines())
    hot = Counter(name for commit in year for name in commit.files if name in there)
    return {
        "head": git(repo, "rev-parse", "--short", "HEAD").strip(),
        "shallow": git(repo, "rev-parse", "--is-shallow-repository").strip() == "true",
        "commits": len(listed),
        "first": min(commit.when for commit in listed).date().isoformat(),
        "last": newest.date().isoformat(),
        "year": len(year),
        "quarter": len(quarter),
        "people": dict(people.most_common(MOST)),
        "releases": git(
            repo, "tag", "--sort=-creatordate", "--format=%(refname:short) %(creatordate:short)"
        ).splitlines()[:MOST],
        "hot": dict(hot.most_common(MOST)),
        "together": together(year, there),
    }


def together(listed: list[Commit], there: set[str]) -> dict[str, int]:
    """Returns pairs of files of different folders that change in the same commits: a hidden dependency."""
    pairs: Counter[tuple[str, str]] = Counter()
    for commit in listed:
        names = sorted(there.intersection(commit.files))
        if 1 < len(names) <= MOST_FILES:
            pairs.update(pair for pair in combinations(names, 2) if Path(pair[0]).parent != Path(pair[1]).parent)
    return {f"{first} + {second}": count for (first, second), count in pairs.most_common(MOST) if count > 2}


def shown(known: dict[str, Any]) -> str:
    total = sum(known["people"].values())
    first = next(iter(known["people"].items()), ("nobody", 0))
    lines = [
        *(["SHALLOW: the history is cut; `git fetch --unshallow` gets the rest"] if known["shallow"] else []),
        f"at {known['head']}: {known['commits']:,} commits from {known['first']} to {known['last']}",
        f"last year {known['year']:,}, last 90 days {known['quarter']:,} (counted back from the last commit)",
        f"people of the last year: {', '.join(f'{name} {count}' for name, count in known['people'].items())}",
        f"the first of them made {first[1] / max(total, 1):.0%}",
        f"releases: {', '.join(known['releases']) or 'no tags'}",
        *(f"hot: {name} ({count} commits)" for name, count in known["hot"].items()),
        *(f"together: {pair} ({count})" for pair, count in known["together"].items()),
    ]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("repo", type=Path)
    parser.add_argument("--since", help="as 2025-01-01")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    try:
        known = history(options.repo, options.since)
    except Problem as error:
        print(error, file=sys.stderr)
        return 2
    print(json.dumps(known, indent=1, ensure_ascii=False) if options.json else shown(known))
    return 0


if __name__ == "__main__":
    sys.exit(main())

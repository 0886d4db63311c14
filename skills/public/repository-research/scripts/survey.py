"""Shows what a repository consists of: python3 survey.py REPO [--json]."""

from __future__ import annotations

import argparse
import json
import re
import sys
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

from repo import PROSE, Problem, files, is_foreign, is_test, language, text

MANIFESTS = (
    *("package.json", "pyproject.toml", "setup.py", "requirements.txt", "go.mod", "Cargo.toml", "pom.xml", "Gemfile"),
    *("build.gradle", "build.gradle.kts", "composer.json", "mix.exs", "CMakeLists.txt", "Makefile", "justfile"),
    *("Dockerfile", "docker-compose.yml", "compose.yaml", "flake.nix", "pubspec.yaml", "Package.swift"),
)
_DOC = re.compile(
    r"(?i)(^|/)(readme|contributing|architecture|changelog|agents|claude|security|design)[^/]*\.(md|rst|txt)$"
)
_CI = re.compile(r"^\.github/workflows/|^\.gitlab-ci|^\.circleci/|Jenkinsfile|azure-pipelines")
_LICENCE = re.compile(r"(?i)^(licen[cs]e|copying)[^/]*$")
LICENCES = {
    "MIT License": "MIT", "Apache License": "Apache-2.0", "GNU AFFERO": "AGPL", "GNU LESSER": "LGPL",
    "GNU GENERAL": "GPL", "Mozilla Public": "MPL-2.0", "Redistribution and use": "BSD", "ISC License": "ISC",
    "Unlicense": "Unlicense",
}  # fmt: skip
ENTRIES = {
    "Python": re.compile(r"^if __name__ == ['\"]__main__['\"]:", re.MULTILINE),
    "Go": re.compile(r"^func main\(\)", re.MULTILINE),
    "Rust": re.compile(r"^(?:pub )?(?:async )?fn main\(\)", re.MULTILINE),
    "Java": re.compile(r"public static void main\("),
    "C": re.compile(r"^int main\(", re.MULTILINE),
    "C++": re.compile(r"^int main\(", re.MULTILINE),
}
TARGET = re.compile(r"^([a-zA-Z][\w-]*)\s*:(?!=)", re.MULTILINE)
MOST = 25


def survey(repo: Path) -> dict[str, Any]:
    names = files(repo)
    own = [name for name in names if not is_foreign(name)]
    lines: Counter[str] = Counter()
    tests: Counter[str] = Counter()
    folders: Counter[str] = Counter()
    entries = []
    for name in own:
        kind = language(name)
        if kind is None:
            continue
        body = text(repo, name)
        count = sum(1 for line in body.splitlines() if line.strip())
        (tests if is_test(name) else lines)[kind] += count
        if kind not in PROSE:
            folders[name.split("/")[0] if "/" in name else "."] += count
        if not is_test(name) and (pattern := ENTRIES.get(kind)) and (match := pattern.search(body)):
            entries.append(f"{name}:{body[: match.start()].count(chr(10)) + 1}")
    manifests = [name for name in own if Path(name).name in MANIFESTS]
    return {
        "files": len(names),
        "foreign": len(names) - len(own),
        "lines": dict(lines.most_common()),
        "test_lines": dict(tests.most_common()),
        "folders": dict(folders.most_common(MOST)),
        "manifests": manifests,
        "commands": commands(repo, manifests),
        "dependencies": dependencies(repo, manifests),
        "entries": [*declared(repo, manifests), *entries],
        "docs": [name for name in own if _DOC.search(name)],
        "ci": [name for name in own if _CI.search(name)],
        "licence": licence(repo, names),
    }


def _parsed(repo: Path, name: str) -> dict[str, Any]:
    try:
        body = text(repo, name)
        value = json.loads(body) if name.endswith(".json") else tomllib.loads(body)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def commands(repo: Path, manifests: list[str]) -> dict[str, str]:
    """Returns how the project itself says that it is built, run and tested."""
    known = {}
    for name in manifests:
        match Path(name).name:
            case "package.json":
                scripts = _parsed(repo, name).get("scripts") or {}
                known |= {f"{name}: npm run {key}": str(value)[:100] for key, value in scripts.items()}
            case "Makefile" | "justfile":
                tool = "make" if name.endswith("Makefile") else "just"
                known |= {f"{name}: {tool} {target}": "" for target in dict.fromkeys(TARGET.findall(text(repo, name)))}
    return dict(list(known.items())[: 2 * MOST])


def declared(repo: Path, manifests: list[str]) -> list[str]:
    """Returns the programs that manifests declare."""
    entries = []
    for name in manifests:
        if name.endswith("pyproject.toml"):
            project = _parsed(repo, name).get("project") or {}
            entries += [f"{name}: {key} = {value}" for key, value in (project.get("scripts") or {}).items()]
        elif name.endswith("package.json"):
            package = _parsed(repo, name)
            programs = package.get("bin") or {}
            programs = programs if isinstance(programs, dict) else {package.get("name", "bin"): programs}
            entries += [f"{name}: {key} = {value}" for key, value in programs.items()]
            entries += [f"{name}: main = {package['main']}"] if package.get("main") else []
    return entries


def dependencies(repo: Path, manifests: list[str]) -> dict[str, list[str]]:
    known: dict[str, list[str]] = {}
    for name in manifests:
        match Path(name).name:
            case "package.json":
                known[name] = sorted(_parsed(repo, name).get("dependencies") or {})
            case "pyproject.toml":
                parsed = _parsed(repo, name)
                listed = (parsed.get("project") or {}).get("dependencies") or []
                poetry = ((parsed.get("tool") or {}).get("poetry") or {}).get("dependencies") or {}
                known[name] = sorted({*(re.split(r"[\s<>=!~;\[(@]", one)[0] for one in listed), *poetry} - {"python"})
            case "requirements.txt":
                found = re.findall(r"(?m)^([A-Za-z0-9][\w.-]*)", text(repo, name))
                known[name] = sorted(set(found))
            case "go.mod":
                direct = re.findall(
                    r"(?m)^\s*(?:require\s+)?([\w.-]+\.[\w./-]+) v\S+(?!.*// indirect)\s*$", text(repo, name)
                )
                known[name] = sorted(set(direct))
            case "Cargo.toml":
                known[name] = sorted(_parsed(repo, name).get("dependencies") or {})
    return {name: listed for name, listed in known.items() if listed}


def licence(repo: Path, names: list[str]) -> str:
    for name in names:
        if _LICENCE.match(name):
            body = text(repo, name)[:3000]
            kind = next(
                (short for words, short in LICENCES.items() if words.lower() in body.lower()), "of its own words"
            )
            return f"{kind} ({name})"
    return "none in the root"


def shown(known: dict[str, Any]) -> str:
    total, tests = sum(known["lines"].values()), sum(known["test_lines"].values())
    parts = [
        f"{known['files']} files ({known['foreign']} generated, locked or vendored), "
        f"{total:,} lines, {tests:,} of tests",
        "languages: " + ", ".join(f"{name} {count:,}" for name, count in known["lines"].items()),
        "folders: " + ", ".join(f"{name} {count:,}" for name, count in known["folders"].items()),
        f"licence: {known['licence']}",
    ]
    for title in ("manifests", "entries", "docs", "ci"):
        listed = known[title]
        more = f" (and {len(listed) - MOST} more)" if len(listed) > MOST else ""
        parts.append(f"{title}: {', '.join(listed[:MOST]) or 'none'}{more}")
    parts += [f"depends on ({name}): {', '.join(listed[:60])}" for name, listed in known["dependencies"].items()]
    parts += [f"command: {name}" + (f"  # {text}" if text else "") for name, text in known["commands"].items()]
    return "\n".join(parts)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("repo", type=Path)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    try:
        known = survey(options.repo)
    except Problem as error:
        print(error, file=sys.stderr)
        return 2
    print(json.dumps(known, indent=1, ensure_ascii=False) if options.json else shown(known))
    return 0


if __name__ == "__main__":
    sys.exit(main())

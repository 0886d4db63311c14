"""The files of a repository, and what kind each is."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

LANGUAGES = {
    **dict.fromkeys((".py", ".pyi"), "Python"),
    **dict.fromkeys((".js", ".jsx", ".mjs", ".cjs"), "JavaScript"),
    **dict.fromkeys((".ts", ".tsx"), "TypeScript"),
    **dict.fromkeys((".c", ".h"), "C"),
    **dict.fromkeys((".cc", ".cpp", ".hpp", ".cxx"), "C++"),
    **dict.fromkeys((".sh", ".bash"), "Shell"),
    **dict.fromkeys((".html", ".vue", ".svelte"), "HTML"),
    **dict.fromkeys((".css", ".scss", ".less"), "CSS"),
    **{".go": "Go", ".rs": "Rust", ".java": "Java", ".kt": "Kotlin", ".rb": "Ruby", ".php": "PHP", ".cs": "C#"},
    **{".swift": "Swift", ".scala": "Scala", ".ex": "Elixir", ".lua": "Lua", ".sql": "SQL", ".zig": "Zig"},
    **{".md": "Markdown", ".rst": "reStructuredText", ".r": "R", ".jl": "Julia", ".dart": "Dart", ".hs": "Haskell"},
}
PROSE = {"Markdown", "reStructuredText"}
_FOREIGN = re.compile(
    r"(^|/)(node_modules|vendor|third_party|dist|build|\.venv|venv|target|site-packages|__pycache__|\.next)/"
    r"|\.min\.(js|css)$|\.lock$|(^|/)(package-lock\.json|go\.sum|pnpm-lock\.yaml)$|_pb2\.py$|\.pb\.go$|\.snap$"
)
_TEST = re.compile(r"(^|/)(tests?|specs?|__tests__|testing)/|(^|/)test_[^/]+$|[._-](test|spec)\.\w+$|_test\.\w+$")
MOST_BYTES = 2 << 20


class Problem(Exception):
    """A mistake in the request, with its place."""


def git(repo: Path, *words: str, fails: bool = True) -> str:
    command = ["git", "-c", f"safe.directory={repo.resolve()}", "-C", str(repo), *words]
    try:
        process = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, errors="replace")
    except FileNotFoundError:
        print("git is missing. Fix: install git", file=sys.stderr)
        sys.exit(3)
    if process.returncode and fails:
        raise Problem(f"git {words[0]}: {process.stderr.strip()[:300]}")
    return "" if process.returncode else process.stdout


def is_repository(repo: Path) -> bool:
    return bool(git(repo, "rev-parse", "--git-dir", fails=False)) if repo.is_dir() else False


def files(repo: Path) -> list[str]:
    """Returns the tracked files, or without git all that lie there. Links are left out."""
    if not repo.is_dir():
        raise Problem(f"{repo}: no such folder")
    if is_repository(repo):
        names = git(repo, "ls-files", "-z").split("\0")
    else:
        names = [path.relative_to(repo).as_posix() for path in repo.rglob("*")]
    return sorted(name for name in names if name and (repo / name).is_file() and not (repo / name).is_symlink())


def is_foreign(name: str) -> bool:
    """Tells whether a file is generated, locked or of somebody else."""
    return bool(_FOREIGN.search(name))


def is_test(name: str) -> bool:
    return bool(_TEST.search(name))


def language(name: str) -> str | None:
    return LANGUAGES.get(Path(name).suffix.lower())


def text(repo: Path, name: str) -> str:
    """Returns the text of a file, "" of a binary or very large one."""
    path = repo / name
    try:
        data = path.read_bytes() if path.stat().st_size <= MOST_BYTES else b""
    except OSError:
        return ""
    return "" if b"\0" in data[:8000] else data.decode("utf-8", "replace")

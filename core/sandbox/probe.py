"""Facts about the machine of commands that a newcomer would find out: its system, programs and Python packages."""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

PROGRAMS = {
    "bash": "--version",
    "python3": "--version",
    "pip": "",
    "node": "--version",
    "npm": "",
    "git": "--version",
    "gcc": "-dumpfullversion",
    "go": "version",
    "cargo": "--version",
    "java": "",
    "make": "",
    "cmake": "",
    "rg": "",
    "jq": "",
    "curl": "",
    "wget": "",
    "sqlite3": "",
    "psql": "",
    "ffmpeg": "",
    "convert": "",
    "pandoc": "",
    "soffice": "",
    "tesseract": "",
    "pdftotext": "",
    "chromium": "",
    "uv": "",
}
"""Programs that are looked for, and how each is asked for its version; it is not, where that is slow or no matter."""
PACKAGES = (
    *("numpy", "pandas", "scipy", "scikit-learn", "matplotlib", "pillow", "openpyxl", "python-docx", "python-pptx"),
    *("reportlab", "pypdfium2", "pypdf", "beautifulsoup4", "lxml", "requests", "httpx", "pyyaml", "pyarrow", "polars"),
    *("duckdb", "sympy", "flask", "fastapi", "playwright", "pytest"),
)
"""Python packages that are looked for."""
LONGEST = 60
"""Characters of a name or a version."""
_ASK = 'p() {{ command -v "$1" >/dev/null 2>&1 || return 0; v=; [ -z "$2" ] || v=$("$1" "$2" 2>/dev/null </dev/null); '
_TELL = 'printf \'program\\t%s\\t%s\\n\' "$1" "$(echo "$v" | head -n 1)"; }}\n{calls}\n'
_SYSTEM = """\
[ -r /etc/os-release ] && . /etc/os-release || {{ [ -r /usr/lib/os-release ] && . /usr/lib/os-release; }}
printf 'system\\t%s\\t%s\\n' "${{PRETTY_NAME:-$(uname -s)}}" "$(uname -m)"
printf 'cores\\t%s\\t\\n' "$(nproc 2>/dev/null)"
"""
_PYTHON = """\
python3 -c '
from importlib.metadata import version
for name in "{packages}".split():
    try: print("package", name, version(name), sep="\\t")
    except Exception: pass
' 2>/dev/null || :
"""
SCRIPT = (_SYSTEM + _ASK + _TELL + _PYTHON).format(
    calls="\n".join(f"p {name} {option}".rstrip() for name, option in PROGRAMS.items()),
    packages=" ".join(PACKAGES),
)
"""The command that finds out. It takes any POSIX shell, and leaves nothing behind."""
_VERSION = re.compile(r"\d+(?:\.\d+)+|\d+")
_PLAIN = re.compile(r"[\w .()+/-]+\Z")


class Probe(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The machine as it was found. Versions by name, empty if they were not asked for."""

    system: str = ""
    machine: str = ""
    cores: int = 0
    programs: dict[str, str] = {}
    packages: dict[str, str] = {}


def parsed(output: str) -> Probe:
    """Returns what the script found. A line of another form is left out: an image may have any programs."""
    rows = [parts for line in output.splitlines() if len(parts := line.split("\t")) == 3]
    system = next((row for row in rows if row[0] == "system" and all(map(_is_plain, row[1:]))), ["", "", ""])
    cores = next((row[1] for row in rows if row[0] == "cores" and row[1].isdigit()), "0")
    return Probe(
        system=system[1],
        machine=system[2],
        cores=int(cores[:4]),
        programs=_versions(rows, "program", PROGRAMS),
        packages=_versions(rows, "package", PACKAGES),
    )


def _versions(rows: Iterable[list[str]], kind: str, names: Iterable[str]) -> dict[str, str]:
    there = {row[1]: row[2] for row in rows if row[0] == kind}
    hits = {name: _VERSION.search(there[name]) for name in names if name in there}
    return {name: hit.group()[:LONGEST] if hit else "" for name, hit in hits.items()}


def _is_plain(text: str) -> bool:
    return len(text) <= LONGEST and _PLAIN.match(text) is not None

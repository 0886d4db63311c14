"""The Python of commands: the server's interpreter with chosen packages of the server's installation.

Only the packages below and what they need are visible, with the metadata by which they know their versions. The rest of
the installation (plug-ins, entry points, records of where packages came from) is not. Each mount costs a third of a
millisecond per command, so the packages are collected in one folder of hard links beside the installation, as Python
keeps its compiled code there. Where the server may not write there or link, each package is mounted by itself.
"""

from __future__ import annotations

import csv
import functools
import hashlib
import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from adapters.sandboxes.confine.prepared import prepared

ROOT = "/python"
"""A virtual environment in the sandbox. The PATH does not show the interpreter's place on the host."""
BASE = f"{ROOT}/base"
"""Link to the interpreter's prefix if that is not bound anyway."""
PACKAGES = (
    *("beautifulsoup4", "duckdb", "manimgx-fonts", "manimgx-fonts-cjk", "markdown-it-py", "matplotlib", "openpyxl"),
    *("pandas", "pdfplumber", "pillow", "pypdf", "pypdfium2", "python-docx", "python-pptx", "pyyaml", "reportlab"),
)
ENVIRONMENT = {"MPLCONFIGDIR": "/tmp/matplotlib", "XDG_CACHE_HOME": "/tmp/cache", "OPENBLAS_NUM_THREADS": "1"}
"""Keeps caches out of the workspace. Each thread of OpenBLAS would reserve a share of the limit of memory."""
_SITE = f"{ROOT}/lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
_INFO = ".dist-info"


def binds(config: Path) -> list[str]:
    """Returns the arguments for bubblewrap. `config` is the file that `write_config` writes."""
    base = os.path.realpath(sys.base_prefix)
    words = ["--ro-bind-try", str(config), f"{ROOT}/pyvenv.cfg"]
    for name in ("python", "python3"):
        words += ["--symlink", f"{_home()}/{_interpreter().name}", f"{ROOT}/bin/{name}"]
    if is_outside():
        words += ["--ro-bind", base, base, "--symlink", base, BASE]
    if (folder := _collected()) is not None:
        return [*words, "--ro-bind", str(folder), _SITE]
    for path in _paths().entries:
        words += ["--ro-bind-try", str(path), f"{_SITE}/{path.name}"]
    for path in _paths().metadata:
        words += ["--ro-bind-try", str(path), f"{_SITE}/{path.parent.name}/{path.name}"]
    return words


def write_config(path: Path) -> None:
    """Writes what makes `ROOT` a virtual environment that still sees the packages of the interpreter itself."""
    path.write_text(f"home = {_home()}\ninclude-system-site-packages = true\n")


def path(rest: str) -> str:
    """Returns the PATH of commands."""
    return f"{ROOT}/bin:{BASE}/bin:{rest}" if is_outside() else f"{ROOT}/bin:{rest}"


def is_outside() -> bool:
    """Tells whether the server's Python (uv, pyenv, conda) is outside of the directories that are bound anyway."""
    return not Path(sys.base_prefix).is_relative_to("/usr") and sys.base_prefix != "/"


def _home() -> str:
    return f"{BASE}/bin" if is_outside() else str(_interpreter().parent)


def _interpreter() -> Path:
    return Path(os.path.realpath(getattr(sys, "_base_executable", sys.executable)))


def _collected() -> Path | None:
    """Returns the folder of the packages; None if it cannot be made."""
    if (folder := beside()) is None:
        return None
    try:
        return prepared(folder, f"python-{_key()}", _link)
    except OSError:
        return None


@functools.cache
def beside() -> Path | None:
    """Returns the folder beside the installation for what all data directories share; None if it cannot be written."""
    writable = sys.prefix != sys.base_prefix and os.access(sys.prefix, os.W_OK)
    return Path(sys.prefix) / "share" / "sika" if writable else None


def versions() -> dict[str, str]:
    """Returns the versions of the packages by their names: commands cannot ask, as the records are not there."""
    return {name: distribution.version for name, distribution in _closure().items()}


def edition() -> str:
    """Returns what changes with the programs and packages that commands find on this machine."""
    places = ("/usr/bin", "/usr/local/bin", "/bin", f"{sys.base_prefix}/bin", os.path.dirname(sys.executable))
    times = [os.stat(place).st_mtime_ns for place in places if os.path.isdir(place)]
    return f"{sys.version} {_key()} {times}"


@functools.cache
def _key() -> str:
    """Returns what changes with the packages."""
    stats = [(str(path), path.stat()) for paths in _paths() for path in paths]
    return hashlib.sha256(repr([(name, info.st_ino, info.st_mtime_ns) for name, info in stats]).encode()).hexdigest()[
        :16
    ]


def _link(folder: Path) -> None:
    for path in _paths().entries:
        if path.is_dir():
            shutil.copytree(path, folder / path.name, symlinks=True, copy_function=os.link)
        else:
            os.link(path, folder / path.name)
    for path in _paths().metadata:
        (folder / path.parent.name).mkdir()
        os.link(path, folder / path.parent.name / path.name)


class _Paths(NamedTuple):
    entries: Sequence[Path]
    """The files and directories that the packages consist of."""
    metadata: Sequence[Path]
    """The files by which the packages know their names and versions."""


@functools.cache
def _paths() -> _Paths:
    """Returns what the packages consist of. What their records name may not be there."""
    named = [(package, name) for package in _closure().values() for name in _names(package)]
    entries = (package.locate_file(name) for package, name in named if not name.endswith(_INFO))
    files = (package.locate_file(f"{name}/METADATA") for package, name in named if name.endswith(_INFO))
    return _Paths(_existing(entries), _existing(files))


def _existing(paths: Iterable[object]) -> Sequence[Path]:
    return sorted(filter(Path.exists, {Path(str(path)).resolve() for path in paths}))


def _names(package: metadata.Distribution) -> set[str]:
    """Returns the names at the top of a package's record. (`files` makes a path of each line: ten times the work.)"""
    rows = csv.reader((package.read_text("RECORD") or "").splitlines())
    return {row[0].partition("/")[0] for row in rows if row} - {"", "..", "__pycache__"}


def _closure() -> dict[str, metadata.Distribution]:
    """Returns the installed distributions of `PACKAGES` and their requirements."""
    distributions: dict[str, metadata.Distribution] = {}
    names = list(PACKAGES)
    while names:
        name = canonicalize_name(names.pop())
        if name in distributions:
            continue
        try:
            distributions[name] = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        needs = map(Requirement, distributions[name].requires or ())
        names += [need.name for need in needs if need.marker is None or need.marker.evaluate({"extra": ""})]
    return distributions

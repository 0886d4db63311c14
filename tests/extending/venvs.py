"""A fresh virtual environment beside ours: it sees our packages, and has others of its own. Nothing is downloaded."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from tests.extending.pages import ROOT

SECONDS = 120


_BUILD = """
import os, sys
from hatchling import build

for folder in sys.argv[3:]:
    os.chdir(folder)
    getattr(build, sys.argv[1])(sys.argv[2])
"""


def wheels(folders: Sequence[Path], target: Path, hook: str = "build_wheel") -> Sequence[Path]:
    """Builds the wheels of packages by a hook of their build backend, as pip does; `build_editable`: for `-e`."""
    target.mkdir(parents=True)
    command = [sys.executable, "-c", _BUILD, hook, str(target), *map(str, folders)]
    subprocess.run(command, check=True, capture_output=True, timeout=SECONDS)
    built = sorted(target.glob("*.whl"))
    assert len(built) == len(folders)
    return built


def fresh(folder: Path, wheels: Iterable[Path]) -> Path:
    """Makes an environment with these wheels; returns its Python."""
    uv = str(Path(sys.executable).parent / "uv")
    python = folder / "bin" / "python"
    make = [uv, "venv", "--quiet", "--offline", "--python", sys.executable, str(folder)]
    subprocess.run(make, check=True, timeout=SECONDS)
    [packages] = folder.glob("lib/python*/site-packages")
    (packages / "beside.pth").write_text(f"{sysconfig.get_path('purelib')}\n{ROOT}\n")
    command = [uv, "pip", "install", "--quiet", "--offline", "--no-index", "--no-deps", "--python", str(python)]
    subprocess.run([*command, *map(str, wheels)], check=True, capture_output=True, timeout=SECONDS)
    return python


def environment() -> Mapping[str, str]:
    """Ours, with our programs on the path, and without what would lead to other packages."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return {**kept, "PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))}

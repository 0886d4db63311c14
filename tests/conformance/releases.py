"""The releases of the Python SDK that the cases are done with."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conformance.site import ROOT
from tests.support import certificates

CACHE = ROOT / ".venv" / "conformance"
REQUIREMENTS = Path(__file__).parent / "year-old.txt"
NEWEST, YEAR_OLD = "newest", "year-old"


def path_of(release: str) -> str:
    """What comes first in `PYTHONPATH`. The newest is the one that is installed."""
    if release == NEWEST:
        return str(ROOT)
    pinned = next(line for line in REQUIREMENTS.read_text().splitlines() if "==" in line)
    name, version = pinned.split()[0].split("==")
    place = CACHE / f"{name}-{version}"
    if not (place / "langgraph_sdk").is_dir():
        _install(place)
    return f"{place}{os.pathsep}{ROOT}"


def _install(place: Path) -> None:
    """By hash and without dependencies: those of the newest are there."""
    place.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    made = subprocess.run(
        [*command, "--require-hashes", "--target", str(place), "-r", str(REQUIREMENTS)],
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
        env=certificates.environment(),
    )
    if made.returncode:
        pytest.skip(f"the year-old release cannot be installed here: {made.stderr.strip()[-300:]}")

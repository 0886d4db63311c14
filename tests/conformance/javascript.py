"""The JavaScript SDKs: installed by npm from the lock file, once for each version of it; run by node."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.conformance.clients import Result, finished
from tests.conformance.releases import CACHE
from tests.conformance.site import Site

HERE = Path(__file__).parent / "js"
RELEASES = ("sdk-1.6", "sdk-newest")
"""The names of `package.json`."""
PACKAGE = ("package.json", "package-lock.json", ".npmrc")


def names(area: str) -> list[str]:
    """The cases of a script."""
    return re.findall(r'^test\("([^"]+)"', (HERE / f"{area}.mjs").read_text(), re.MULTILINE)


def run(site: Site, area: str, release: str, cases: Iterable[str]) -> dict[str, Result]:
    folder = _installed()
    for script in HERE.glob("*.mjs"):
        shutil.copy(script, folder)
    command = ["node", f"{area}.mjs", "--sdk", release, "--url", site.urls[0], "--models", site.models, *cases]
    return finished(command, {}, cwd=str(folder))


def _installed() -> Path:
    """A folder with the packages of the lock file. Node looks for packages beside scripts: they are copied there."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("node is not installed")
    digest = hashlib.sha256(b"".join((HERE / name).read_bytes() for name in PACKAGE)).hexdigest()[:16]
    folder = CACHE / f"js-{digest}"
    if not (folder / "installed").exists():
        folder.mkdir(parents=True, exist_ok=True)
        for name in PACKAGE:
            shutil.copy(HERE / name, folder)
        made = subprocess.run(["npm", "ci"], cwd=folder, capture_output=True, text=True, timeout=150, check=False)
        if made.returncode:
            pytest.skip(f"the JavaScript packages cannot be installed here: {made.stderr.strip()[-300:]}")
        (folder / "installed").touch()
    return folder

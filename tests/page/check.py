"""Types and style of the page's scripts, by the tools that channels/web/vendor/source/package.json pins.

`python -m tests.page.check` checks with the tools that are there, and says so if none are. With `--install` npm
installs them first, into `.venv`, where they stay under the hash of their lock.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "channels/web"
SOURCE = PAGE / "vendor/source"
SECONDS = 600
"""Deadline of npm, and of the check."""


def tools() -> Path:
    """Returns the folder that has the tools, or that is to have them."""
    lock = hashlib.sha256((SOURCE / "package-lock.json").read_bytes()).hexdigest()[:16]
    return ROOT / ".venv" / "page-tools" / lock


def missing() -> str:
    """Returns what there is not of Node and the tools; empty if all is there."""
    if shutil.which("node") is None:
        return "there is no Node"
    return "" if (tools() / "node_modules/.package-lock.json").exists() else "its tools are not installed"


def install() -> str:
    """Installs the tools. Returns why that is not possible; empty if they are there."""
    npm, place = shutil.which("npm"), tools()
    if not missing():
        return ""
    if npm is None:
        return "there is no npm"
    place.mkdir(parents=True, exist_ok=True)
    for name in ("package.json", "package-lock.json"):
        shutil.copy(SOURCE / name, place / name)
    result = _run([npm, "ci", "--silent", "--no-audit", "--no-fund", "--ignore-scripts"], place)
    return f"npm could not install the tools: {result.stderr[-300:]}" if result.returncode else missing()


def check() -> str:
    """Checks with the installed tools. Returns what is wrong; empty if nothing is."""
    with tempfile.TemporaryDirectory() as folder:
        for file in SOURCE.glob("*.mjs"):
            shutil.copy(file, folder)
        os.symlink(tools() / "node_modules", Path(folder) / "node_modules")
        result = _run(["node", "check.mjs", str(PAGE)], Path(folder))
    return f"{result.stdout[-8000:]}{result.stderr[-2000:]}" if result.returncode else ""


def _run(command: list[str], cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=SECONDS, check=False)


def main() -> str | None:
    """Returns what is wrong, for `sys.exit`."""
    if "--install" in sys.argv:
        if problem := install():
            return f"The page's scripts cannot be checked: {problem}"
    elif problem := missing():
        print(f"The page's scripts are not checked: {problem} (make check-page)")
        return None
    return check() or print("The page's scripts: types and style hold")


if __name__ == "__main__":
    sys.exit(main())

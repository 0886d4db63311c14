"""The JavaScript SDKs: installed by npm from the lock file, once for each version of it; run by node."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conformance.clients import Result, finished
from tests.conformance.releases import CACHE
from tests.conformance.site import Site
from tests.support import certificates

HERE = Path(__file__).parent / "js"
PACKAGE = ("package.json", "package-lock.json", ".npmrc")


@dataclass(frozen=True)
class Scripts:
    """The scripts of a folder, which also says what packages they need. `seconds`: how long installing these may take.

    `lab.mjs` is there for all of them.
    """

    folder: Path
    seconds: float

    def names(self, area: str) -> list[str]:
        """The cases of a script."""
        return re.findall(r'^test\("([^"]+)"', (self.folder / f"{area}.mjs").read_text(), re.MULTILINE)

    def run(self, site: Site, area: str, client: str, cases: Iterable[str]) -> dict[str, Result]:
        folder = self.installed()
        command = ["node", f"{area}.mjs", "--sdk", client, "--url", site.urls[0], "--models", site.models, *cases]
        return finished(command, {}, cwd=str(folder))

    def installed(self) -> Path:
        """A folder with the packages of the lock file, and the scripts: Node looks for packages beside them."""
        if shutil.which("node") is None or shutil.which("npm") is None:
            pytest.skip("node is not installed")
        digest = hashlib.sha256(b"".join((self.folder / name).read_bytes() for name in PACKAGE)).hexdigest()[:16]
        folder = CACHE / f"{self.folder.name}-{digest}"
        if not (folder / "installed").exists():
            folder.mkdir(parents=True, exist_ok=True)
            for name in PACKAGE:
                shutil.copy(self.folder / name, folder)
            made = subprocess.run(
                ["npm", "ci"],
                cwd=folder,
                capture_output=True,
                text=True,
                timeout=self.seconds,
                check=False,
                env=certificates.environment(),
            )
            if made.returncode:
                pytest.skip(f"the JavaScript packages cannot be installed here: {made.stderr.strip()[-300:]}")
            (folder / "installed").touch()
        for script in (HERE / "lab.mjs", *self.folder.glob("*.mjs")):
            shutil.copy(script, folder)
        return folder


SDK = Scripts(HERE, 150)
RELEASES = ("sdk-1.6", "sdk-newest")
"""The names of its `package.json`."""

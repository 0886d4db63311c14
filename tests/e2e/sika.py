"""The command line with the tests' own tools beside ours: `python -m tests.e2e.sika serve …`."""

from __future__ import annotations

import sys
from pathlib import Path

import adapters.tools
from actors.cli import main

if __name__ == "__main__":
    adapters.tools.__path__.append(str(Path(__file__).parent / "tools"))
    sys.exit(main())

"""The command line with the tests' own tools beside ours: `python -m tests.e2e.sika serve …`."""

from __future__ import annotations

import sys
from pathlib import Path

import adapters.tools
from channels.cli import main


def serve() -> int:
    """Runs the command of this process, and returns its exit code."""
    adapters.tools.__path__.append(str(Path(__file__).parent / "tools"))
    return main()


if __name__ == "__main__":
    sys.exit(serve())

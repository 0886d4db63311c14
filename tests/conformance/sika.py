"""The command line with these tests' tools beside ours: `python -m tests.conformance.sika serve …`."""

from __future__ import annotations

import sys
from pathlib import Path

import actors.janitor
import adapters.tools
from channels.cli import main

if __name__ == "__main__":
    actors.janitor.TEMPORARY_SECONDS = 2.0  # a minute is long to wait for the end of a thread
    adapters.tools.__path__.append(str(Path(__file__).parent / "tools"))
    sys.exit(main())

"""The command line with these tests' tool beside ours: `python -m tests.channels.client.sika serve …`."""

from __future__ import annotations

import sys
from pathlib import Path

import adapters.tools
from channels.cli import main

TOOLS = str(Path(__file__).parent / "tools")

if __name__ == "__main__":
    adapters.tools.__path__.append(TOOLS)
    sys.exit(main())

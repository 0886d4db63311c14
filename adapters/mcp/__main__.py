"""`python -m adapters.mcp FD`: the process that those of sessions are forked from."""

from __future__ import annotations

import sys

from core import collector

collector.relax()

from adapters.mcp.host import nurse  # noqa: E402

nurse(int(sys.argv[1]))

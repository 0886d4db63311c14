"""Folders of tests in memory: nats-servers and databases sync each of many small writes, at half the CPU there."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

MEMORY = Path("/dev/shm")
LEAST = 4 << 30
"""Free bytes. Containers have 64 MB there by default; a whole run keeps what failed."""


def use() -> None:
    """Let pytest make its folders there, unless something else is said."""
    if os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free >= LEAST:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))

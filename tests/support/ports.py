"""Ports for servers that must know theirs before they start."""

from __future__ import annotations

import random
import socket
from contextlib import suppress

FIRST, LAST = 12_000, 32_000
"""Systems give connections ports from 32768 on (Linux) or 49152 on (IANA): nobody else is given one of these between
our look and its use.
"""
_random = random.SystemRandom()


def free_port() -> int:
    """Of 127.0.0.1."""
    while True:
        port = _random.randrange(FIRST, LAST)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port

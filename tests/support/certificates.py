"""Tests without certificates: nothing here speaks TLS, and each HTTP client would read all of the system's (30 ms)."""

from __future__ import annotations

import os

VARIABLES = ("SSL_CERT_FILE", "SSL_CERT_DIR")
_KEPT = "TESTS_"


def leave_out() -> None:
    """Make this process, and those that it starts, find no certificates."""
    for name in VARIABLES:
        os.environ.setdefault(_KEPT + name, os.environ.get(name, ""))
    os.environ |= {"SSL_CERT_FILE": "", "SSL_CERT_DIR": os.devnull}


def environment() -> dict[str, str]:
    """The environment as it was before, for a process that downloads something."""
    before = {name: os.environ.get(_KEPT + name, "") for name in VARIABLES}
    others = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    return others | {name: value for name, value in before.items() if value}

"""The hash chain of an aggregate: each hash covers the stored bytes of its event and the hash before.

So a hash stands for all events up to its own. A changed, removed or inserted event changes every hash after it. A log
that was written anew as a whole has a sound chain, too: compare its last hash with one that was kept elsewhere, such as
an exported file (`core/decisions/0024-a-hash-chain-in-the-headers.md`).
"""

from __future__ import annotations

import hashlib

CHAIN = "Sika-Chain"
"""Header: the hash of an event. Events of older versions have none."""
START = "0" * 64
"""The hash before the first event, and before an event that follows one without a hash."""


def link(before: str, stored: bytes) -> str:
    """Returns the hash of an event, given the hash before it (64 hexadecimal digits) and its bytes in the log."""
    return hashlib.sha256(before.encode() + stored).hexdigest()

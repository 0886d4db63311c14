"""The header `Idempotency-Key`: a request that is repeated with the same key makes no second run.

The key decides the id of the run that the request makes, together with the user and the thread, and a run exists once.
So the log is the memory: nothing else is stored, and it holds after a restart, at any replica, and for two requests at
once. The fact of the request has a hash of the body, by which another request under the same key is told apart.
"""

from __future__ import annotations

import hashlib
import uuid
from contextlib import suppress

import msgspec

from channels.http.endpoints.call import Call
from core.errors import Invalid
from core.ids import uuid7
from core.runs.intake import OTHER
from core.thread.state import ThreadState

HEADER = "Idempotency-Key"
MOST_CHARACTERS = 255


def new_id(call: Call, thread_id: str, part: str = "") -> str:
    """Returns the id of a run (or with `part` of another thing) that a request makes: with a key the same each time.
    Raises `Invalid` for a key that is none.
    """
    key = _key(call)
    if key is None:
        return uuid7()
    digest = _hash("\0".join((call.user, thread_id, part, key)).encode())
    return str(uuid.UUID(bytes=digest[:16], version=5))


def fingerprint(call: Call, body: bytes) -> str:
    """Returns a hash of what a request with a key asks for; empty without a key."""
    return "" if _key(call) is None else hash_of(body)


def hash_of(body: bytes) -> str:
    """Returns a hash of a body, the same for JSON that is written otherwise."""
    with suppress(msgspec.DecodeError):  # a form
        body = msgspec.json.encode(msgspec.json.decode(body or b"{}"), order="deterministic")
    return _hash(body).hex()[:32]


async def repeated(call: Call, thread_id: str, state: ThreadState, body: bytes | None = None) -> bool:
    """Tells whether a thread has the run that a request with a key makes. Raises `Invalid` if that came of another
    request. `body`: what both have in common (default: all that was sent).
    """
    if _key(call) is None or (run := state.runs.get(new_id(call, thread_id))) is None:
        return False
    if run.request.fingerprint != fingerprint(call, await call.request.read() if body is None else body):
        raise Invalid(OTHER)
    return True


def _key(call: Call) -> str | None:
    key = call.request.headers.get(HEADER)
    if key is not None and not (0 < len(key) <= MOST_CHARACTERS and key.isascii() and key.isprintable()):
        raise Invalid(f"{HEADER}: 1 to {MOST_CHARACTERS} printable ASCII characters are expected")
    return key


def _hash(text: bytes) -> bytes:
    return hashlib.sha256(text).digest()

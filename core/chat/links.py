"""Links to artifacts that are too large for a chat platform: signed, and valid for a time.

    /api/channels/files/<claims>.<signature>

Whoever has the link can read the one file, as can whoever reads the chat.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from core.chat.facts import Artifact, DeliveryPlanned
from core.config.settings import Config
from core.errors import NotFound
from core.files.paths import USER_DATA
from core.identity.installation import Installation

VALID_SECONDS = 7 * 86_400
PATH = "/api/channels/files"
OUTPUTS = f"{USER_DATA}/outputs/"
GONE = "this link is not valid, or not any more"


class Shared(msgspec.Struct, frozen=True, array_like=True):
    """A file that a link leads to. `until`: seconds since 1970."""

    user: str
    thread: str
    path: str
    until: int


class Links:
    """Makes and reads the links of an installation."""

    def __init__(self, home: Path, config: Callable[[], Config]) -> None:
        self._installation = Installation(home)
        self._config = config

    def link(self, plan: DeliveryPlanned, artifact: Artifact) -> str | None:
        """Returns an address of an artifact; None without `http.public_url`, and for what is not in the outputs."""
        address = self._config().http.public_url
        if address is None or not artifact.path.startswith(OUTPUTS):
            return None
        shared = Shared(plan.user, plan.thread, artifact.path, int(time.time()) + VALID_SECONDS)
        claims = base64.urlsafe_b64encode(msgspec.json.encode(shared)).rstrip(b"=").decode()
        return f"{address}{PATH}/{claims}.{self._signature(claims)}"

    def opened(self, token: str) -> Shared:
        """Returns what a link leads to. Raises `NotFound` for one that is forged or has expired."""
        claims, _, signature = token.partition(".")
        if not hmac.compare_digest(signature.encode(), self._signature(claims).encode()):
            raise NotFound(GONE)
        try:
            raw = base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4))
            shared = msgspec.json.decode(raw, type=Shared)
        except (binascii.Error, ValueError, msgspec.DecodeError):
            raise NotFound(GONE) from None
        if shared.until < time.time():
            raise NotFound(GONE)
        return shared

    def _signature(self, claims: str) -> str:
        key = self._installation.derived("links to artifacts").reveal().encode()
        return hmac.new(key, claims.encode("utf-8", "replace"), hashlib.sha256).hexdigest()

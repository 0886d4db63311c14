"""Secrets at rest: texts are sealed before they become facts, with a key of the installation (AES-256-GCM).

A sealed text is `v1.<key id>.<nonce and ciphertext>`. The key lies in `<home>/secrets/seal_key`, or in `SIKA_SEAL_KEY`
for replicas without a common data directory. Several keys, separated by whitespace, rotate it: the first one seals, all
of them open.
"""

from __future__ import annotations

import base64
import hashlib
import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from core.config.redaction import redactor
from core.errors import SikaError
from core.identity.installation import Installation

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

VERSION = "v1"
NONCE_BYTES = 12


SEALED = re.compile(rf"\b{VERSION}\.[0-9a-f]{{8}}\.[\w-]+={{0,2}}")
"""The form of a sealed text, which has no character that a URL would have to escape."""


class Unsealable(SikaError):
    """The text was sealed elsewhere, or is damaged. Its secret must be entered again."""

    code = "unsealable"


class Seal:
    """Seals and opens texts. The key is read or made on first use, which may raise `Invalid`."""

    def __init__(self, home: Path, environ: Mapping[str, str] | None = None) -> None:
        self._installation = Installation(home, environ)
        self._known: dict[str, bytes] = {}

    def seal(self, text: str, purpose: str = "") -> str:
        """Returns the text sealed; it opens only with the same purpose."""
        identity, key = next(iter(self._keys().items()))
        nonce = os.urandom(NONCE_BYTES)
        sealed = nonce + _cipher(key).encrypt(nonce, text.encode(), purpose.encode())
        return f"{VERSION}.{identity}.{base64.urlsafe_b64encode(sealed).decode()}"

    def open(self, sealed: str, purpose: str = "", *, seconds: float = math.inf) -> str:
        """Returns the text, which is redacted from now on, for at least so many seconds. Raises `Unsealable`."""
        from cryptography.exceptions import InvalidTag

        version, _, rest = sealed.partition(".")
        identity, _, body = rest.partition(".")
        if version != VERSION or not body:
            raise Unsealable("not a sealed value")
        if (key := self._keys().get(identity)) is None:
            raise Unsealable(
                f"sealed with the key {identity[:16]}, which is not in secrets/seal_key (or SIKA_SEAL_KEY)"
            )
        try:
            raw = base64.b64decode(body, altchars=b"-_", validate=True)
            text = _cipher(key).decrypt(raw[:NONCE_BYTES], raw[NONCE_BYTES:], purpose.encode()).decode()
        except (InvalidTag, ValueError) as error:
            raise Unsealable("the sealed value is damaged, or was sealed for another purpose") from error
        redactor.add(text, seconds=seconds)
        return text

    def _keys(self) -> Mapping[str, bytes]:
        """Returns the keys by their ids, the one that seals first."""
        if not self._known:
            keys = (hashlib.sha256(word.encode()).digest() for word in self._installation.seal.reveal().split())
            self._known = {hashlib.sha256(b"id " + key).hexdigest()[:8]: key for key in keys}
        return self._known


def _cipher(key: bytes) -> AESGCM:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # not loaded by a start without secrets

    return AESGCM(key)

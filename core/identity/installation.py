"""Secrets of an installation: from the environment, else from a file of the data directory, created on first use.

Replicas must have the same secrets: they share a data directory, or get them from the environment.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import hmac
import os
import secrets
from collections.abc import Mapping
from pathlib import Path

from core.config.redaction import redactor
from core.config.settings import Secret
from core.errors import Invalid

LEAST = 32
"""Minimum length of a configured secret in characters: HS256 requires 256 bits (RFC 7518 §3.2)."""
SESSIONS = ("SIKA_JWT_SECRET", "AUTH_JWT_SECRET")
INTERNAL = ("SIKA_INTERNAL_TOKEN", "DEER_FLOW_INTERNAL_TOKEN")
SEAL = ("SIKA_SEAL_KEY",)


class Installation:
    """The secrets of a data directory. Reading them may raise `Invalid`."""

    def __init__(self, home: Path, environ: Mapping[str, str] | None = None) -> None:
        self._folder = home / "secrets"
        self._environ = os.environ if environ is None else environ

    @functools.cached_property
    def sessions(self) -> Secret:
        """Signs the sessions of people."""
        return self._secret("jwt_secret", SESSIONS)

    @functools.cached_property
    def internal(self) -> Secret:
        """Authenticates calls of the server's own processes."""
        return self._secret("internal_token", INTERNAL)

    @functools.cached_property
    def webhooks(self) -> Secret:
        """Signs posts to webhooks, where the configuration has no secret for that."""
        return self._secret("webhook_secret", ())

    @functools.cached_property
    def seal(self) -> Secret:
        """Seals secrets that people entrust to the server (`core.identity.seal`)."""
        return self._secret("seal_key", SEAL)

    def derived(self, purpose: str) -> Secret:
        """Returns a secret for another purpose: signatures for one are invalid for the other."""
        key = self.sessions.reveal().encode()
        return Secret(hmac.new(key, f"sika {purpose}".encode(), hashlib.sha256).hexdigest())

    def _secret(self, name: str, variables: tuple[str, ...]) -> Secret:
        for variable in variables:
            if value := self._environ.get(variable):
                return _long(value, variable)
        file = self._folder / name
        try:
            return _long(_read_or_make(file), str(file))
        except OSError as error:
            raise Invalid(f"{file}: cannot be used: {error.strerror}") from None


def _read_or_make(file: Path) -> str:
    """Returns a file's secret, generated on first use. Concurrent processes agree: the file appears whole, and the
    second process reads it.
    """
    if not file.exists():
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = file.with_name(f"{file.name}.{secrets.token_hex(8)}")
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(descriptor, "w", encoding="ascii") as written:
                written.write(secrets.token_urlsafe(48))
                written.flush()
                os.fsync(written.fileno())
            with contextlib.suppress(FileExistsError):
                os.link(draft, file)
        finally:
            draft.unlink()
    if file.stat().st_mode & 0o077:
        raise Invalid(f"{file}: others can read it; `chmod 600` it if nobody did, else delete it")
    return file.read_text(encoding="utf-8").strip()


def _long(value: str, place: str) -> Secret:
    if len(value) < LEAST:
        raise Invalid(f"{place}: must have at least {LEAST} characters")
    redactor.add(value)
    return Secret(value)

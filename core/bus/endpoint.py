"""Where a NATS is, and how a process signs in there."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from core.errors import Invalid

if TYPE_CHECKING:
    from core.config.server import Nats


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Address and credentials of a NATS. Paths are files; `token` and `password` never appear in `repr`."""

    url: str
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    credentials: str | None = None
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    prefix: str = "sika"
    replicas: int = 1
    embedded: bool = False
    """It was started by this process, and belongs to its data directory."""
    patience: float | None = None
    """Timeout of the first connection in seconds; None: `CONNECT_SECONDS`."""
    trouble: Callable[[], str | None] = field(default=lambda: None, repr=False, compare=False)
    """Returns the known reason why this NATS does not work at the moment."""


def configured(nats: Nats, url: str) -> Endpoint:
    """Returns the endpoint of a NATS that runs elsewhere. Raises `Invalid` for credentials in its address."""
    if "@" in url:
        raise Invalid("--nats: no credentials in the address; use nats.user and nats.password, or nats.token")
    tls = nats.tls
    return Endpoint(
        url,
        user=nats.user,
        password=nats.password.reveal() if nats.password else None,
        token=nats.token.reveal() if nats.token else None,
        credentials=nats.credentials,
        tls_ca=tls.ca if tls else None,
        tls_cert=tls.cert if tls else None,
        tls_key=tls.key if tls else None,
        prefix=nats.prefix,
        replicas=nats.replicas,
    )


def reach(endpoint: Endpoint) -> dict[str, Any]:
    """Returns the options of `Client.connect` for the server's address and the credentials."""
    return {
        "servers": endpoint.url.split(","),
        "user": endpoint.user,
        "password": endpoint.password,
        "token": endpoint.token,
        "user_credentials": Path(endpoint.credentials) if endpoint.credentials else None,
        "tls": tls_context(endpoint),
    }


def tls_context(endpoint: Endpoint) -> ssl.SSLContext | None:
    """Returns the TLS context of a connection to this endpoint; None if none is configured."""
    if not (endpoint.tls_ca or endpoint.tls_cert):
        return None
    context = ssl.create_default_context(cafile=endpoint.tls_ca)
    if endpoint.tls_cert:
        context.load_cert_chain(endpoint.tls_cert, endpoint.tls_key)
    return context

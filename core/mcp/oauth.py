"""The words of OAuth as MCP uses them: addresses, requests and what is believed of responses. Pure.

RFC 6749 and 7636 (code with PKCE), 9728 and 8414 (metadata), 7591 (registration), 8707 (resource), 9207 (issuer),
7009 (revocation); DeerFlow's settings for tokens without a person.
"""

from __future__ import annotations

import base64
import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeVar, cast, get_args
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

import msgspec

from core.config.mcp_oauth import OAuth
from core.config.redaction import GRACE_SECONDS, redactor
from core.egress import may_be_public
from core.errors import Invalid, SikaError, Unavailable
from core.mcp.challenge import challenge_of as challenge_of
from core.mcp.grants import Method, OAuthClient, OAuthEndpoints, OAuthIssuer

T = TypeVar("T", bound=msgspec.Struct)
DEFAULT_SECONDS = 3600.0
MOST_SECONDS = 10 * 365 * 86400.0
CLIENT_NAME = "Sika"
CALLBACK, DOCUMENT = "/mcp/oauth/callback", "/mcp/oauth/client.json"
"""Ends of the paths to which people return, and at which the client metadata document lies."""
FORM: Mapping[str, str] = {"Content-Type": "application/x-www-form-urlencoded", "Accept": "application/json"}
JSON: Mapping[str, str] = {"Content-Type": "application/json", "Accept": "application/json"}
GONE = frozenset({"invalid_grant", "invalid_client", "unauthorized_client", "unsupported_grant_type", "access_denied"})
"""Errors of a token endpoint that no retry heals."""


class Refusal(SikaError):
    """An authorisation server refused (RFC 6749 §5.2). `error` is its code."""

    code = "oauth_refused"

    def __init__(self, error: str, text: str) -> None:
        super().__init__(text)
        self.error = error


class Request(NamedTuple):
    method: str
    url: str
    headers: Mapping[str, str] = {}
    body: bytes | None = None


class Response(NamedTuple):
    """A response; the names of its headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Token(NamedTuple):
    """A token response. `seconds`: its lifetime, None if the response does not tell it."""

    access: str
    type: str
    refresh: str | None
    seconds: float | None
    scope: str | None


class Resource(msgspec.Struct, frozen=True):
    """Protected resource metadata (RFC 9728 §2)."""

    resource: str
    authorization_servers: tuple[str, ...] = ()
    scopes_supported: tuple[str, ...] | None = None


class _Metadata(OAuthEndpoints, frozen=True):
    """Authorisation server metadata, as servers write it."""

    code_challenge_methods_supported: tuple[str, ...] | None = None
    authorization_response_iss_parameter_supported: bool | None = None
    client_id_metadata_document_supported: bool | None = None


# ── discovery ────────────────────────────────────────────────────────────────────────────────────────────────────────


def resource_urls(server_url: str, named: str | None) -> list[str]:
    """Returns the addresses of a server's metadata, in the order in which they are tried."""
    origin, path = _split(server_url)
    well_known = f"{origin}/.well-known/oauth-protected-resource"
    urls = [named, f"{well_known}{path}" if path else None, well_known]
    return list(dict.fromkeys(url for url in urls if url))


def resource_of(body: bytes, server_url: str) -> Resource:
    """Returns a server's metadata. Raises `Invalid` if it is another server's (RFC 9728 §3.3)."""
    metadata = _decoded(body, Resource, "the server's metadata")
    origin, path = _split(server_url)
    own, above = _split(metadata.resource)
    if own != origin or not (path == above or path.startswith(above.rstrip("/") + "/") or not above):
        raise Invalid(f"the metadata of {server_url} is that of another resource: {metadata.resource[:200]}")
    return metadata


def issuer_urls(issuer: str) -> list[str]:
    """Returns the addresses of an authorisation server's metadata, in the order in which they are tried."""
    origin, path = _split(issuer)
    if not path:
        return [f"{origin}/.well-known/oauth-authorization-server", f"{origin}/.well-known/openid-configuration"]
    return [
        f"{origin}/.well-known/oauth-authorization-server{path}",
        f"{origin}/.well-known/openid-configuration{path}",
        f"{origin}{path}/.well-known/openid-configuration",
    ]


def issuer_of(body: bytes, issuer: str) -> OAuthIssuer:
    """Returns an authorisation server's metadata. Raises `Invalid` if it is another's, or knows no PKCE."""
    metadata = _decoded(body, _Metadata, "the authorisation server's metadata")
    if metadata.issuer.rstrip("/") != issuer.rstrip("/"):
        raise Invalid(f"the metadata of {issuer} is that of another issuer: {metadata.issuer[:200]}")
    if "S256" not in (metadata.code_challenge_methods_supported or ()):
        raise Invalid(f"{issuer} does not offer PKCE with S256; such a login is not safe")
    fields = {name: getattr(metadata, name) for name in OAuthIssuer.__struct_fields__}
    return OAuthIssuer(**{name: value for name, value in fields.items() if value is not None})


def endpoints(issuer: OAuthIssuer) -> list[str]:
    urls = (
        issuer.authorization_endpoint,
        issuer.token_endpoint,
        issuer.registration_endpoint,
        issuer.revocation_endpoint,
    )
    return [url for url in urls if url is not None]


# ── registration ─────────────────────────────────────────────────────────────────────────────────────────────────────


def registration(issuer: OAuthIssuer, redirect: str, scope: str | None) -> Request:
    """Returns the request that registers this installation. Raises `Invalid` if the issuer names no endpoint for it."""
    if issuer.registration_endpoint is None:
        raise Invalid(
            f"{issuer.issuer} registers no clients: register one there for {redirect}, and set oauth.client_id"
        )
    body = {
        "client_name": CLIENT_NAME,
        "redirect_uris": [redirect],
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
        "token_endpoint_auth_method": method_of(issuer, secret=False),
        **({"scope": scope} if scope else {}),
    }
    return Request("POST", issuer.registration_endpoint, JSON, msgspec.json.encode(body))


def document_of(redirect: str) -> str | None:
    """Returns the address of this installation's client metadata document; None if others cannot read it.

    It is the client id where the issuer takes one (draft-ietf-oauth-client-id-metadata-document).
    """
    parts = urlsplit(redirect)
    if parts.scheme != "https" or not parts.path.endswith(CALLBACK) or not may_be_public(parts.hostname or ""):
        return None
    return redirect.removesuffix(CALLBACK) + DOCUMENT


def document(redirect: str) -> Mapping[str, Any]:
    """Returns the client metadata document."""
    return {
        "client_id": redirect.removesuffix(CALLBACK) + DOCUMENT,
        "client_name": CLIENT_NAME,
        "redirect_uris": [redirect],
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
        "token_endpoint_auth_method": "none",
    }


def method_of(issuer: OAuthIssuer, *, secret: bool) -> Method:
    """Returns how a client shows who it is: with a secret if it has one, or if the server knows no other way."""
    supported = issuer.token_endpoint_auth_methods_supported or ("client_secret_basic",)
    if not secret and "none" in supported:
        return "none"
    return "client_secret_post" if "client_secret_basic" not in supported else "client_secret_basic"


def registered(response: Response, issuer: OAuthIssuer) -> tuple[OAuthClient, str | None]:
    """Returns the registered client, without its secret, and the secret. Raises `Refusal`, `Unavailable`."""
    body = _answer(response, (200, 201), "registration")
    secret = _text(body, "client_secret")
    method = _text(body, "token_endpoint_auth_method") or method_of(issuer, secret=secret is not None)
    identity = _text(body, "client_id")
    if identity is None or method not in get_args(Method):
        raise Invalid(f"{issuer.issuer}: its registration cannot be used (client_id, token_endpoint_auth_method)")
    return OAuthClient(id=identity, method=cast(Method, method), registered=True), secret


# ── tokens ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def authorization_url(
    issuer: OAuthIssuer, client: OAuthClient, redirect: str, state: str, verifier: str, resource: str, scope: str | None
) -> str:
    """Returns the address to which a person is sent."""
    challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()
    query = {
        "response_type": "code",
        "client_id": client.id,
        "redirect_uri": redirect,
        "state": state,
        "code_challenge": challenge,
        "code_challenge_method": "S256",
        "resource": resource,
        **({"scope": scope} if scope else {}),
    }
    before = urlsplit(issuer.authorization_endpoint)
    return before._replace(query=urlencode([*parse_qsl(before.query), *query.items()]), fragment="").geturl()


def redemption(
    issuer: OAuthIssuer, client: OAuthClient, secret: str | None, code: str, redirect: str, verifier: str, resource: str
) -> Request:
    form = {"grant_type": "authorization_code", "code": code, "redirect_uri": redirect, "code_verifier": verifier}
    return _request(issuer.token_endpoint, client, secret, {**form, "resource": resource})


def refreshing(
    issuer: OAuthIssuer, client: OAuthClient, secret: str | None, refresh: str, resource: str | None, scope: str | None
) -> Request:
    form = {"grant_type": "refresh_token", "refresh_token": refresh}
    more = {name: value for name, value in (("resource", resource), ("scope", scope)) if value}
    return _request(issuer.token_endpoint, client, secret, {**form, **more})


def revocation(issuer: OAuthIssuer, client: OAuthClient, secret: str | None, token: str, kind: str) -> Request | None:
    """Returns the request that revokes a token; None if the issuer has no endpoint for it."""
    if issuer.revocation_endpoint is None:
        return None
    return _request(issuer.revocation_endpoint, client, secret, {"token": token, "token_type_hint": kind})


def configured(settings: OAuth, refresh: str | None) -> Request:
    """Returns the token request of the settings, with the newest refresh token."""
    secret = settings.client_secret.reveal() if settings.client_secret else None
    fields = {
        "grant_type": settings.grant_type,
        "client_id": settings.client_id,
        "client_secret": secret,
        "refresh_token": refresh if settings.grant_type == "refresh_token" else None,
        "scope": settings.scope,
        "audience": settings.audience,
        **settings.extra_token_params,
    }
    form = {name: value for name, value in fields.items() if value}
    return Request("POST", settings.token_url or "", FORM, urlencode(form).encode())


REFRESH_SECONDS = 7 * 24 * 3600.0
"""Time for which a refresh token is redacted after it was last used."""


def token_of(response: Response, settings: OAuth) -> Token:
    """Returns the token of a response. Raises `Refusal`, `Unavailable`."""
    body = _answer(response, (200,), "token")
    access = _text(body, settings.token_field)
    if access is None:
        raise Refusal("no_token", f"the token endpoint's response has no field {settings.token_field}")
    kind = _text(body, settings.token_type_field) or settings.default_token_type
    lifetime = body.get(settings.expires_in_field)
    try:
        seconds = None if lifetime is None else min(max(float(lifetime), 0.0), MOST_SECONDS)
    except (TypeError, ValueError):
        seconds = None
    shown = "Bearer" if kind.lower() == "bearer" else kind
    token = Token(access, shown, _text(body, "refresh_token"), seconds, _text(body, "scope"))
    if not re.fullmatch(r"[!-~]+", token.access) or not re.fullmatch(r"[!-~]+", token.type):
        raise Refusal("no_token", "the token endpoint's token cannot be sent in a header")
    redactor.add(token.access, seconds=math.inf if seconds is None else seconds + GRACE_SECONDS)
    if token.refresh is not None:  # added again whenever it is read from the log
        redactor.add(token.refresh, seconds=REFRESH_SECONDS)
    return token


def seed_of(settings: OAuth, server_url: str) -> str:
    """Returns a hash of the settings: a token of other settings, or of another server, is not used."""
    if settings.grant_type == "authorization_code":
        return hashlib.sha256(f"{server_url} {settings.client_id or ''}".encode()).hexdigest()[:16]
    secrets = [secret.reveal() if secret else "" for secret in (settings.client_secret, settings.refresh_token)]
    parts = [
        server_url,
        settings.grant_type,
        settings.token_url,
        settings.client_id,
        settings.scope,
        settings.audience,
        *secrets,
    ]
    parts += [f"{name}={value}" for name, value in sorted(settings.extra_token_params.items())]
    return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()[:16]


def _request(url: str, client: OAuthClient, secret: str | None, form: Mapping[str, str]) -> Request:
    headers = dict(FORM)
    if client.method == "client_secret_basic" and secret is not None:
        basic = f"{quote(client.id, safe='')}:{quote(secret, safe='')}".encode()
        headers["Authorization"] = f"Basic {base64.b64encode(basic).decode()}"
    else:
        form = {**form, "client_id": client.id, **({"client_secret": secret} if secret else {})}
    return Request("POST", url, headers, urlencode(form).encode())


def _answer(response: Response, good: Sequence[int], what: str) -> Mapping[str, Any]:
    try:
        body = msgspec.json.decode(response.body)
    except msgspec.DecodeError:
        body = None
    fields = body if isinstance(body, dict) else {}
    if response.status in good and fields and "error" not in fields:
        return fields
    if response.status >= 500 or response.status == 429 or (response.status in good and not fields):
        raise Unavailable(f"the {what} endpoint answers {response.status}")
    error = _text(fields, "error") or f"http_{response.status}"
    text = redactor.text(": ".join(filter(None, (error, _text(fields, "error_description")))))
    raise Refusal(error, f"the {what} endpoint refuses: {text[:300]}")


def _text(body: Mapping[str, Any], name: str) -> str | None:
    value = body.get(name)
    return value if isinstance(value, str) and value else None


def _decoded(body: bytes, kind: type[T], what: str) -> T:
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.DecodeError as error:
        raise Invalid(f"{what} cannot be read: {error}") from None


def origin_of(url: str) -> str:
    return _split(url)[0]


def _split(url: str) -> tuple[str, str]:
    """Returns the origin of an address, and its path without a slash at its end."""
    parts = urlsplit(url)
    port = {"http": 80, "https": 443}.get(parts.scheme)
    host = (parts.hostname or "").lower()
    shown = f"[{host}]" if ":" in host else host
    origin = f"{parts.scheme}://{shown}" + (f":{parts.port}" if parts.port not in (None, port) else "")
    return origin, parts.path.rstrip("/")

"""OpenID Connect's words: what we ask of an identity provider, and what of its answer is believed. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from authlib.common.security import generate_token
from authlib.oauth2.auth import ClientAuth
from authlib.oauth2.rfc6749.parameters import (
    prepare_grant_uri,
    prepare_token_request,
)
from authlib.oauth2.rfc7636 import create_s256_code_challenge
from authlib.oidc.core import CodeIDToken
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import KeySet

from core.config.settings import OidcProvider

LEEWAY = 60
"""Seconds by which clocks may differ."""
ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "Ed25519")
"""Signatures that are accepted: asymmetric ones only, whatever a token says of itself."""


class Discovery(msgspec.Struct, frozen=True):
    """The fields of the provider's metadata that are used (OpenID Connect Discovery 1.0 §3)."""

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str
    token_endpoint_auth_methods_supported: tuple[str, ...] = ("client_secret_basic",)


class Challenge(msgspec.Struct, frozen=True):
    """State, nonce and PKCE verifier of a sign-in: random, and used once."""

    state: str = msgspec.field(default_factory=lambda: str(generate_token(43)))
    nonce: str = msgspec.field(default_factory=lambda: str(generate_token(43)))
    verifier: str = msgspec.field(default_factory=lambda: str(generate_token(64)))


def question(discovery: Discovery, provider: OidcProvider, callback: str, challenge: Challenge) -> str:
    """Where to send the person."""
    return str(
        prepare_grant_uri(
            discovery.authorization_endpoint,
            provider.client_id,
            "code",
            redirect_uri=callback,
            scope=list(provider.scopes),
            state=challenge.state,
            nonce=challenge.nonce,
            code_challenge=create_s256_code_challenge(challenge.verifier),
            code_challenge_method="S256",
        )
    )


def redemption(
    discovery: Discovery, provider: OidcProvider, callback: str, code: str, verifier: str
) -> tuple[str, Mapping[str, str], str]:
    """Address, headers and body of the request that gets a token for a code."""
    body = prepare_token_request("authorization_code", code=code, redirect_uri=callback, code_verifier=verifier)
    secret = provider.client_secret
    basic = "client_secret_basic" in discovery.token_endpoint_auth_methods_supported
    method = "none" if secret is None else "client_secret_basic" if basic else "client_secret_post"
    client = ClientAuth(provider.client_id, secret.reveal() if secret else None, method)
    headers = {"Content-Type": "application/x-www-form-urlencoded", "Accept": "application/json"}
    place, headers, body = client.prepare("POST", discovery.token_endpoint, headers, body)
    return str(place), headers, str(body)


def keys(document: Mapping[str, Any]) -> KeySet:
    """The keys that a provider publishes. Raises `ValueError`."""
    try:
        return KeySet.import_key_set(document)  # type: ignore[arg-type]
    except (JoseError, TypeError, LookupError) as error:
        raise ValueError(str(error)) from None


def claims(token: str, known: KeySet, issuer: str, client_id: str, nonce: str) -> Mapping[str, Any]:
    """The claims of an ID token: the issuer's, for us, for this question, not too old. Raises `ValueError`."""
    try:
        decoded = jwt.decode(token, known, algorithms=ALGORITHMS)
        expected: Any = {
            "iss": {"essential": True, "value": issuer},
            "aud": {"essential": True, "value": client_id},
            "sub": {"essential": True},
        }
        id_token = CodeIDToken(decoded.claims, decoded.header, expected, {"nonce": nonce, "client_id": client_id})
        id_token.validate(leeway=LEEWAY)
    except (JoseError, TypeError, LookupError) as error:
        raise ValueError(str(error)) from None
    return dict(id_token)

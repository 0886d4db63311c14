"""A small OpenID Connect provider on a real port, with real keys; tests say what it gets wrong."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

from aiohttp import web
from joserfc import jwt
from joserfc.jwk import ECKey, RSAKey

from tests.support.applications import running

CLIENT, SECRET = "sika", "the secret of sika: 100%/+"


@dataclass
class Provider:
    """`person` is who signs in; `claims` replaces claims of the token (None: leaves one out)."""

    url: str = ""
    person: dict[str, Any] = field(
        default_factory=lambda: {"sub": "42", "email": "Ada@Example.org", "email_verified": True}
    )
    claims: dict[str, Any] = field(default_factory=dict)
    key: Any = field(default_factory=lambda: RSAKey.generate_key(2048, {"kid": "one"}))
    sign_with: Any = None
    """Another key than the published one."""
    algorithm: str = "RS256"
    methods: list[str] = field(default_factory=lambda: ["client_secret_basic"])
    issuer: str | None = None
    """What the discovery document says, if not the truth."""
    asked: list[str] = field(default_factory=list)
    codes: dict[str, dict[str, str]] = field(default_factory=dict)

    async def discovery(self, _: web.Request) -> web.Response:
        self.asked.append("discovery")
        return web.json_response(
            {
                "issuer": self.issuer or self.url,
                "authorization_endpoint": f"{self.url}/authorize",
                "token_endpoint": f"{self.url}/token",
                "jwks_uri": f"{self.url}/keys",
                "token_endpoint_auth_methods_supported": self.methods,
            }
        )

    async def keys(self, _: web.Request) -> web.Response:
        self.asked.append("keys")
        return web.json_response({"keys": [self.key.as_dict(private=False)]})

    async def authorize(self, request: web.Request) -> web.Response:
        """The person agrees at once."""
        asked = dict(request.query)
        assert asked["response_type"] == "code"
        assert asked["code_challenge_method"] == "S256"
        assert asked["client_id"] == CLIENT
        code = secrets.token_urlsafe(16)
        self.codes[code] = asked
        answer = urlencode({"code": code, "state": asked["state"]})
        return web.Response(status=302, headers={"Location": f"{asked['redirect_uri']}?{answer}"})

    async def token(self, request: web.Request) -> web.Response:
        """A code is good once, for the client it was made for, with the verifier of its challenge."""
        form = await request.post()
        asked = self.codes.pop(str(form.get("code")), None)
        digest = hashlib.sha256(str(form.get("code_verifier", "")).encode()).digest()
        challenge = _encoded(digest).decode()
        good = asked is not None and asked["code_challenge"] == challenge
        if asked is None or not good or asked["redirect_uri"] != form.get("redirect_uri"):
            return web.json_response({"error": "invalid_grant"}, status=400)
        if not self._is_client(request, dict(form)):
            return web.json_response({"error": "invalid_client"}, status=401)
        now = int(time.time())
        claims = {"iss": self.url, "aud": CLIENT, "iat": now, "exp": now + 300, "nonce": asked["nonce"], **self.person}
        claims = {name: value for name, value in {**claims, **self.claims}.items() if value is not None}
        header = {"alg": self.algorithm, "kid": self.key.as_dict().get("kid")}
        if self.algorithm in ("none", "HS256"):
            signed = by_hand(header, claims, self.key.as_pem(private=False))
        else:
            signed = jwt.encode(header, claims, self.sign_with or self.key, algorithms=[self.algorithm])
        return web.json_response({"access_token": "a", "token_type": "Bearer", "expires_in": 300, "id_token": signed})

    def _is_client(self, request: web.Request, form: dict[str, Any]) -> bool:
        if self.methods == ["client_secret_post"]:
            return (form.get("client_id"), form.get("client_secret")) == (CLIENT, SECRET)
        kind, _, value = request.headers.get("Authorization", "").partition(" ")
        return kind == "Basic" and base64.b64decode(value).decode() == f"{CLIENT}:{SECRET}"

    def rotate(self) -> None:
        self.key = ECKey.generate_key("P-256", {"kid": "two"})
        self.algorithm = "ES256"


def by_hand(header: dict[str, Any], claims: dict[str, Any], secret: bytes) -> str:
    """A token that no library would make: unsigned, or signed with something that is no secret."""
    signed = b".".join(_encoded(json.dumps(part).encode()) for part in (header, claims))
    found = b"" if header["alg"] == "none" else hmac.new(secret, signed, hashlib.sha256).digest()
    return b".".join((signed, _encoded(found))).decode()


def _encoded(raw: bytes) -> bytes:
    return base64.urlsafe_b64encode(raw).rstrip(b"=")


@asynccontextmanager
async def provider() -> AsyncIterator[Provider]:
    found, app = Provider(), web.Application()
    app.router.add_get("/.well-known/openid-configuration", found.discovery)
    app.router.add_get("/keys", found.keys)
    app.router.add_get("/authorize", found.authorize)
    app.router.add_post("/token", found.token)
    async with running(app) as found.url:
        yield found

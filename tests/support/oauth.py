"""An OAuth authorisation server on a real port, and an MCP endpoint that demands its tokens.

It registers clients, checks PKCE, rotates refresh tokens, and revokes a whole family when an old one comes back. Tests
say what it gets wrong.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import secrets
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, unquote, urlencode, urlsplit

import aiohttp
from aiohttp import web

from tests.support.applications import running

CLIENT, SECRET = "configured", "the secret of the client: 100%/+"


@dataclass
class Family:
    """The tokens of one login."""

    client: str
    access: str = ""
    refresh: str = ""
    revoked: bool = False


@dataclass
class AuthorizationServer:
    url: str = ""
    expires_in: Any = 3600
    down: bool = False
    """The token endpoint answers 503."""
    gate: Any = None
    """An `asyncio.Event` that token requests wait for."""
    metadata: dict[str, Any] = field(default_factory=dict)
    """Replaces fields of the metadata (None: leaves one out)."""
    resource: dict[str, Any] = field(default_factory=dict)
    """The same of the protected resource's metadata."""
    answer: dict[str, str] = field(default_factory=dict)
    """Replaces parameters of the way back."""
    deny: str = ""
    clients: dict[str, str | None] = field(default_factory=lambda: {CLIENT: SECRET})
    codes: dict[str, dict[str, str]] = field(default_factory=dict)
    families: list[Family] = field(default_factory=list)
    scopes: list[str] = field(default_factory=list)
    """Scopes of the last login."""
    forms: list[dict[str, str]] = field(default_factory=list)
    """What the token endpoint was sent."""
    calls: Counter[str] = field(default_factory=Counter)
    demanded: str = ""
    """A scope that calls of the tool need, and no token has before it was asked for."""
    refuse_all: bool = False
    """The MCP endpoint refuses every token."""
    _count: Any = field(default_factory=itertools.count)

    @property
    def server(self) -> str:
        return f"{self.url}/mcp"

    # ── metadata ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def protected(self, _: web.Request) -> web.Response:
        fields = {"resource": self.server, "authorization_servers": [self.url], "scopes_supported": ["read", "write"]}
        return _json({**fields, **self.resource})

    async def described(self, _: web.Request) -> web.Response:
        fields = {
            "issuer": self.url,
            "authorization_endpoint": f"{self.url}/authorize",
            "token_endpoint": f"{self.url}/token",
            "registration_endpoint": f"{self.url}/register",
            "revocation_endpoint": f"{self.url}/revoke",
            "code_challenge_methods_supported": ["S256"],
            "token_endpoint_auth_methods_supported": ["none", "client_secret_basic"],
            "authorization_response_iss_parameter_supported": True,
        }
        return _json({**fields, **self.metadata})

    async def register(self, request: web.Request) -> web.Response:
        self.calls["register"] += 1
        body = await request.json()
        identity = f"client-{next(self._count)}"
        secret = None if body["token_endpoint_auth_method"] == "none" else secrets.token_urlsafe(24)
        self.clients[identity] = secret
        more = {} if secret is None else {"client_secret": secret}
        return _json({"client_id": identity, **body, **more}, 201)

    # ── login ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def authorize(self, request: web.Request) -> web.Response:
        """The person agrees at once."""
        query = dict(request.query)
        self.scopes = query.get("scope", "").split()
        if query.get("client_id") not in self.clients:
            return web.Response(status=400, text="unknown client")
        assert query["response_type"] == "code"
        assert query["code_challenge_method"] == "S256"
        code = secrets.token_urlsafe(16)
        self.codes[code] = query
        back = {"error": self.deny} if self.deny else {"code": code}
        back |= {"state": query["state"], "iss": self.url, **self.answer}
        place = f"{query['redirect_uri']}?{urlencode(back)}"
        return web.Response(status=302, headers={"Location": place})

    async def token(self, request: web.Request) -> web.Response:
        self.calls["token"] += 1
        if self.gate is not None:
            await self.gate.wait()
        form = {name: str(value) for name, value in (await request.post()).items()}
        self.forms.append(form)
        if self.down:
            return _json({"error": "temporarily_unavailable"}, 503)
        client = self._client(request, form)
        if client is None:
            return _json({"error": "invalid_client"}, 401)
        match form.get("grant_type"):
            case "authorization_code":
                query = self.codes.pop(form.get("code", ""), None)
                digest = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
                challenge = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
                same = query is not None and all(
                    query[name] == value
                    for name, value in (
                        ("code_challenge", challenge),
                        ("redirect_uri", form["redirect_uri"]),
                        ("resource", form["resource"]),
                        ("client_id", client),
                    )
                )
                return self._issue(Family(client)) if same else _json({"error": "invalid_grant"}, 400)
            case "refresh_token":
                family = next((f for f in self.families if form["refresh_token"].startswith(f"{id(f)}.")), None)
                if family is not None and form["refresh_token"] != family.refresh:
                    family.revoked = True  # somebody has a copy
                if family is None or family.revoked or family.client != client:
                    return _json({"error": "invalid_grant", "error_description": "the token was revoked"}, 400)
                return self._issue(family)
            case "client_credentials":
                return self._issue(Family(client), refresh=False)
        return _json({"error": "unsupported_grant_type"}, 400)

    def _issue(self, family: Family, *, refresh: bool = True) -> web.Response:
        if family not in self.families:
            self.families.append(family)
        family.access = f"access-{secrets.token_urlsafe(12)}"
        body = {"access_token": family.access, "token_type": "bearer", "expires_in": self.expires_in}
        if refresh:
            family.refresh = body["refresh_token"] = f"{id(family)}.{secrets.token_urlsafe(12)}"
        return _json(body)

    def first_refresh_token(self, client: str = CLIENT) -> str:
        """Returns the refresh token of a login that was made elsewhere."""
        family = Family(client)
        self._issue(family)
        return family.refresh

    def _client(self, request: web.Request, form: dict[str, str]) -> str | None:
        identity, secret = form.get("client_id"), form.get("client_secret")
        kind, _, value = request.headers.get("Authorization", "").partition(" ")
        if kind == "Basic":
            identity, secret = map(unquote, base64.b64decode(value).decode().split(":"))
        return identity if identity in self.clients and self.clients[identity] == secret else None

    async def revoke(self, request: web.Request) -> web.Response:
        self.calls["revoke"] += 1
        form = await request.post()
        for family in self.families:
            if form["token"] in (family.access, family.refresh):
                family.revoked = True
        return web.Response()

    # ── the MCP endpoint ────────────────────────────────────────────────────────────────────────────────────────────

    def admits(self, authorization: str) -> bool:
        tokens = {family.access for family in self.families if not family.revoked}
        kind, _, token = authorization.partition(" ")
        return kind == "Bearer" and token in tokens and not self.refuse_all

    def challenge(self) -> web.Response:
        where = f"{self.url}/.well-known/oauth-protected-resource/mcp"
        return web.Response(
            status=401, headers={"WWW-Authenticate": f'Bearer resource_metadata="{where}", scope="read"'}
        )

    async def endpoint(self, request: web.Request) -> web.Response:
        """A small MCP server with one tool."""
        self.calls["endpoint"] += 1
        if not self.admits(request.headers.get("Authorization", "")):
            return self.challenge()
        if request.method != "POST":
            return web.Response(status=405)
        message = await request.json()
        match message["method"]:
            case "initialize":
                about = {"name": "notes", "version": "1"}
                version = message["params"]["protocolVersion"]
                result: Any = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": about}
            case "tools/list":
                schema = {"type": "object", "properties": {}}
                result = {"tools": [{"name": "read", "description": "Read my notes.", "inputSchema": schema}]}
            case "tools/call" if self.demanded and self.demanded not in self.scopes:
                header = f'Bearer error="insufficient_scope", scope="read {self.demanded}"'
                return web.Response(status=403, headers={"WWW-Authenticate": header})
            case "tools/call":
                self.calls["read"] += 1
                result = {"content": [{"type": "text", "text": "buy milk"}]}
            case _:
                return web.Response(status=202)
        return _json({"jsonrpc": "2.0", "id": message["id"], "result": result})

    async def agree(self, url: str) -> dict[str, str]:
        """What a browser brings back from an authorisation URL."""
        async with aiohttp.ClientSession() as session, session.get(url, allow_redirects=False) as response:
            assert response.status == 302, await response.text()
            query = parse_qs(urlsplit(response.headers["Location"]).query)
            return {name: values[0] for name, values in query.items()}


def _json(body: dict[str, Any], status: int = 200) -> web.Response:
    return web.json_response({name: value for name, value in body.items() if value is not None}, status=status)


@asynccontextmanager
async def authorization_server() -> AsyncIterator[AuthorizationServer]:
    server, app = AuthorizationServer(), web.Application()
    app.router.add_get("/.well-known/oauth-protected-resource/mcp", server.protected)
    app.router.add_get("/.well-known/oauth-authorization-server", server.described)
    app.router.add_post("/register", server.register)
    app.router.add_get("/authorize", server.authorize)
    app.router.add_post("/token", server.token)
    app.router.add_post("/revoke", server.revoke)
    app.router.add_route("*", "/mcp", server.endpoint)
    async with running(app) as server.url:
        yield server

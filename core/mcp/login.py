"""Logins of people at MCP servers: the authorisation code flow with PKCE, begun and finished by any process."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Literal

import msgspec

from core.config.redaction import redactor
from core.egress import check_url
from core.errors import Invalid, NotFound, Refused, SikaError, Unavailable
from core.events import Event
from core.ids import stamp
from core.mcp import oauth
from core.mcp.authorisation import ACTOR, BY_LOGIN, Authorisation, Server
from core.mcp.grants import (
    EVERYBODY,
    NONE,
    ClientRegistered,
    Grant,
    GrantIssued,
    GrantRevoked,
    Grants,
    LoginBegun,
    LoginFailed,
    LoginReturned,
    OAuthClient,
    OAuthIssuer,
)

LOGIN_SECONDS = 600.0
"""Time for a login."""
DISCOVERY_SECONDS = 40.0
PROBE = msgspec.json.encode(
    {
        "jsonrpc": "2.0",
        "id": 0,
        "method": "initialize",
        "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "sika", "version": "0"}},
    }
)


class Status(msgspec.Struct, kw_only=True):
    """The access of a person to a server. `failing`: there is access, and its renewal fails for the moment."""

    server: str
    state: Literal["none", "pending", "connected", "failing", "needs_login"]
    reason: str = ""
    expires_at: str | None = None
    scope: str | None = None
    issuer: str | None = None
    personal: bool = True


class Discovered(msgspec.Struct):
    resource: str
    scope: str | None
    issuer: OAuthIssuer


class Logins:
    """Begins, finishes and gives up logins."""

    def __init__(self, authorisation: Authorisation) -> None:
        self._of = authorisation

    async def begin(self, name: str, user: str, redirect: str, *, register: bool = False) -> str:
        """Returns the address to which the person is sent. `register`: registers another client, for issuers that have
        forgotten the last one. Raises `NotFound`, `Refused`, `Invalid` for metadata that cannot be trusted,
        `Unavailable`.
        """
        server = await self._of.servers(name, user)
        if not server.personal:
            raise Refused(f"{name}: its access is configured (oauth.grant_type); there is nothing to log in to")
        try:
            async with asyncio.timeout(DISCOVERY_SECONDS):
                grant = (await self._of.persons.load(user)).servers.get(name, NONE)
                known = await self._discover(server, grant)
                client = await self._client(server, known, redirect, register=register)
        except TimeoutError as error:
            raise Unavailable(f"{name}: its login was not described within {DISCOVERY_SECONDS:g} s") from error
        state, verifier = secrets.token_urlsafe(32), secrets.token_urlsafe(48)
        begun = LoginBegun(
            server=name,
            state=_digest(state),
            verifier=await self._of.sealed(verifier),
            issuer=known.issuer,
            client=client,
            redirect=redirect,
            resource=known.resource,
            scope=known.scope,
            expires_at=stamp(self._of.now() + timedelta(seconds=LOGIN_SECONDS)),
        )
        await self._of.persons.decide(user, lambda _: [begun], actor=ACTOR)
        return oauth.authorization_url(known.issuer, client, redirect, state, verifier, known.resource, known.scope)

    async def finish(self, user: str, query: Mapping[str, str]) -> str:
        """Takes a person's return, and returns the name of the server. Raises `Invalid` if it is not the return of a
        login of theirs, `Refused` with the reason if there is no access.
        """
        state = _digest(query.get("state", ""))
        begun = (await self._of.persons.load(user)).logins.get(state)
        if begun is None or self._of.now() > self._of.time(begun.expires_at):
            raise Invalid("This is not a login that you have begun, or it took too long; begin it again")

        def take(grants: Grants) -> Sequence[Event]:
            if state not in grants.logins:
                raise Invalid("This login was finished already")
            return [LoginReturned(server=begun.server, state=state)]

        await self._of.persons.decide(user, take, actor=ACTOR)
        try:
            issued = await self._redeem(await self._of.servers(begun.server, user), begun, query)
        except SikaError as error:
            failed = LoginFailed(server=begun.server, reason=redactor.text(str(error)))
            await self._of.persons.decide(user, lambda _: [failed], actor=ACTOR)
            raise Refused(f"{begun.server}: {failed.reason}") from error
        await self._of.persons.decide(user, lambda _: [issued], actor=ACTOR)
        return begun.server

    async def disconnect(self, name: str, user: str) -> str:
        """Gives up the access to a server, also at its issuer. Returns the reason if the issuer was not told. Raises
        `NotFound` if there is no access.
        """
        grant = (await self._of.persons.load(user)).servers.get(name)
        if grant is None:
            raise NotFound(f"{name}: you are not logged in there")
        reason = ""
        if grant.token is not None:
            try:
                reason = await self._of.revoke(await self._of.servers(name, user), grant.token)
            except NotFound:
                reason = "the server is not configured any more"
        event = GrantRevoked(server=name, reason=redactor.text(reason))
        await self._of.persons.decide(user, lambda grants: [event] if name in grants.servers else [], actor=ACTOR)
        return event.reason

    async def status(self, server: Server, user: str) -> Status:
        """Returns how it stands with the access to a server."""
        states, identity = self._of.where(server, user)
        grants = await states.load(identity)
        grant = grants.servers.get(server.name, NONE)
        status = Status(server=server.name, state="none", personal=server.personal, reason=grant.failure)
        if any(login.server == server.name for login in self._open(grants)):
            status.state = "pending"
        if grant.demanded:
            status.state, status.reason = "needs_login", grant.demanded
        elif grant.token is not None and grant.token.seed == self._of.seed(server):
            token = grant.token
            status.state = "failing" if grant.retry_at else "connected"
            status.expires_at, status.scope = token.expires_at, token.scope
            status.issuer = token.issuer.issuer if token.issuer else None
        elif grant.token is not None:
            status.state = "needs_login"
        elif grant.retry_at:
            status.state = "failing"
        return status

    def _open(self, grants: Grants) -> list[LoginBegun]:
        now = self._of.now()
        return [login for login in grants.logins.values() if now <= self._of.time(login.expires_at)]

    # ── discovery ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def _discover(self, server: Server, grant: Grant) -> Discovered:
        challenge = await self._challenge(server)
        resource = None
        for url in oauth.resource_urls(server.url, oauth.challenge_of(challenge, "resource_metadata")):
            if (body := await self._get(server, url)) is not None:
                resource = oauth.resource_of(body, server.url)
                break
        issuer = await self._issuer(server, resource)
        scope = server.settings.scope or oauth.challenge_of(challenge, "scope")
        if scope is None and resource is not None and resource.scopes_supported is not None:
            scope = " ".join(resource.scopes_supported) or None
        if grant.lacks:
            before = grant.token.scope if grant.token else None
            scope = " ".join(dict.fromkeys(f"{before or scope or ''} {grant.lacks}".split()))
        return Discovered(resource.resource if resource else server.url, scope, issuer)

    async def _challenge(self, server: Server) -> str:
        """Returns `WWW-Authenticate` of a call without a token."""
        headers = {**oauth.JSON, "Accept": "application/json, text/event-stream"}
        request = oauth.Request("POST", server.url, headers, PROBE)
        response = await self._of.http.send(request, private=server.private)
        return response.headers.get("www-authenticate", "") if response.status == 401 else ""

    async def _issuer(self, server: Server, resource: oauth.Resource | None) -> OAuthIssuer:
        """Returns the metadata of the server's authorisation server: the first that it names, else its own origin."""
        named = resource.authorization_servers if resource else ()
        issuer = named[0] if named else oauth.origin_of(server.url)
        for url in oauth.issuer_urls(issuer):
            if (body := await self._get(server, url)) is not None:
                known = oauth.issuer_of(body, issuer)
                for endpoint in oauth.endpoints(known):
                    check_url(endpoint, issuer, private=server.private, lifted_by="oauth.allow_private")
                return known
        raise Invalid(f"{server.name}: it does not describe how to log in (no metadata of {issuer})")

    async def _get(self, server: Server, url: str) -> bytes | None:
        """Returns a document; None if there is none."""
        response = await self._of.http.send(
            oauth.Request("GET", url, {"Accept": "application/json"}), private=server.private
        )
        if response.status >= 500:
            raise Unavailable(f"{oauth.origin_of(url)} answers {response.status}")
        return response.body if response.status == 200 else None

    async def _client(self, server: Server, known: Discovered, redirect: str, *, register: bool) -> OAuthClient:
        """Returns the configured client, or the one that is registered there, or registers one."""
        settings, issuer = server.settings, known.issuer
        if settings.client_id is not None:
            secret = settings.client_secret.reveal() if settings.client_secret else None
            method = oauth.method_of(issuer, secret=True) if secret else "none"
            sealed = await self._of.sealed(secret) if secret else None
            return OAuthClient(id=settings.client_id, secret=sealed, method=method)
        if issuer.client_id_metadata_document_supported and (document := oauth.document_of(redirect)):
            return OAuthClient(id=document)
        client = (await self._of.clients.load(EVERYBODY)).clients.get((issuer.issuer, redirect))
        if client is not None and not register:
            return client
        request = oauth.registration(issuer, redirect, known.scope)
        client, secret = oauth.registered(await self._of.http.send(request, private=server.private), issuer)
        if secret is not None:
            redactor.add(secret)
            client = msgspec.structs.replace(client, secret=await self._of.sealed(secret))
        event = ClientRegistered(issuer=issuer.issuer, redirect=redirect, client=client)
        await self._of.clients.decide(EVERYBODY, lambda _: [event], actor=ACTOR)
        return client

    async def _redeem(self, server: Server, begun: LoginBegun, query: Mapping[str, str]) -> GrantIssued:
        """Returns the grant for a code. Raises `SikaError` with the reason if there is none."""
        issuer, claimed = begun.issuer, query.get("iss")
        if claimed is None and issuer.authorization_response_iss_parameter_supported:
            raise Refused("the return does not name its issuer (iss)")
        if claimed is not None and claimed != issuer.issuer:
            raise Refused("the return is that of another issuer (iss)")
        if "error" in query or not query.get("code"):
            text = query.get("error_description") or query.get("error") or "no code"
            raise Refused(f"the authorisation server gives no access: {text[:200]}")
        secret, verifier = await self._of.opened(begun.client.secret), await self._of.opened(begun.verifier)
        request = oauth.redemption(
            issuer, begun.client, secret, query["code"], begun.redirect, verifier or "", begun.resource
        )
        try:
            token = oauth.token_of(await self._of.http.send(request, private=server.private), BY_LOGIN)
        except oauth.Refusal as error:
            if error.error == "invalid_client":
                await self._of.forget_client(issuer, begun.client)
            raise
        issued = await self._of.issued(server, token, None)
        return msgspec.structs.replace(
            issued, resource=begun.resource, issuer=issuer, client=begun.client, scope=token.scope or begun.scope
        )


def _digest(state: str) -> str:
    return hashlib.sha256(state.encode()).hexdigest()

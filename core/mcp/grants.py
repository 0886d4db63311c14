"""Access to MCP servers: logins, their tokens (sealed) and registered clients, as a fold over events.

A person's grants are the aggregate `mcp_grants/<user>`. Those of the installation (`client_credentials`,
`refresh_token`) and its registered clients are `mcp_clients/servers`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec

from core.events import Event, Record
from core.phrases import Phrase

PERSONS, SERVERS = "mcp_grants", "mcp_clients"
EVERYBODY = "servers"
"""The only aggregate of the kind `mcp_clients`."""
Method = Literal["none", "client_secret_basic", "client_secret_post"]
"""Authentication methods of a client."""
MOST_LOGINS = 20
"""Limit of logins of a person that were begun and not finished; older ones are forgotten."""


class OAuthClient(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A client of an authorisation server. `secret` is sealed."""

    id: str
    secret: str | None = None
    method: Method = "none"
    registered: bool = False
    """True if the server registered it itself (RFC 7591)."""


class OAuthEndpoints(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An authorisation server, and where it answers (RFC 8414 §2)."""

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    registration_endpoint: str | None = None
    revocation_endpoint: str | None = None
    token_endpoint_auth_methods_supported: tuple[str, ...] | None = None


class OAuthIssuer(OAuthEndpoints, frozen=True, kw_only=True, omit_defaults=True):
    """The metadata of an authorisation server that is used."""

    authorization_response_iss_parameter_supported: bool = False
    client_id_metadata_document_supported: bool = False


class LoginBegun(Event, frozen=True):
    """A person was sent to an authorisation server. `state`: SHA-256 of the parameter. `verifier` is sealed."""

    phrase = Phrase(
        "Login at a server begun",
        "开始登录服务器",
        "{server} at {issuer.issuer}",
        "{server}，{issuer.issuer}",
    )
    server: str
    state: str
    verifier: str
    issuer: OAuthIssuer
    client: OAuthClient
    redirect: str
    resource: str
    scope: str | None = None
    expires_at: str = ""


class LoginReturned(Event, frozen=True):
    """The person came back. The state is used up from here on, whatever becomes of its code."""

    phrase = Phrase("Person back from the login", "用户已从登录返回", "{server}")
    server: str
    state: str


class LoginFailed(Event, frozen=True):
    """A login ended without access."""

    phrase = Phrase("Login at a server failed", "登录服务器失败", "{server}: {reason}")
    server: str
    reason: str


class LoginDemanded(Event, frozen=True):
    """The server refuses what access there is. A person must log in. `scope`: what the access lacks; for the rest it
    stays in use.
    """

    phrase = Phrase("Server demands a login", "服务器要求登录", "{server}: {reason}")
    server: str
    reason: str
    scope: str | None = None


class GrantRequested(Event, frozen=True):
    """A process asks for a token. Others do not, until it has an answer, or until the time `until`. `refused`: the
    server has refused the present one.
    """

    phrase = Phrase("Access asked for", "请求访问令牌", "{server}")
    server: str
    until: str
    refused: bool = False


class GrantIssued(Event, frozen=True):
    """There is a token from here on. `access` and `refresh` are sealed. `seed` is a hash of the settings it came of."""

    phrase = Phrase("Access granted", "已获得访问权", "{server}<, until {expires_at}>", "{server}<，至 {expires_at}>")
    server: str
    access: str
    token_type: str = "Bearer"
    refresh: str | None = None
    expires_at: str | None = None
    scope: str | None = None
    resource: str | None = None
    issuer: OAuthIssuer | None = None
    client: OAuthClient | None = None
    seed: str = ""


class GrantFailed(Event, frozen=True):
    """No token was got. It is tried again at `retry_at`; None: not before something else changes."""

    phrase = Phrase(
        "Access not granted",
        "未获得访问权",
        "{server}: {reason}; <again at {retry_at}><!retry_at?given up>",
        "{server}：{reason}；<{retry_at} 重试><!retry_at?已放弃>",
    )
    server: str
    reason: str
    retry_at: str | None = None
    seed: str = ""


class GrantRevoked(Event, frozen=True):
    """A person gave access up. `reason`: why the authorisation server was not told, if so."""

    phrase = Phrase("Access given up", "已放弃访问权", "{server}<: {reason}>")
    server: str
    reason: str = ""


class ClientRegistered(Event, frozen=True):
    """An authorisation server has registered this installation."""

    phrase = Phrase(
        "Registered at a login server",
        "已在登录服务器注册",
        "{client.id} at {issuer}",
        "{issuer} 的 {client.id}",
    )
    issuer: str
    redirect: str
    client: OAuthClient


class ClientForgotten(Event, frozen=True):
    """An authorisation server does not know the client any more."""

    phrase = Phrase("Registration void", "注册已失效", "{client} at {issuer}", "{issuer} 的 {client}")
    issuer: str
    client: str


class Grant(msgspec.Struct, frozen=True, kw_only=True):
    """The access to a server, as it stands."""

    token: GrantIssued | None = None
    demanded: str = ""
    """The reason why somebody must log in, if so."""
    lacks: str = ""
    """The scopes that the next login asks for besides."""
    failure: str = ""
    """The reason of the last failure since the token was issued."""
    failures: int = 0
    retry_at: str | None = None
    requested_until: str = ""
    refused: bool = False
    """True if the token was requested because the server had refused the one before."""
    issued_at: str = ""
    seed: str = ""
    """The settings with which the last request was made."""


class GrantsKept(Event, frozen=True):
    """All access as it stands: earlier events are not needed any more, and are purged."""

    phrase = Phrase(
        "Access summed up",
        "访问权已汇总",
        "access to <{servers}><!servers?no server>",
        "<{servers}><!servers?没有服务器>",
    )
    servers: Mapping[str, Grant] = {}
    logins: Sequence[LoginBegun] = ()
    clients: Sequence[ClientRegistered] = ()


class Grants(NamedTuple):
    """All access of a person, or of the installation. `logins`: those begun, by their states."""

    servers: Mapping[str, Grant] = {}
    logins: Mapping[str, LoginBegun] = {}
    clients: Mapping[tuple[str, str], OAuthClient] = {}
    """Registered clients by issuer and redirect URI."""
    events: int = 0
    """The number of events since the last `GrantsKept`."""


NONE = Grant()


def fold(records: Iterable[Record], grants: Grants) -> Grants:
    servers, logins, clients = dict(grants.servers), dict(grants.logins), dict(grants.clients)
    events = grants.events
    for record in records:
        events += 1
        match record.event:
            case GrantsKept() as kept:
                servers, logins, events = dict(kept.servers), {login.state: login for login in kept.logins}, 0
                clients = {(known.issuer, known.redirect): known.client for known in kept.clients}
            case LoginBegun() as event:
                logins[event.state] = event
                while len(logins) > MOST_LOGINS:
                    del logins[next(iter(logins))]
            case LoginReturned(state=state):
                logins.pop(state, None)
            case ClientRegistered() as event:
                clients[event.issuer, event.redirect] = event.client
            case ClientForgotten() as event:
                clients = {place: client for place, client in clients.items() if client.id != event.client}
            case GrantRevoked(server=server):
                servers.pop(server, None)
            case (LoginFailed() | LoginDemanded() | GrantRequested() | GrantIssued() | GrantFailed()) as event:
                servers[event.server] = _changed(servers.get(event.server, NONE), event, record.at)
    return Grants(servers, logins, clients, events)


def snapshot(grants: Grants) -> GrantsKept:
    """Returns the fact of all access."""
    clients = [
        ClientRegistered(issuer=issuer, redirect=redirect, client=client)
        for (issuer, redirect), client in grants.clients.items()
    ]
    return GrantsKept(servers=grants.servers, logins=list(grants.logins.values()), clients=clients)


def _changed(
    grant: Grant, event: LoginFailed | LoginDemanded | GrantRequested | GrantIssued | GrantFailed, at: str
) -> Grant:
    match event:
        case GrantIssued():
            return Grant(token=event, issued_at=at, seed=event.seed, refused=grant.refused)
        case GrantRequested(until=until, refused=refused):
            return msgspec.structs.replace(grant, requested_until=until, refused=refused)
        case GrantFailed() if event.retry_at is None:
            return Grant(demanded=event.reason, seed=event.seed)
        case GrantFailed():
            return msgspec.structs.replace(
                grant,
                failure=event.reason,
                failures=grant.failures + 1,
                retry_at=event.retry_at,
                requested_until="",
                seed=event.seed,
            )
        case LoginDemanded(reason=reason, scope=str(scope)):
            return msgspec.structs.replace(grant, demanded=reason, lacks=scope)
        case LoginDemanded(reason=reason):
            return Grant(demanded=reason)
        case LoginFailed(reason=reason):
            return msgspec.structs.replace(grant, failure=reason)

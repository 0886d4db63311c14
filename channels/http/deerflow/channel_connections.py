"""Connections of users with people on chat platforms: made with a code, listed, ended."""

from __future__ import annotations

from typing import Literal

import msgspec

from channels.http.endpoints.call import Call
from channels.http.endpoints.endpoint import Routes
from channels.http.server.errors import HttpError
from channels.http.server.live import ACTOR
from channels.http.server.routes import API
from core.chat import connections, platforms
from core.chat.account import Account
from core.chat.connections import CODE_SECONDS, Connection, Connections, TooManyCodes
from core.chat.port import Traits
from core.config.channels import ALIASES, ConnectionProvider
from core.errors import Invalid, NotFound, Refused

Mode = Literal["deep_link", "binding_code"]
Unset = msgspec.UnsetType


class CredentialField(msgspec.Struct):
    """A credential that an administrator can enter for the bot (`/channels/{provider}/runtime-config`)."""

    name: str
    label: str
    type: Literal["password", "text"]
    required: bool


class Provider(msgspec.Struct, kw_only=True):
    """A platform. `configured`: an account is enabled and has its credentials; `connectable`: you can connect now.
    `credential_values` is empty: what was entered is not shown again.
    """

    provider: str
    display_name: str
    enabled: bool
    configured: bool
    connectable: bool
    unavailable_reason: str | Unset = msgspec.UNSET
    auth_mode: Mode
    connection_status: Literal["connected", "not_connected"]
    credential_fields: list[CredentialField]
    credential_values: dict[str, str]


class Providers(msgspec.Struct):
    """`enabled`: connections are on (`channel_connections.enabled`)."""

    enabled: bool
    providers: list[Provider]


class ConnectionShown(msgspec.Struct):
    """`account` is the bot, `external_account_id` the platform's id of the person."""

    id: str
    provider: str
    account: str
    status: Literal["connected"]
    external_account_id: str
    external_account_name: str
    created_at: str


class ConnectionsShown(msgspec.Struct):
    connections: list[ConnectionShown]


class Begun(msgspec.Struct, kw_only=True):
    """`url` opens the bot with the code (`deep_link`). `expires_in` in seconds."""

    provider: str
    mode: Mode
    url: str | Unset = msgspec.UNSET
    code: str
    instruction: str
    expires_in: int


ROUTES = Routes(mounts=API, tag="channels")


@ROUTES("GET", "/channels/providers", "assistants:read")
async def providers(call: Call) -> Providers:
    """The platforms, and whether you can connect, or are connected."""
    state = await _connections(call).state()
    connected = {connection.provider for connection in state.of_user(call.user)}
    accounts = await call.services.accounts.all()
    settings = call.config.channel_connections
    names = sorted({*platforms.names(), *settings.providers})
    shown = [_provider(call, name, accounts, connected) for name in names]
    return Providers(settings.enabled, [provider for provider in shown if provider is not None])


@ROUTES("GET", "/channels/connections", "assistants:read")
async def listed(call: Call) -> ConnectionsShown:
    """Your connections."""
    state = await _connections(call).state()
    return ConnectionsShown([_connection(connection) for connection in state.of_user(call.user)])


@ROUTES("POST", "/channels/{provider}/connect", "connections:write", errors=(404, 409), secret=True)
async def connect(call: Call, provider: str) -> Begun:
    """Get a code, and send it to the bot, which names your account and asks: from then on it knows you, and whoever has
    a key with this scope can become you to the bot. A code works once, within ten minutes. 429 if you
    have unused ones.
    """
    name = ALIASES.get(provider, provider)
    accounts = await call.services.accounts.all()
    offered = _provider(call, name, accounts, set())
    if offered is None:
        raise NotFound(f"Provider {provider[:64]!r} not found")
    if not offered.connectable:
        raise Refused(f"{offered.display_name}: {offered.unavailable_reason}")
    try:
        code = await _connections(call).offer(call.user, name)
    except TooManyCodes as error:
        raise HttpError(429, str(error), error.code, {"Retry-After": str(CODE_SECONDS)}) from None
    traits = platforms.traits(name, call.config)
    url = _url(traits, call.config.channel_connections.providers.get(name), code)
    instruction = f"Send this message to the bot on {traits.title}: /connect {code}"
    return Begun(
        provider=name,
        mode=offered.auth_mode,
        url=url or msgspec.UNSET,
        code=code,
        instruction=f"Open the link, or send this message to the bot: /connect {code}" if url else instruction,
        expires_in=CODE_SECONDS,
    )


@ROUTES("DELETE", "/channels/connections/{connection_id}", "connections:write", errors=(404,))
async def delete(call: Call, connection_id: str) -> None:
    """End a connection. The bot does not know you any more; conversations stay."""
    await _connections(call).revoke(call.user, connection_id)


def _connections(call: Call) -> Connections:
    return connections.Connections(call.services.log, actor=ACTOR)


def _provider(call: Call, name: str, accounts: dict[str, Account], connected: set[str]) -> Provider | None:
    """Returns a platform as it is shown; None if there is no such platform."""
    try:
        traits = platforms.traits(name, call.config)
    except Invalid:
        return None
    settings = call.config.channel_connections
    section = settings.providers.get(name, ConnectionProvider())
    of_platform = [account for account in accounts.values() if account.platform == name]
    configured = any(_complete(account, traits) for account in of_platform)
    reason = ""
    if not (settings.enabled and section.enabled):
        reason = "connections are off"
    elif not configured:
        reason = "the bot has no credentials, or is not enabled"
    fields = [
        CredentialField(each.key, each.label, "password" if each.secret else "text", True)
        for each in traits.credentials
    ]
    return Provider(
        provider=name,
        display_name=traits.title,
        enabled=settings.enabled and section.enabled,
        configured=configured,
        connectable=not reason,
        unavailable_reason=reason or msgspec.UNSET,
        auth_mode="deep_link" if _url(traits, section, "") else "binding_code",
        connection_status="connected" if name in connected else "not_connected",
        credential_fields=fields,
        credential_values={},
    )


def _complete(account: Account, traits: Traits) -> bool:
    return account.settings.enabled and all(account.values.get(each.key) for each in traits.credentials)


def _url(traits: Traits, section: ConnectionProvider | None, code: str) -> str:
    """Returns the address that opens the bot with a code; empty without the bot's name."""
    if not traits.deep_link or section is None or not section.bot_username:
        return ""
    return traits.deep_link.format(bot_username=section.bot_username.removeprefix("@"), code=code)


def _connection(connection: Connection) -> ConnectionShown:
    return ConnectionShown(
        id=connection.id,
        provider=connection.provider,
        account=connection.account,
        status="connected",
        external_account_id=connection.external,
        external_account_name=connection.name,
        created_at=connection.at,
    )

"""The accounts of chat platforms: their state, restart, credentials entered here;
and links to files that were too large for a chat."""

from __future__ import annotations

from typing import Annotated

import msgspec
from aiohttp import web
from anyio import to_thread

from channels.http.deerflow.artifacts import ANYTHING, content_of, send_saved
from channels.http.endpoints.call import Call
from channels.http.endpoints.endpoint import Routes
from channels.http.server.errors import BadRequest, Forbidden
from channels.http.server.live import ACTOR
from channels.http.server.routes import API
from core.chat import platforms
from core.chat.account import Account, Accounts
from core.chat.check import checked
from core.chat.links import GONE, Links
from core.chat.port import Finding
from core.chat.status import Status, request, statuses
from core.config.channels import ALIASES
from core.config.redaction import redactor
from core.errors import Invalid, NotFound


class ChannelStatus(msgspec.Struct):
    """`running`: a process serves the account. `reason` and `last_failure` are for administrators. Times are null
    where something has never been, or is not known."""

    enabled: bool
    running: bool
    state: str
    reason: str
    connected_since: str | None
    last_in: str | None
    last_out: str | None
    open_deliveries: int | None
    failures: int
    last_failure: str
    rate_limited_until: str | None


class Service(msgspec.Struct):
    """`service_running`: a process serves one of the accounts. `channels`: by the accounts' names."""

    service_running: bool
    channels: dict[str, ChannelStatus]


class Restarted(msgspec.Struct):
    success: bool
    message: str


class Credentials(msgspec.Struct):
    """`values`: the credentials by their keys, such as `{"bot_token": "…"}`. An empty one keeps what is configured."""

    values: dict[str, str]


class CheckFinding(msgspec.Struct):
    """The result of one check. `advice`: the remedy."""

    ok: bool
    what: str
    advice: str


class Checked(msgspec.Struct):
    """`ok`: all checks are well."""

    ok: bool
    findings: list[CheckFinding]


class Field(msgspec.Struct):
    """A credential. `set`: there is a value, which is never shown."""

    name: str
    label: str
    type: str
    set: bool


class Entry(msgspec.Struct):
    """An account after a change. `runtime`: credentials were entered, which win over the configuration."""

    provider: str
    display_name: str
    enabled: bool
    configured: bool
    runtime: bool
    credential_fields: list[Field]


ROUTES = Routes(mounts=API, tag="channels")


@ROUTES("GET", "/channels/", "assistants:read")
async def get(call: Call) -> Service:
    """The accounts of chat platforms, and what their processes say."""
    accounts = await _accounts(call).all()
    enabled = {name: account.settings.enabled for name, account in accounts.items()}
    admin = call.principal.is_admin
    reports = await statuses(call.services.log.bus, enabled)
    shown = {status.account: _status(status, enabled[status.account], admin) for status in reports}
    return Service(any(each.running for each in shown.values()), shown)


@ROUTES("POST", "/channels/{name}/restart", "admin", role="admin", errors=(404,))
async def restart(call: Call, name: str) -> Restarted:
    """Have an account's connection made anew, as after a change of its permissions. 503 if no process serves it."""
    name = _usual(name)
    if (await _account(call, name)) is None:
        raise NotFound(f"there is no account {name[:64]!r}")
    await request(call.services.log.bus, name, "restart")
    return Restarted(True, f"The connection of {name} is made anew.")


@ROUTES("POST", "/channels/{name}/test", "admin", role="admin", errors=(404,))
async def test(call: Call, name: str) -> Checked:
    """Ask the platform about an account's credentials and permissions, as `sika channels test` does."""
    account = await _account(call, _usual(name))
    if account is None:
        raise NotFound(f"there is no account {name[:64]!r}")
    try:
        findings = await checked(platforms.connect(account, call.config))
    except Invalid as error:  # credentials are missing
        findings = [Finding(False, str(error))]
    shown = [CheckFinding(each.ok, redactor.text(each.what), redactor.text(each.advice)) for each in findings]
    return Checked(all(each.ok for each in findings), shown)


@ROUTES("POST", "/channels/{provider}/runtime-config", "admin", role="admin", errors=(400, 404))
async def configure(call: Call, provider: str, body: Credentials) -> Entry:
    """Enter the credentials of an account, and enable it. They are sealed, win over the configuration, and are not
    shown again."""
    name = _usual(provider)
    account = await _described(call, name)
    known = {each.key for each in platforms.traits(account.platform, call.config).credentials}
    if unknown := [key for key in body.values if key not in known]:
        raise BadRequest(f"{unknown[0][:64]}: unknown key; there are: {', '.join(sorted(known))}")
    values = {key: value.strip() for key, value in body.values.items() if value.strip()}
    if missing := sorted(key for key in known if not (values.get(key) or account.values.get(key))):
        raise BadRequest(f"missing: {', '.join(missing)}")
    try:
        await _accounts(call).configure(name, values, actor=ACTOR, by=call.user)
    except Invalid as error:
        raise BadRequest(str(error)) from error
    return await _entry(call, name)


@ROUTES("DELETE", "/channels/{provider}/runtime-config", "admin", role="admin", errors=(404,))
async def reset(call: Call, provider: str) -> Entry:
    """Forget the credentials that were entered: those of the configuration count again."""
    name = _usual(provider)
    await _described(call, name)
    await _accounts(call).reset(name, actor=ACTOR, by=call.user)
    return await _entry(call, name)


@ROUTES("GET", "/channels/files/{token}", public=True, errors=(404,))
async def file(call: Call, token: str) -> Annotated[web.StreamResponse, ANYTHING]:
    """Save a file that was too large for a chat, by the link that was posted there. Links are valid for a week."""
    home = call.services.home
    shared = await to_thread.run_sync(Links(home, lambda: call.config).opened, token)
    try:
        content = await to_thread.run_sync(content_of, home, shared.user, shared.thread, shared.path)
    except (BadRequest, Forbidden):
        raise NotFound(GONE) from None
    return await send_saved(call.request, content)


def _accounts(call: Call) -> Accounts:
    return call.services.accounts


def _usual(name: str) -> str:
    return ALIASES.get(name, name)


async def _account(call: Call, name: str) -> Account | None:
    return await _accounts(call).get(name)


async def _described(call: Call, name: str) -> Account:
    """Returns an account, also one that is not configured yet. Raises `NotFound` for a platform that is not there."""
    account = await _account(call, name) or Account.fresh(name)
    try:
        platforms.traits(account.platform, call.config)
    except Invalid as error:
        raise NotFound(str(error)) from None
    return account


async def _entry(call: Call, name: str) -> Entry:
    account = await _described(call, name)
    traits = platforms.traits(account.platform, call.config)
    fields = [
        Field(each.key, each.label, "password" if each.secret else "text", bool(account.values.get(each.key)))
        for each in traits.credentials
    ]
    runtime = await _accounts(call).entered(name)
    return Entry(name, traits.title, account.settings.enabled, all(field.set for field in fields), runtime, fields)


def _status(status: Status, enabled: bool, admin: bool) -> ChannelStatus:
    return ChannelStatus(
        enabled=enabled,
        running=status.state not in ("disabled", "not running"),
        state=status.state,
        reason=status.reason if admin else "",
        connected_since=status.connected_since or None,
        last_in=status.last_in or None,
        last_out=status.last_out or None,
        open_deliveries=status.open_deliveries,
        failures=status.failures,
        last_failure=status.last_failure if admin else "",
        rate_limited_until=status.rate_limited_until or None,
    )

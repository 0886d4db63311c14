"""Accounts and API keys of everybody, for administrators: what `sika user` and `sika key` do, over HTTP."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated, Literal

import msgspec

from channels.http.accounts.access import ENTRY, Gate
from channels.http.endpoints.call import Call
from channels.http.endpoints.endpoint import Created, Routes
from channels.http.server.errors import Forbidden
from channels.http.server.live import ACTOR
from channels.http.server.routes import API
from core.errors import NotFound
from core.identity.accounts import Account, AccountRole, Accounts, Key
from core.identity.passwords import generate


class UserEntry(msgspec.Struct):
    """`verified`: the operator or an identity provider vouches for the address. `needs_setup`: the password was made
    for the person, who should choose another. `keys`: how many work.
    """

    id: str
    email: str
    system_role: Literal["admin", "user"]
    created_at: str
    disabled: bool
    verified: bool
    needs_setup: bool
    has_password: bool
    keys: int


class Users(msgspec.Struct):
    users: list[UserEntry]


class NewUser(UserEntry):
    """`password`: a generated one, shown this once; the person is to change it."""

    password: str


class Creation(msgspec.Struct):
    email: Annotated[str, msgspec.Meta(max_length=254)]
    role: AccountRole = "user"


class UserChange(msgspec.Struct):
    """What is left out stays as it is."""

    role: AccountRole | None = None
    disabled: bool | None = None


class Generated(msgspec.Struct):
    """`password`: shown this once; all sessions of the account have ended."""

    password: str


class UserKey(msgspec.Struct):
    """`own`: the person made it; others were made by an administrator."""

    id: str
    user: str
    email: str
    scopes: list[str] | None
    created_at: str
    expires_at: str | None
    own: bool


class NewUserKey(UserKey):
    """`key`: shown this once."""

    key: str


class UserKeys(msgspec.Struct):
    keys: list[UserKey]


class KeyCreation(msgspec.Struct):
    """`user`: an id or address. `scopes`: null for all that the person may do."""

    user: Annotated[str, msgspec.Meta(max_length=254)]
    scopes: Annotated[list[str], msgspec.Meta(max_length=100)] | None = None
    expires_in_days: Annotated[int, msgspec.Meta(ge=1, le=3660)] | None = None


ROUTES = Routes(mounts=API, tag="users", role="admin", secret=True)


@ROUTES("GET", "/users", "admin", errors=(409,))
async def get_users(call: Call, gate: Gate) -> Users:
    """All accounts, oldest first."""
    state = await gate.directory.accounts(now=True)
    return Users([_entry(state, each) for each in sorted(state.by_id.values(), key=lambda each: each.created_at)])


@ROUTES("POST", "/users", "admin", errors=(409,))
async def create(call: Call, gate: Gate, body: Creation) -> Created[NewUser]:
    """Make an account, with a password that its person is to change. Only by a session: an API key may not."""
    _by_session(call)
    password = generate()
    account = await gate.directory.create(
        body.email, password, role=body.role, verified=True, temporary=True, actor=ACTOR, by=call.user
    )
    state = await gate.directory.accounts()
    return NewUser(**msgspec.structs.asdict(_entry(state, account)), password=password)


@ROUTES("PATCH", "/users/{user_id}", "admin", errors=(404, 409))
async def change(call: Call, gate: Gate, user_id: str, body: UserChange) -> UserEntry:
    """Give an account another role, or disable or enable it. Sessions and keys of a disabled one end. 409 for the last
    administrator. Only by a session: an API key may not.
    """
    _by_session(call)
    account = await _account(gate, user_id)
    directory = gate.directory
    if body.role is not None:
        await directory.appoint(account.id, body.role, actor=ACTOR, by=call.user)
    if body.disabled is not None:
        await (directory.disable if body.disabled else directory.enable)(account.id, actor=ACTOR, by=call.user)
    state = await directory.accounts(now=True)
    return _entry(state, state.by_id[account.id])


@ROUTES("POST", "/users/{user_id}/reset-password", "admin", errors=(404, 409))
async def reset(call: Call, gate: Gate, user_id: str) -> Generated:
    """Give an account a new password, which its person is to change. Its sessions and own keys end.
    Only by a session: an API key may not.
    """
    _by_session(call)
    account, password = await _account(gate, user_id), generate()
    await gate.directory.set_password(account.id, password, temporary=True, actor=ACTOR, by=call.user)
    return Generated(password)


@ROUTES("GET", "/keys", "admin", errors=(409,))
async def get_keys(call: Call, gate: Gate) -> UserKeys:
    """The API keys of everybody that were not revoked, oldest first."""
    state = await gate.directory.accounts(now=True)
    keys = (key for key in state.keys.values() if not key.revoked)
    return UserKeys([_key(state, key) for key in sorted(keys, key=lambda key: key.created_at)])


@ROUTES("POST", "/keys", "admin", errors=(404, 409))
async def create_key(call: Call, gate: Gate, body: KeyCreation) -> Created[NewUserKey]:
    """Make an API key for somebody; it stays when they change their password. Only by a session: an API key may not."""
    _by_session(call)
    days = body.expires_in_days
    expires = None if days is None else datetime.now(UTC) + timedelta(days=days)
    key, text = await gate.directory.create_key(body.user, body.scopes, expires, actor=ACTOR, by=call.user)
    state = await gate.directory.accounts()
    return NewUserKey(**msgspec.structs.asdict(_key(state, key)), key=text.reveal())


@ROUTES("DELETE", "/keys/{key_id}", "admin", errors=(404, 409))
async def revoke_key(call: Call, gate: Gate, key_id: str) -> None:
    """End an API key, whoever has it."""
    await gate.directory.revoke_key(key_id, actor=ACTOR, by=call.user)


def _by_session(call: Call) -> None:
    """Raises `Forbidden` for a key: whoever has one would give themselves what the key was not granted."""
    if call.request[ENTRY].session is None:
        raise Forbidden("An API key may not change accounts or make keys; sign in")


async def _account(gate: Gate, user: str) -> Account:
    account = (await gate.directory.accounts(now=True)).by_id.get(user)
    if account is None:
        raise NotFound(f"user {user[:80]!r}: there is no such account")
    return account


def _entry(state: Accounts, account: Account) -> UserEntry:
    return UserEntry(
        account.id,
        account.email,
        account.role,
        account.created_at,
        account.disabled,
        account.verified,
        account.temporary,
        account.password is not None,
        len(state.keys_of(account.id)),
    )


def _key(state: Accounts, key: Key) -> UserKey:
    owner = state.by_id.get(key.user)
    scopes = None if key.scopes is None else sorted(key.scopes)
    return UserKey(key.id, key.user, owner.email if owner else "", scopes, key.created_at, key.expires_at, key.own)

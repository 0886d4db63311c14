"""Accounts and API keys: their events, the fold, and the rules of each decision. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import takewhile
from typing import Literal

import msgspec

from core.config.settings import Secret
from core.errors import Invalid, NotFound, Refused
from core.events import Aggregate, Event, Record
from core.identity.errors import EmailTaken, Initialized
from core.identity.sessions import Session
from core.ids import stamp
from core.phrases import Phrase

KIND = "identity"
ACCOUNTS = Aggregate(KIND, "accounts")

AccountRole = Literal["admin", "user"]

_EMAIL = re.compile(r"[^\s@<>\"',;:\\()\[\]]{1,64}@[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?")
_SCOPE = re.compile(r"[a-z]+(?::[a-z]+)?")
GRANTABLE = frozenset(
    {"admin", "assistants", "connections", "crons", "files", "memory", "runs", "skills", "store", "threads"}
)
"""The resources of keys' scopes; `runs` includes `runs:create`, `runs:read` and `runs:cancel`."""
EMAIL_CHARACTERS = 254
MOST_KEYS = 20
"""Keys of a user with which they can make no other."""


# `by` of a fact is the administrator who did it over HTTP. None: the person themselves, or a command on the server's
# machine.

# ── facts ────────────────────────────────────────────────────────────────────────────────────────────────────────────


class AccountCreated(Event, frozen=True):
    """A person has an account from here on. `verified`: the operator or an identity provider vouches that the address
    is theirs; after a self-registration it is false.
    """

    phrase = Phrase(
        "Account created",
        "账户已创建",
        "{user}: {email}, {role}<, by {by}>",
        "{user}：{email}，{role}<，{by}>",
    )
    user: str
    email: str
    role: AccountRole = "user"
    verified: bool = False
    by: str | None = None


class AccountRenamed(Event, frozen=True):
    """The person changed their address; the new one is not verified."""

    phrase = Phrase("Address of an account changed", "账户地址已更改", "{user}: {email}")
    user: str
    email: str


class AccountAppointed(Event, frozen=True):
    """The account has another role from here on."""

    phrase = Phrase(
        "Role of an account changed",
        "账户角色已更改",
        "{user}: {role}<, by {by}>",
        "{user}：{role}<，{by}>",
    )
    user: str
    role: AccountRole
    by: str | None = None


class AccountDisabled(Event, frozen=True):
    """The account cannot be used any more; its sessions and keys end."""

    phrase = Phrase("Account disabled", "账户已停用", "{user}<, by {by}>", "{user}<，{by}>")
    user: str
    by: str | None = None


class AccountEnabled(Event, frozen=True):
    """The account may be used again; its keys work again, its old sessions do not."""

    phrase = Phrase("Account enabled", "账户已启用", "{user}<, by {by}>", "{user}<，{by}>")
    user: str
    by: str | None = None


class PasswordSet(Event, frozen=True):
    """The account has another password; all its sessions end. `temporary`: the person should change it."""

    phrase = Phrase(
        "Password set",
        "密码已设定",
        "{user}<temporary?, to be changed><, by {by}>",
        "{user}<temporary?，需更改><，{by}>",
    )
    user: str
    hash: str
    """Argon2id, in PHC string format."""
    temporary: bool = False
    by: str | None = None

    def __repr__(self) -> str:
        return f"PasswordSet(user={self.user!r})"


class SessionEnded(Event, frozen=True):
    """The person signed out: the token of this session is invalid from here on."""

    phrase = Phrase("Signed out", "已退出登录", "{user} signed out", "{user} 已退出")
    user: str
    session: str
    """Its id, which is no secret."""
    expires_at: str
    """ISO 8601; the token is invalid after it, anyway."""


class AccountSignedOut(Event, frozen=True):
    """All sessions of the account end, at the person's wish. Its keys stay."""

    phrase = Phrase(
        "Signed out everywhere",
        "已在所有设备退出",
        "{user} signed out everywhere",
        "{user} 已在所有设备退出",
    )
    user: str


class KeyCreated(Event, frozen=True):
    """An API key of a user was created. The key itself is shown once and stored nowhere."""

    phrase = Phrase(
        "API key created",
        "API 密钥已创建",
        "{key} of {user}: <{scopes}><!scopes?all><, by {by}>",
        "{user} 的 {key}：<{scopes}><!scopes?全部权限><，{by}>",
    )
    key: str
    """Its public id, which is part of it."""
    user: str
    digest: str
    """SHA-256 of the key's 256 random bits, hexadecimal."""
    scopes: list[str] | None = None
    """None: all permissions of the user."""
    expires_at: str | None = None
    """ISO 8601; None: never."""
    own: bool = False
    """Its user made it, signed in with a session: it ends with their password."""
    by: str | None = None


class KeyRevoked(Event, frozen=True):
    """The key works no longer."""

    phrase = Phrase("API key revoked", "API 密钥已吊销", "{key}<, by {by}>", "{key}<，{by}>")
    key: str
    by: str | None = None


class SubjectLinked(Event, frozen=True):
    """The `subject` of the identity provider `issuer` signs in as this user from here on."""

    phrase = Phrase("Identity linked", "身份已关联", "{user}: {subject} at {issuer}", "{user}：{issuer} 的 {subject}")
    user: str
    issuer: str
    subject: str


# ── state ────────────────────────────────────────────────────────────────────────────────────────────────────────────


class Account(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    email: str
    role: AccountRole
    created_at: str
    verified: bool = False
    password: Secret | None = None
    """Its hash; None: only identity providers sign in."""
    temporary: bool = False
    disabled: bool = False
    version: int = 0
    """Sessions of an older version are invalid."""


class Key(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    user: str
    digest: str
    scopes: frozenset[str] | None
    created_at: str
    expires_at: str | None = None
    own: bool = False
    revoked: bool = False


class Accounts(msgspec.Struct, frozen=True, kw_only=True):
    """The accounts and keys. Treat as frozen: only `fold` makes new ones."""

    by_id: Mapping[str, Account] = {}
    by_email: Mapping[str, str] = {}
    keys: Mapping[str, Key] = {}
    subjects: Mapping[tuple[str, str], str] = {}
    """(issuer, subject) → user."""
    ended: Mapping[str, str] = {}
    """Sessions that were ended before they expired, with the time when they expire."""

    @property
    def has_admin(self) -> bool:
        return any(account.role == "admin" and not account.disabled for account in self.by_id.values())

    def keys_of(self, user: str) -> dict[str, Key]:
        """Returns the keys of a user that were not revoked, by id."""
        return {name: key for name, key in self.keys.items() if key.user == user and not key.revoked}

    def find(self, name: str) -> Account:
        """Returns the account with an id or address. Raises `NotFound`."""
        account = self.by_id.get(name) or self.by_id.get(self.by_email.get(name.strip().lower(), ""))
        if account is None:
            raise NotFound(f"user {name[:80]!r}: there is no such account")
        return account


EMPTY = Accounts()


def fold(records: Iterable[Record], start: Accounts = EMPTY) -> Accounts:
    """Returns the accounts after these records. Pure and total."""
    by_id, by_email = dict(start.by_id), dict(start.by_email)
    keys, subjects, ended = dict(start.keys), dict(start.subjects), dict(start.ended)
    for record in records:
        match record.event:
            case AccountCreated() as event if event.user not in by_id:
                by_id[event.user] = Account(
                    id=event.user, email=event.email, role=event.role, created_at=record.at, verified=event.verified
                )
                by_email[event.email] = event.user
            case KeyCreated() as key:
                keys[key.key] = Key(
                    id=key.key,
                    user=key.user,
                    digest=key.digest,
                    scopes=None if key.scopes is None else frozenset(key.scopes),
                    created_at=record.at,
                    expires_at=key.expires_at,
                    own=key.own,
                )
            case KeyRevoked(key=name) if name in keys:
                revoked = msgspec.structs.replace(keys.pop(name), revoked=True)
                keys |= {} if revoked.own else {name: revoked}  # people may make and end any number
            case SubjectLinked() as link:
                subjects[link.issuer, link.subject] = link.user
            case SessionEnded(session=name, expires_at=until):
                _drop_expired(ended, record.at)
                ended[name] = until
            case (
                AccountRenamed()
                | AccountAppointed()
                | AccountDisabled()
                | AccountEnabled()
                | AccountSignedOut()
                | PasswordSet() as event
            ) if event.user in by_id:
                before = by_id[event.user]
                after = by_id[event.user] = _changed(before, event)
                if after.email != before.email:
                    by_email.pop(before.email, None)
                    by_email[after.email] = after.id
                if isinstance(event, PasswordSet):
                    keys = {name: key for name, key in keys.items() if not (key.own and key.user == event.user)}
    return Accounts(by_id=by_id, by_email=by_email, keys=keys, subjects=subjects, ended=ended)


def _drop_expired(ended: dict[str, str], now: str) -> None:
    """Drops the sessions that have expired, up to the first one that has not: most expire in the order of their ends,
    and to look at all of them at each end would take longer with every one.
    """
    for session in [*takewhile(lambda session: ended[session] <= now, ended)]:
        del ended[session]


def _changed(
    account: Account,
    event: AccountRenamed | AccountAppointed | AccountDisabled | AccountEnabled | AccountSignedOut | PasswordSet,
) -> Account:
    match event:
        case AccountRenamed():
            return msgspec.structs.replace(account, email=event.email, verified=False)
        case AccountAppointed():
            return msgspec.structs.replace(account, role=event.role)
        case AccountDisabled():
            return msgspec.structs.replace(account, disabled=True, version=account.version + 1)
        case AccountEnabled():
            return msgspec.structs.replace(account, disabled=False)
        case AccountSignedOut():
            return msgspec.structs.replace(account, version=account.version + 1)
        case PasswordSet():
            return msgspec.structs.replace(
                account, password=Secret(event.hash), temporary=event.temporary, version=account.version + 1
            )


# ── rules ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def email(text: str) -> str:
    """Returns the address in its stored form: lower case, without spaces around. Raises `Invalid`."""
    address = text.strip().lower()
    if len(address) > EMAIL_CHARACTERS or not _EMAIL.fullmatch(address) or not address.isprintable():
        raise Invalid("email: expected an address like name@example.org")
    return address


def scopes(names: Iterable[str]) -> list[str]:
    """Returns the scopes of a key, sorted. Raises `Invalid` for an unknown scope."""
    unique = sorted(set(names))
    for name in unique:
        if not _SCOPE.fullmatch(name) or name.partition(":")[0] not in GRANTABLE:
            raise Invalid(f"scopes: {name[:40]!r} is none; they are about {', '.join(sorted(GRANTABLE))}")
    if not unique:
        raise Invalid("scopes: name at least one, or leave them out to grant all that the user may do")
    return unique


def create(
    state: Accounts, user: str, address: str, role: AccountRole, *, verified: bool, digest: str | None, temporary: bool
) -> Sequence[Event]:
    _require_free(state, address)
    if user in state.by_id:
        raise Refused(f"user {user}: there is such an account already")
    created = AccountCreated(user=user, email=address, role=role, verified=verified)
    return [created] if digest is None else [created, PasswordSet(user=user, hash=digest, temporary=temporary)]


def initialize(state: Accounts, user: str, address: str, digest: str) -> Sequence[Event]:
    if state.has_admin:
        raise Initialized("There is an administrator already")
    return create(state, user, address, "admin", verified=True, digest=digest, temporary=False)


def change_password(state: Accounts, checked: Account, digest: str, address: str | None) -> Sequence[Event]:
    """Returns the events of a new password (and address). Raises `Refused` if the account changed since the check."""
    user = checked.id
    account = state.find(user)
    if account.version != checked.version or account.disabled:
        raise Refused("The account was changed meanwhile; sign in again")
    renamed: list[Event] = []
    if address is not None and address != account.email:
        _require_free(state, address)
        renamed = [AccountRenamed(user=user, email=address)]
    return [*renamed, PasswordSet(user=user, hash=digest)]


def appoint(state: Accounts, name: str, role: AccountRole) -> Sequence[Event]:
    account = state.find(name)
    if account.role == role:
        return []
    if role != "admin":
        _require_another_admin(state, account)
    return [AccountAppointed(user=account.id, role=role)]


def disable(state: Accounts, name: str) -> Sequence[Event]:
    account = state.find(name)
    if account.disabled:
        return []
    _require_another_admin(state, account)
    return [AccountDisabled(user=account.id)]


def enable(state: Accounts, name: str) -> Sequence[Event]:
    account = state.find(name)
    return [AccountEnabled(user=account.id)] if account.disabled else []


def end_session(state: Accounts, session: Session) -> Sequence[Event]:
    if session.id in state.ended:
        return []
    until = stamp(datetime.fromtimestamp(session.exp, UTC))
    return [SessionEnded(user=session.sub, session=session.id, expires_at=until)]


def make_own_key(state: Accounts, key: KeyCreated) -> Sequence[Event]:
    """Returns the events of a key that its user makes. Raises `Refused` if they have too many."""
    if len(state.keys_of(key.user)) >= MOST_KEYS:
        raise Refused(f"You have {MOST_KEYS} keys already; revoke one first")
    return [key]


def revoke(state: Accounts, key: str, owner: str | None = None) -> Sequence[Event]:
    """Returns the events of the end of a key. Raises `NotFound` if there is no such key (of the owner)."""
    if key not in state.keys or (owner is not None and key not in state.keys_of(owner)):
        raise NotFound(f"key {key[:40]!r}: there is no such key")
    return [] if state.keys[key].revoked else [KeyRevoked(key=key)]


def link(
    state: Accounts, new_user: str, issuer: str, subject: str, address: str, *, may_create: bool
) -> Sequence[Event]:
    """Links a sign-in at an identity provider to its user: the linked one, the owner of the address, or a new one.

    An account of a self-registration is not linked: its address is not verified.
    """
    if (issuer, subject) in state.subjects:
        return []
    account = state.by_id.get(state.by_email.get(address, ""))
    if account is not None:
        if not account.verified:
            raise EmailTaken("There is an account with this address that was made with a password; sign in with it")
        return [SubjectLinked(user=account.id, issuer=issuer, subject=subject)]
    if not may_create:
        raise NotFound("There is no account for this address; ask an administrator for one")
    created = AccountCreated(user=new_user, email=address, verified=True)
    return [created, SubjectLinked(user=new_user, issuer=issuer, subject=subject)]


def _require_free(state: Accounts, address: str) -> None:
    if address in state.by_email:
        raise EmailTaken("There is an account with this address already")


def _require_another_admin(state: Accounts, account: Account) -> None:
    others = (other for other in state.by_id.values() if other.id != account.id and not other.disabled)
    if account.role == "admin" and not any(other.role == "admin" for other in others):
        raise Refused("This is the last administrator; appoint another one first")

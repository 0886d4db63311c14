"""The directory: creates and changes accounts, checks passwords, resolves sessions and keys to principals."""

from __future__ import annotations

import asyncio
import hmac
import math
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

import msgspec

from core.config.settings import Secret
from core.errors import Invalid
from core.events import Event
from core.identity import accounts, keys, sessions
from core.identity.accounts import ACCOUNTS, Account, AccountRole, Accounts, Key
from core.identity.activity import Activities
from core.identity.errors import Unauthenticated
from core.identity.installation import Installation
from core.identity.passwords import Passwords
from core.identity.principal import Principal
from core.ids import safe_id, uuid7
from core.log.repository import Repository
from core.log.store import EventLog

FRESH_SECONDS = 1.0
"""Maximum age of the accounts that authenticate a request: a revocation takes effect everywhere within this time."""


class Directory:
    """The accounts of the installation. One per process. `clock` (seconds) is for tests."""

    def __init__(
        self, log: EventLog, installation: Installation, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.installation = installation
        self.activities = Activities(log)
        self._repository = Repository(log, accounts.KIND, accounts.fold, accounts.EMPTY)
        self._passwords = Passwords()
        self._clock = clock
        self._state: Accounts = accounts.EMPTY
        self._read_at = -math.inf
        self._reading = asyncio.Lock()

    # ── principals ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def accounts(self, *, now: bool = False) -> Accounts:
        """Returns the accounts, at most `FRESH_SECONDS` old; with `now`, the current ones."""
        needed = self._clock() - (0 if now else FRESH_SECONDS)
        if self._read_at < needed:
            async with self._reading:
                if self._read_at < needed:  # not read meanwhile
                    began = self._clock()
                    self._state, self._read_at = await self._repository.load(ACCOUNTS.id), began
        return self._state

    async def of_session(self, token: str) -> tuple[Principal, sessions.Session]:
        """Returns a session's principal, and the session. Raises `Unauthenticated`."""
        session = sessions.read(token, self.installation.sessions, sessions.Session)
        return await self._establish(lambda state: _of_session(session, state)), session

    async def of_key(self, text: str) -> Principal:
        """Returns an API key's principal. Raises `Unauthenticated`."""
        presented = keys.parse(text)
        if presented is None:
            raise Unauthenticated("token_invalid", "The API key is not valid")
        return await self._establish(lambda state: _of_key(presented, state))

    async def _establish(self, judge: Callable[[Accounts], Principal]) -> Principal:
        """Retries a failure with current accounts: another process may have just created the account or key."""
        try:
            return judge(await self.accounts())
        except Unauthenticated:
            return judge(await self.accounts(now=True))

    def of_internal(self, token: str, user: str) -> Principal:
        """Returns the principal of a call from the server's own processes, for a user. Raises `Unauthenticated`,
        `Invalid`.
        """
        if not hmac.compare_digest(token.encode(errors="replace"), self.installation.internal.reveal().encode()):
            raise Unauthenticated("token_invalid", "The internal token is not valid")
        return Principal(safe_id(user, "X-Sika-User"), "internal")

    async def still(self, principal: Principal, session: sessions.Session | None) -> bool:
        """True if an authenticated principal would be authenticated again."""
        state = await self.accounts()
        try:
            if session is not None:
                return session.exp > time.time() and _of_session(session, state) == principal
            if principal.key is not None:
                return _of_stored_key(state.keys[principal.key], state) == principal
        except (Unauthenticated, KeyError):
            return False
        account = state.by_id.get(principal.user)
        return account is None or not account.disabled

    # ── people ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def create(
        self,
        email: str,
        password: str | None,
        *,
        role: AccountRole = "user",
        verified: bool = False,
        temporary: bool = False,
        user: str | None = None,
        actor: str = "http",
        by: str | None = None,
    ) -> Account:
        """Creates an account. Raises `EmailTaken`, `Refused`, `Invalid`."""
        address, identity = accounts.email(email), safe_id(user or uuid7(), "id")
        digest = None if password is None else await self._passwords.hash(password, address)
        state = await self._decide(
            lambda now: accounts.create(
                now, identity, address, role, verified=verified, digest=digest, temporary=temporary
            ),
            actor,
            by,
        )
        return state.by_id[identity]

    async def initialize(self, email: str, password: str) -> Account:
        """Creates the first administrator. Raises `Initialized` if there is one, also for the second of two concurrent
        calls.
        """
        address, identity = accounts.email(email), uuid7()
        accounts.initialize(await self.accounts(now=True), identity, address, "")  # before the work of hashing
        digest = await self._passwords.hash(password, address)
        state = await self._decide(lambda now: accounts.initialize(now, identity, address, digest), "http")
        return state.by_id[identity]

    async def check(self, email: str, password: str) -> Account | None:
        """Returns the account if this is its password. Takes as long for an unknown address."""
        state = await self.accounts(now=True)
        account = state.by_id.get(state.by_email.get(email.strip().lower(), ""))
        stored = account.password if account is not None and not account.disabled else None
        digest = stored.reveal() if stored else None
        return account if await self._passwords.verify(digest, password) else None

    async def change_password(self, checked: Account, new: str, email: str | None) -> Account:
        """Changes the password (and address) of an account that `check` returned. All its sessions end. Raises
        `EmailTaken`, `Invalid`, `Refused`.
        """
        address = None if email is None else accounts.email(email)
        digest = await self._passwords.hash(new, checked.email, address or "")
        state = await self._decide(lambda now: accounts.change_password(now, checked, digest, address), "http")
        return state.by_id[checked.id]

    async def signed_in(self, issuer: str, subject: str, email: str, *, may_create: bool) -> Account:
        """Returns the account of a sign-in at an identity provider, which it links or creates. Raises `EmailTaken`,
        `NotFound`, `Unauthenticated`.
        """
        address, identity = accounts.email(email), uuid7()
        state = await self._decide(
            lambda now: accounts.link(now, identity, issuer, subject, address, may_create=may_create), "http"
        )
        account = state.by_id[state.subjects[issuer, subject]]
        if account.disabled:
            raise Unauthenticated("user_not_found", "The account is disabled")
        return account

    async def set_password(
        self, name: str, password: str, *, temporary: bool, actor: str, by: str | None = None
    ) -> Account:
        """Sets a password for the operator, without the old one. All sessions end."""
        digest = await self._passwords.hash(password, name)
        return await self._decide_account(
            name,
            lambda now: [accounts.PasswordSet(user=now.find(name).id, hash=digest, temporary=temporary)],
            actor,
            by,
        )

    async def appoint(self, name: str, role: AccountRole, *, actor: str, by: str | None = None) -> Account:
        return await self._decide_account(name, lambda now: accounts.appoint(now, name, role), actor, by)

    async def disable(self, name: str, *, actor: str, by: str | None = None) -> Account:
        return await self._decide_account(name, lambda now: accounts.disable(now, name), actor, by)

    async def enable(self, name: str, *, actor: str, by: str | None = None) -> Account:
        return await self._decide_account(name, lambda now: accounts.enable(now, name), actor, by)

    # ── keys ────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def create_key(
        self,
        name: str,
        scopes: Sequence[str] | None,
        expires: datetime | None,
        *,
        actor: str,
        own: bool = False,
        by: str | None = None,
    ) -> tuple[Key, Secret]:
        """Creates a key. Returns it with its text, which is not stored. `own`: its user makes it."""
        if expires is not None and expires <= datetime.now(UTC):
            raise Invalid("expires: lies in the past")
        unique_scopes = None if scopes is None else accounts.scopes(scopes)
        until = None if expires is None else expires.astimezone(UTC).isoformat()
        identity, digest, text = keys.make()

        def decide(now: Accounts) -> Sequence[Event]:
            user = now.find(name).id
            key = accounts.KeyCreated(
                key=identity, user=user, digest=digest, scopes=unique_scopes, expires_at=until, own=own
            )
            return accounts.make_own_key(now, key) if own else [key]

        state = await self._decide(decide, actor, by)
        return state.keys[identity], text

    async def revoke_key(self, key: str, *, actor: str, owner: str | None = None, by: str | None = None) -> None:
        """Ends a key. Raises `NotFound` if there is no such key (of the owner)."""
        await self._decide(lambda now: accounts.revoke(now, key, owner), actor, by)

    # ── sessions ────────────────────────────────────────────────────────────────────────────────────────────────────

    def session(self, account: Account, seconds: int, *, persistent: bool = True) -> str:
        """Returns the token of a new session. `persistent`: the browser may keep it."""
        session = sessions.begin(account.id, account.version, seconds, persistent=persistent)
        return sessions.sign(session, self.installation.sessions)

    async def end_session(self, token: str, *, actor: str) -> None:
        """Invalidates a session's token. Raises `Unauthenticated` if it is invalid already."""
        _, session = await self.of_session(token)
        await self._decide(lambda now: accounts.end_session(now, session), actor)

    async def end_sessions(self, user: str, *, actor: str) -> None:
        """Invalidates all sessions of an account. Raises `NotFound` if there is no such account."""
        await self._decide(lambda now: [accounts.AccountSignedOut(user=now.find(user).id)], actor)

    async def _decide_account(
        self, name: str, decision: Callable[[Accounts], Sequence[Event]], actor: str, by: str | None
    ) -> Account:
        return (await self._decide(decision, actor, by)).find(name)

    async def _decide(
        self, decision: Callable[[Accounts], Sequence[Event]], actor: str, by: str | None = None
    ) -> Accounts:
        def signed(now: Accounts) -> Sequence[Event]:
            return [event if by is None else msgspec.structs.replace(event, by=by) for event in decision(now)]

        began = self._clock()
        state, _ = await self._repository.decide(ACCOUNTS.id, signed, actor=actor)
        async with self._reading:
            if began >= self._read_at:
                self._state, self._read_at = state, began
            else:  # a read began meanwhile; it may have missed this
                self._read_at = -math.inf
        return state


def _of_session(session: sessions.Session, state: Accounts) -> Principal:
    account = state.by_id.get(session.sub)
    if account is None:
        raise Unauthenticated("user_not_found", "The account of this session does not exist")
    if account.disabled or account.version != session.ver or session.id in state.ended:
        raise Unauthenticated("token_invalid", "The session was ended; sign in again")
    return Principal(account.id, account.role)


def _of_key(presented: keys.Presented, state: Accounts) -> Principal:
    key = state.keys.get(presented.id)
    if not presented.matches(key.digest if key else "") or key is None:
        raise Unauthenticated("token_invalid", "The API key is not valid")
    return _of_stored_key(key, state)


def _of_stored_key(key: Key, state: Accounts) -> Principal:
    account = state.by_id.get(key.user)
    if key.revoked or account is None or account.disabled:
        raise Unauthenticated("token_invalid", "The API key is not valid")
    if key.expires_at is not None and datetime.fromisoformat(key.expires_at) <= datetime.now(UTC):
        raise Unauthenticated("token_expired", "The API key has expired")
    return Principal(account.id, account.role, key.scopes, key.id)

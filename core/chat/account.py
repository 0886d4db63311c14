"""The accounts of an installation: those of the configuration, with credentials that an administrator entered since.

Entered credentials are facts of one aggregate, sealed (`core.identity.seal`). They win over the configuration, and
enable their account.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from core.chat.facts import ACCOUNT
from core.config.channels import AccountSettings
from core.config.redaction import redactor
from core.config.sections import Secret
from core.config.settings import Config
from core.errors import Invalid, SikaError
from core.events import Aggregate, Event, Record
from core.identity.seal import Seal
from core.log.repository import Repository
from core.log.store import EventLog
from core.phrases import Phrase

KIND = "channels"
SCOPE = "server"
"""Id of the aggregate of the whole installation."""
AGGREGATE = Aggregate(KIND, SCOPE)
PURPOSE = "channels"
"""Purpose of the seals."""
MOST_VALUES = 20
MOST_CHARACTERS = 4096
"""Limits of entered credentials, and of each."""


class AccountConfigured(Event, frozen=True):
    """An administrator (`by`) entered credentials of an account. Values are sealed."""

    phrase = Phrase(
        "Bot credentials entered",
        "机器人凭据已填写",
        "{account}: {values}<, by {by}>",
        "{account}：{values}<，{by}>",
    )
    account: str
    values: Mapping[str, str]
    by: str | None = None


class AccountReset(Event, frozen=True):
    """The entered credentials of an account are void: those of the configuration count again. `by`: who did it."""

    phrase = Phrase("Bot credentials reset", "机器人凭据已重置", "{account}<, by {by}>", "{account}<，{by}>")
    account: str
    by: str | None = None


class Entered(msgspec.Struct, frozen=True):
    """Entered credentials by account, sealed."""

    values: Mapping[str, Mapping[str, str]] = {}


def fold(records: Iterable[Record], state: Entered) -> Entered:
    """Pure and total."""
    values = dict(state.values)
    for record in records:
        match record.event:
            case AccountConfigured(account=account, values=sealed):
                values[account] = sealed
            case AccountReset(account=account):
                values.pop(account, None)
    return Entered(values)


class Account(msgspec.Struct, frozen=True):
    """An account as it is to be served."""

    name: str
    settings: AccountSettings
    values: Mapping[str, Any]
    """Credentials and options, for the platform: see `reveal`."""
    problem: str = ""
    """Why its credentials cannot be used."""

    @classmethod
    def fresh(cls, name: str) -> Account:
        """Returns an account that is not configured."""
        return cls(name, AccountSettings(), {})

    @property
    def platform(self) -> str:
        return platform_of(self.name)


def platform_of(account: str) -> str:
    """Returns the platform of an account's name."""
    return account.partition("-")[0]


class Accounts:
    """The accounts that are configured now."""

    def __init__(self, log: EventLog, config: Callable[[], Config], seal: Seal) -> None:
        self.log = log
        self._states = Repository(log, KIND, fold, Entered())
        self._config, self._seal = config, seal

    async def all(self) -> dict[str, Account]:
        """Returns the accounts by name, those that are not enabled among them. Raises `Unavailable`."""
        state = await self._states.load(SCOPE)
        configured = dict(self._config().channels.accounts())
        return {name: self._account(name, configured.get(name), state) for name in {**configured, **state.values}}

    async def get(self, name: str) -> Account | None:
        """Returns an account. Raises `Unavailable`."""
        return (await self.all()).get(name)

    async def configure(self, name: str, values: Mapping[str, str], *, actor: str, by: str | None = None) -> None:
        """Enters credentials, which replace those that were entered before. Raises `Invalid`, `Unavailable`."""
        if not ACCOUNT.fullmatch(name):
            raise Invalid(f"{name[:64]!r} cannot be the name of an account")
        if len(values) > MOST_VALUES or any(len(value) > MOST_CHARACTERS for value in values.values()):
            raise Invalid(f"at most {MOST_VALUES} values of at most {MOST_CHARACTERS} characters")
        for value in values.values():
            redactor.add(value)
        sealed = {key: self._seal.seal(value, PURPOSE) for key, value in values.items()}
        event = AccountConfigured(account=name, values=sealed, by=by)
        await self._states.decide(SCOPE, lambda _: [event], actor=actor)

    async def reset(self, name: str, *, actor: str, by: str | None = None) -> bool:
        """Makes entered credentials void. Returns whether there were any. Raises `Unavailable`."""

        def decide(state: Entered) -> Sequence[Event]:
            return [AccountReset(account=name, by=by)] if name in state.values else []

        _, records = await self._states.decide(SCOPE, decide, actor=actor)
        return bool(records)

    async def exists(self, name: str) -> bool:
        """Returns whether an account is configured, or has entered credentials. Raises `Unavailable`."""
        return self._config().channels.account(name) is not None or await self.entered(name)

    async def entered(self, name: str) -> bool:
        """Returns whether an account has entered credentials."""
        return name in (await self._states.load(SCOPE)).values

    def _account(self, name: str, configured: AccountSettings | None, state: Entered) -> Account:
        settings, problem = configured or AccountSettings(), ""
        values = dict(settings.extra)
        if (sealed := state.values.get(name)) is not None:
            settings = msgspec.structs.replace(settings, enabled=True)
            try:
                values |= {key: Secret(self._seal.open(value, PURPOSE)) for key, value in sealed.items()}
            except SikaError as error:
                problem = f"the entered credentials cannot be used: {error}"
        return Account(name, settings, values, problem)

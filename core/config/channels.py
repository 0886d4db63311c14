"""Settings of chat platforms: their accounts, people, and how runs are set up (DeerFlow's names)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec

from core.config.sections import Off, Section
from core.errors import Invalid

ALIASES: Mapping[str, str] = {"lark": "feishu"}
"""Platforms by their other names."""
_NAME = re.compile(r"[a-z0-9_]{1,32}")
PLATFORM = re.compile(r"[a-z]+")


class SessionLayer(Section, frozen=True, kw_only=True):
    """Settings of the runs of one person's messages."""

    assistant_id: str | None = None
    """The agent that answers: `lead_agent`, or a custom one."""
    config: Mapping[str, Any] = {}
    """Part of the run's `config`, as `recursion_limit`."""
    context: Mapping[str, Any] = {}
    """Options of the run, as `thinking_enabled`."""


class Session(SessionLayer, frozen=True, kw_only=True):
    """Settings of runs. A platform's settings win over those of all platforms, a person's over both."""

    users: Mapping[str, SessionLayer] = {}
    """Settings of single people, by the platform's id."""


class AccountSettings(Section, frozen=True, kw_only=True):
    """An account of a chat platform: a bot. Its other keys are the platform's: its credentials, and what the platform's
    page lists."""

    enabled: bool = False
    """True connects the account."""
    allowed_users: tuple[str | int, ...] | str | int = ()
    """People who may talk to the agent, by the platform's ids. Empty: everybody, except on Telegram and Discord, which
    are open to the world."""
    allowed_chats: tuple[str | int, ...] | str | int = ()
    """Chats in which the agent takes part, by the platform's ids. Empty: all."""
    allow_everyone: bool = False
    """True: on a platform that is open to the world, an empty `allowed_users` means everybody, too."""
    require_mention: bool = True
    """True: in groups, only messages count that mention the bot or answer it."""
    on_busy: Literal["queue", "steer", "interrupt", "reject"] = "queue"
    """The fate of a message while a run works: it waits, goes to that run, ends it, or is refused."""
    gather_seconds: Annotated[float, msgspec.Meta(ge=0, le=10)] = 1.2
    """Messages that a person sends within this time after the last are answered together. Longer waits what may be a
    part of a longer text, and a file without words. 0: each message is answered by itself, also a file."""
    session: Session = Session()

    @property
    def people(self) -> frozenset[str]:
        """`allowed_users` as a set."""
        return _ids(self.allowed_users)

    @property
    def chats(self) -> frozenset[str]:
        """`allowed_chats` as a set."""
        return _ids(self.allowed_chats)


class ChannelSettings(AccountSettings, frozen=True, kw_only=True):
    """A chat platform: `slack`, `telegram`, `discord`, `feishu`, `dingtalk`, `webhook` or that of a package, and
    its account of that name. Its other keys are the platform's: its credentials, and what the platform's page lists."""

    use: str | None = None
    """The Python package of a platform that is not found by itself, with the modules `traits` and `platform`; or a
    single module that has all of it."""
    accounts: Mapping[str, AccountSettings] = {}
    """Further accounts by their names, as `work`: letters, digits and `_`."""

    def __post_init__(self) -> None:
        if wrong := [name for name in self.accounts if not _NAME.fullmatch(name)]:
            raise ValueError(f"accounts.{wrong[0]}: a name has small letters, digits and _, at most 32")


class Channels(Section, frozen=True, kw_only=True):
    """Accounts of chat platforms. Each is served by a process of its own."""

    processes: Literal["supervised", "external"] = "supervised"
    """`supervised`: the server starts them. `external`: you do, as `sika channel slack`."""
    session: Session = Session()
    platforms: Mapping[str, ChannelSettings] = {}

    def __post_init__(self) -> None:
        if wrong := [name for name in self.platforms if not PLATFORM.fullmatch(name)]:
            raise ValueError(f"{wrong[0]}: the name of a platform has small letters only")

    def accounts(self) -> Iterator[tuple[str, AccountSettings]]:
        """Yields the accounts and their names: `slack`, `slack-work`. The one of a platform's own name is there if it
        is enabled or has settings besides `accounts`."""
        for platform, settings in self.platforms.items():
            if settings.enabled or settings.extra or not settings.accounts:
                yield platform, settings
            for name, account in settings.accounts.items():
                yield f"{platform}-{name}", account

    def account(self, name: str) -> AccountSettings | None:
        """Returns the settings of an account, None if there are none."""
        return dict(self.accounts()).get(name)


class ConnectionProvider(Section, frozen=True, kw_only=True):
    """A platform to which people can connect their accounts."""

    enabled: bool = False
    """True offers it."""
    bot_username: str | None = None
    """The bot's name on the platform, for links that open it (Telegram)."""


class ChannelConnections(Off, frozen=True, kw_only=True):
    """Connections of people's accounts here with those on chat platforms, by a code that they send to the bot."""

    require_bound_identity: bool = True
    """True: the bot serves only people who have connected."""
    providers: Mapping[str, ConnectionProvider] = {}


def gather(raw: Any, fields: Sequence[str], into: str) -> Iterator[tuple[str, str]]:
    """Moves the sections of platforms, which stand beside the keys `fields`, to the key `into`, by their usual names.
    Yields the new and the old path of each, from `raw` on. Raises `Invalid` for one that is there twice."""
    if not isinstance(raw, dict) or not isinstance(raw.get(into, {}), dict):
        return
    for name in [name for name in raw if name not in fields and name != into]:
        usual = ALIASES.get(name, name)
        value = raw.pop(name)
        platforms = raw.setdefault(into, {})
        if usual in platforms:
            raise Invalid(f"{name}: the same platform as {usual}, which is there, too")
        platforms[usual] = {} if value is None else value
        yield f"{into}.{usual}", name


def _ids(value: tuple[str | int, ...] | str | int) -> frozenset[str]:
    values = value if isinstance(value, tuple) else (value,)
    return frozenset(text for text in (str(item).strip() for item in values) if text)

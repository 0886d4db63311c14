"""Accounts and API keys as lines, and what `sika user` and `sika key` share."""

from __future__ import annotations

import argparse
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import msgspec

from channels.cli.common import options_of
from channels.terminal.table import table
from channels.terminal.text import one_line
from core.errors import Invalid
from core.events import type_of
from core.identity.accounts import Account, AccountRole, Accounts, Key
from core.identity.activity import Listed
from core.identity.directory import Directory
from core.identity.installation import Installation
from core.identity.passwords import generate

ACTOR = "cli"
_SPAN = re.compile(r"(\d{1,5})([hdwy])")
_HOURS = {"h": 1, "d": 24, "w": 7 * 24, "y": 365 * 24}


async def create(
    directory: Directory, email: str, password: str | None, *, role: AccountRole, user: str | None
) -> tuple[Account, str | None]:
    """Creates an account. Returns it, and the generated password if none was passed."""
    generated = None if password else generate()
    account = await directory.create(
        email, password or generated, role=role, verified=True, temporary=generated is not None, user=user, actor=ACTOR
    )
    return account, generated


async def set_password(directory: Directory, name: str, password: str | None) -> tuple[Account, str | None]:
    """Sets a password. Returns the account, and the generated password if none was passed."""
    generated = None if password else generate()
    account = await directory.set_password(
        name, password or generated or "", temporary=generated is not None, actor=ACTOR
    )
    return account, generated


def people(state: Accounts) -> list[str]:
    """Returns a line per account, oldest first."""
    accounts = sorted(state.by_id.values(), key=lambda account: account.created_at)
    return table((each.id, each.role, one_line(each.email, 80), _notes(each)) for each in accounts)


def _notes(account: Account) -> str:
    notes = {"disabled": account.disabled, "no password": not account.password}
    return ", ".join(note for note, holds in notes.items() if holds)


def keys(state: Accounts, name: str | None = None) -> list[str]:
    """Returns a line per key (of a user), oldest first."""
    user = state.find(name).id if name else None
    some = [key for key in state.keys.values() if user in (None, key.user)]
    owners = {key.id: owner.email if (owner := state.by_id.get(key.user)) else key.user for key in some}
    some.sort(key=lambda key: key.created_at)
    return table((key.id, one_line(owners[key.id], 60), _scopes(key), _validity(key)) for key in some)


def moment(text: str) -> datetime:
    """Parses the expiry of a key: a span from now (`12h`, `30d`, `8w`, `1y`), a day (its end, UTC), or a time."""
    try:
        if match := _SPAN.fullmatch(text):
            return datetime.now(UTC) + timedelta(hours=int(match[1]) * _HOURS[match[2]])
        when = datetime.fromisoformat(text)
        if len(text) == len("2027-01-31"):
            when += timedelta(days=1)
    except (ValueError, OverflowError):
        raise Invalid(f"--expires: a span like 30d, or a day like 2027-01-31, is expected; got {text[:40]!r}") from None
    return when if when.tzinfo else when.replace(tzinfo=UTC)


def _scopes(key: Key) -> str:
    return ",".join(sorted(key.scopes)) if key.scopes is not None else "everything"


def _validity(key: Key) -> str:
    if key.revoked:
        return "revoked"
    if key.expires_at is None:
        return "for ever"
    over = datetime.fromisoformat(key.expires_at) <= datetime.now(UTC)
    return f"{'expired' if over else 'until'} {key.expires_at[:16].replace('T', ' ')}"


def activity(entries: Sequence[Listed]) -> list[str]:
    """Returns a line for each entry of an account's activity."""
    return table((listed.at[:19], type_of(type(listed.entry).__name__), _fields(listed.entry)) for listed in entries)


def _fields(entry: msgspec.Struct) -> str:
    return "  ".join(f"{name}={value}" for name in entry.__struct_fields__ if (value := getattr(entry, name)))


@asynccontextmanager
async def directory_of(arguments: argparse.Namespace) -> AsyncIterator[Directory]:
    from actors.wiring import compose

    options = options_of(arguments)
    async with compose.attach(options) as system:
        yield Directory(system.log, Installation(options.home))

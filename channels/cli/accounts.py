"""The commands of accounts: `sika user` and `sika key`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from channels.cli.common import OK, Add, name_list, options_of

if TYPE_CHECKING:
    from core.identity.directory import Directory


def account_commands(add: Add) -> None:
    """Adds the groups `user` and `key`."""
    users = add("user", None, "accounts of people").add_subparsers(required=True, metavar="WHAT")
    subparser = add("create", _user_create, "make an account; prints a password to be changed if none is given", users)
    subparser.set_defaults(writes=True)
    subparser.add_argument("email")
    subparser.add_argument("--role", choices=("user", "admin"), default="user")
    subparser.add_argument("--id", help="give it the things of this user, as `default`: those made without accounts")
    subparser.add_argument("--password-stdin", action="store_true", help="read the password from standard input")
    add("list", _user_list, "the accounts", users)
    subparser = add("password", _user_password, "set another password; all sessions end", users)
    subparser.add_argument("user", help="address or id")
    subparser.add_argument("--password-stdin", action="store_true", help="read the password from standard input")
    subparser = add("role", _user_role, "make somebody an administrator, or no longer", users)
    subparser.add_argument("user", help="address or id")
    subparser.add_argument("role", choices=("user", "admin"))
    subparser = add("disable", _user_disable, "end their sessions and keys, and let them in no more", users)
    subparser.add_argument("user", help="address or id")
    subparser = add("enable", _user_enable, "let them in again", users)
    subparser.add_argument("user", help="address or id")
    subparser = add("activity", _user_activity, "their latest sign-ins, uses of keys and refusals", users)
    subparser.add_argument("user", help="address or id; unknown: attempts for addresses without an account")

    keys = add("key", None, "API keys").add_subparsers(required=True, metavar="WHAT")
    subparser = add("create", _key_create, "make a key; it is shown once", keys)
    subparser.add_argument("--user", required=True, help="address or id")
    subparser.add_argument(
        "--scopes", type=name_list, metavar="A,B", help="as threads:read,runs (default: all the user may do)"
    )
    subparser.add_argument("--expires", metavar="WHEN", help="as 30d, 12h, or 2027-01-31 (default: never)")
    subparser = add("list", _key_list, "the keys", keys)
    subparser.add_argument("--user", help="address or id: only theirs")
    add("revoke", _key_revoke, "make a key worthless", keys).add_argument("key", help="its id")


@asynccontextmanager
async def _directory(arguments: argparse.Namespace) -> AsyncIterator[Directory]:
    from actors.wiring import compose
    from core.identity.directory import Directory
    from core.identity.installation import Installation

    options = options_of(arguments)
    async with compose.attach(options) as system:
        yield Directory(system.log, Installation(options.home))


def _read_password(arguments: argparse.Namespace) -> str | None:
    return sys.stdin.readline().rstrip("\r\n") if arguments.password_stdin else None


def _show_password(generated: str | None) -> None:
    """Prints a generated password, alone on standard output; the explanation goes to stderr."""
    if generated is not None:
        print("password, to be changed when signing in; it is not shown again:", file=sys.stderr)
        print(generated)


async def _user_create(arguments: argparse.Namespace) -> int:
    from channels.cli.admin import accounts

    password = _read_password(arguments)
    async with _directory(arguments) as directory:
        account, generated = await accounts.create(
            directory, arguments.email, password, role=arguments.role, user=arguments.id
        )
    print(f"{account.id}  {account.role}  {account.email}", file=sys.stderr)
    _show_password(generated)
    return OK


async def _user_list(arguments: argparse.Namespace) -> int:
    from channels.cli.admin import accounts

    async with _directory(arguments) as directory:
        for line in accounts.people(await directory.accounts()):
            print(line)
    return OK


async def _user_password(arguments: argparse.Namespace) -> int:
    from channels.cli.admin import accounts

    password = _read_password(arguments)
    async with _directory(arguments) as directory:
        account, generated = await accounts.set_password(directory, arguments.user, password)
    print(f"{account.email}: all sessions have ended", file=sys.stderr)
    _show_password(generated)
    return OK


async def _user_role(arguments: argparse.Namespace) -> int:
    async with _directory(arguments) as directory:
        account = await directory.appoint(arguments.user, arguments.role, actor="cli")
    print(f"{account.email}: {account.role}")
    return OK


async def _user_disable(arguments: argparse.Namespace) -> int:
    async with _directory(arguments) as directory:
        account = await directory.disable(arguments.user, actor="cli")
    print(f"{account.email}: disabled")
    return OK


async def _user_activity(arguments: argparse.Namespace) -> int:
    from channels.cli.admin import accounts
    from core.identity.activity import UNKNOWN

    async with _directory(arguments) as directory:
        name = arguments.user
        user = name if name == UNKNOWN else (await directory.accounts()).find(name).id
        for line in accounts.activity(await directory.activities.of(user)):
            print(line)
    return OK


async def _user_enable(arguments: argparse.Namespace) -> int:
    async with _directory(arguments) as directory:
        account = await directory.enable(arguments.user, actor="cli")
    print(f"{account.email}: enabled")
    return OK


async def _key_create(arguments: argparse.Namespace) -> int:
    from channels.cli.admin import accounts

    expires = None if arguments.expires is None else accounts.moment(arguments.expires)
    async with _directory(arguments) as directory:
        key, text = await directory.create_key(arguments.user, arguments.scopes, expires, actor=accounts.ACTOR)
    print(f"key {key.id}; it is not shown again:", file=sys.stderr)
    print(text.reveal())
    return OK


async def _key_list(arguments: argparse.Namespace) -> int:
    from channels.cli.admin import accounts

    async with _directory(arguments) as directory:
        for line in accounts.keys(await directory.accounts(), arguments.user):
            print(line)
    return OK


async def _key_revoke(arguments: argparse.Namespace) -> int:
    async with _directory(arguments) as directory:
        await directory.revoke_key(arguments.key, actor="cli")
    print(f"{arguments.key}: revoked")
    return OK

"""`sika user`: accounts of people, directly on the log."""

from __future__ import annotations

import argparse
import sys

from channels.cli.admin import accounts
from channels.cli.common import OK
from channels.cli.verbs import Parser
from core.identity.activity import UNKNOWN


def arguments(parser: Parser) -> None:
    add = parser.below()
    create = add(
        "create", _user_create, "make an account; prints a password to be changed if none is given", writes=True
    )
    create.add_argument("email")
    create.add_argument("--role", choices=("user", "admin"), default="user")
    create.add_argument("--id", help="give it the things of this user, as `default`: those made without accounts")
    create.add_argument("--password-stdin", action="store_true", help="read the password from standard input")
    add("list", _user_list, "the accounts")
    password = add("password", _user_password, "set another password; all sessions end")
    password.add_argument("user", help="address or id")
    password.add_argument("--password-stdin", action="store_true", help="read the password from standard input")
    role = add("role", _user_role, "make somebody an administrator, or no longer")
    role.add_argument("user", help="address or id")
    role.add_argument("role", choices=("user", "admin"))
    for name, command, text in (
        ("disable", _user_disable, "end their sessions and keys, and let them in no more"),
        ("enable", _user_enable, "let them in again"),
    ):
        add(name, command, text).add_argument("user", help="address or id")
    activity = add("activity", _user_activity, "their latest sign-ins, uses of keys and refusals")
    activity.add_argument("user", help="address or id; unknown: attempts for addresses without an account")


def _read_password(arguments: argparse.Namespace) -> str | None:
    return sys.stdin.readline().rstrip("\r\n") if arguments.password_stdin else None


def _show_password(generated: str | None) -> None:
    """Prints a generated password, alone on standard output; the explanation goes to stderr."""
    if generated is not None:
        print("password, to be changed when signing in; it is not shown again:", file=sys.stderr)
        print(generated)


async def _user_create(arguments: argparse.Namespace) -> int:
    password = _read_password(arguments)
    async with accounts.directory_of(arguments) as directory:
        account, generated = await accounts.create(
            directory, arguments.email, password, role=arguments.role, user=arguments.id
        )
    print(f"{account.id}  {account.role}  {account.email}", file=sys.stderr)
    _show_password(generated)
    return OK


async def _user_list(arguments: argparse.Namespace) -> int:
    async with accounts.directory_of(arguments) as directory:
        for line in accounts.people(await directory.accounts()):
            print(line)
    return OK


async def _user_password(arguments: argparse.Namespace) -> int:
    password = _read_password(arguments)
    async with accounts.directory_of(arguments) as directory:
        account, generated = await accounts.set_password(directory, arguments.user, password)
    print(f"{account.email}: all sessions have ended", file=sys.stderr)
    _show_password(generated)
    return OK


async def _user_role(arguments: argparse.Namespace) -> int:
    async with accounts.directory_of(arguments) as directory:
        account = await directory.appoint(arguments.user, arguments.role, actor="cli")
    print(f"{account.email}: {account.role}")
    return OK


async def _user_disable(arguments: argparse.Namespace) -> int:
    async with accounts.directory_of(arguments) as directory:
        account = await directory.disable(arguments.user, actor="cli")
    print(f"{account.email}: disabled")
    return OK


async def _user_enable(arguments: argparse.Namespace) -> int:
    async with accounts.directory_of(arguments) as directory:
        account = await directory.enable(arguments.user, actor="cli")
    print(f"{account.email}: enabled")
    return OK


async def _user_activity(arguments: argparse.Namespace) -> int:
    async with accounts.directory_of(arguments) as directory:
        name = arguments.user
        user = name if name == UNKNOWN else (await directory.accounts()).find(name).id
        for line in accounts.activity(await directory.activities.of(user)):
            print(line)
    return OK

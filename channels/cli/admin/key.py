"""`sika key`: API keys, directly on the log."""

from __future__ import annotations

import argparse
import sys

from channels.cli.admin import accounts
from channels.cli.common import OK, name_list
from channels.cli.verbs import Parser


def arguments(parser: Parser) -> None:
    add = parser.below()
    create = add("create", _key_create, "make a key; it is shown once")
    create.add_argument("--user", required=True, help="address or id")
    create.add_argument(
        "--scopes", type=name_list, metavar="A,B", help="as threads:read,runs (default: all the user may do)"
    )
    create.add_argument("--expires", metavar="WHEN", help="as 30d, 12h, or 2027-01-31 (default: never)")
    add("list", _key_list, "the keys").add_argument("--user", help="address or id: only theirs")
    add("revoke", _key_revoke, "make a key worthless").add_argument("key", help="its id")


async def _key_create(arguments: argparse.Namespace) -> int:
    expires = None if arguments.expires is None else accounts.moment(arguments.expires)
    async with accounts.directory_of(arguments) as directory:
        key, text = await directory.create_key(arguments.user, arguments.scopes, expires, actor=accounts.ACTOR)
    print(f"key {key.id}; it is not shown again:", file=sys.stderr)
    print(text.reveal())
    return OK


async def _key_list(arguments: argparse.Namespace) -> int:
    async with accounts.directory_of(arguments) as directory:
        for line in accounts.keys(await directory.accounts(), arguments.user):
            print(line)
    return OK


async def _key_revoke(arguments: argparse.Namespace) -> int:
    async with accounts.directory_of(arguments) as directory:
        await directory.revoke_key(arguments.key, actor="cli")
    print(f"{arguments.key}: revoked")
    return OK

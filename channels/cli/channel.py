"""The commands of chat platforms: `sika channel` and `sika channels`."""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from channels.cli.common import FAILED, OK, Add, log_to_stderr, options_of
from channels.cli.serve import LEAVE_SECONDS, end_within, on_signals

if TYPE_CHECKING:
    import anyio

    from core.chat.account import Accounts
    from core.config.settings import Config
    from core.runtime.system import System


def channel_commands(add: Add) -> None:
    channel = add("channel", _channel, "serve an account of a chat platform; `sika serve` starts these itself")
    channel.add_argument("platform", help="slack, telegram, feishu or dingtalk")
    channel.add_argument("--account", metavar="NAME", help="one of channels.<platform>.accounts")
    channel.add_argument("--supervised", metavar="HOLDER", default="", help=argparse.SUPPRESS)
    channel.set_defaults(log_level="info", serves=True)

    channels = add("channels", _channels, "the accounts of chat platforms: their state, and what they do")
    channels.add_argument("--json", action="store_true")
    trial = channels.add_subparsers(metavar="WHAT")
    subparser = add("test", _channels_test, "ask a platform about an account's credentials and permissions", trial)
    subparser.set_defaults(writes=True)  # before the first server, too: accounts are looked up in the log
    subparser.add_argument("platform", help="slack, telegram, feishu or dingtalk")
    subparser.add_argument("--account", metavar="NAME", help="one of channels.<platform>.accounts")
    subparser.add_argument("--json", action="store_true")


async def _channel(arguments: argparse.Namespace) -> int:
    import anyio

    from actors.wiring import accounts
    from core.config.load import ConfigSource, home

    folder, source = home(arguments.home), ConfigSource(arguments.config)
    log_to_stderr(source.current().log_level)
    name = accounts.named(arguments.platform, arguments.account)
    with anyio.CancelScope() as serving:
        if arguments.supervised:
            endpoint = await accounts.linked(source.current(), lambda: _end(serving))
        else:
            endpoint = accounts.endpoint(folder, source.current(), arguments.nats)
        on_signals(serving, accounts.STOP_SECONDS)
        await accounts.serve(name, folder, source, endpoint, arguments.supervised)
    end_within(LEAVE_SECONDS, OK, "threads do not end")
    return OK


def _end(serving: anyio.CancelScope) -> None:
    """Ends the process of an account, whose server is gone."""
    from actors.wiring import accounts

    end_within(accounts.STOP_SECONDS, FAILED, "not ended in time")
    serving.cancel()


@asynccontextmanager
async def _accounts(arguments: argparse.Namespace) -> AsyncIterator[tuple[System, Accounts, Config]]:
    """The running system, and its accounts of chat platforms."""
    from actors.wiring import compose
    from core.chat.account import Accounts
    from core.config.load import ConfigSource
    from core.identity.seal import Seal

    options = options_of(arguments)
    source = ConfigSource(options.config)
    async with compose.attach(options) as system:
        yield system, Accounts(system.log, source.current, Seal(options.home)), source.current()


async def _channels(arguments: argparse.Namespace) -> int:
    import msgspec

    from channels.cli.extend import channels
    from core.chat.status import statuses

    async with _accounts(arguments) as (system, accounts, _):
        enabled = {name: account.settings.enabled for name, account in (await accounts.all()).items()}
        reports = await statuses(system.bus, enabled)
    if arguments.json:
        print(msgspec.json.format(msgspec.json.encode(reports)).decode())
    else:
        print("\n".join(channels.lines(reports)))
    return OK


async def _channels_test(arguments: argparse.Namespace) -> int:
    from actors.wiring import accounts as process
    from channels.cli.extend import channels
    from core.chat import platforms

    name = process.named(arguments.platform, arguments.account)
    async with _accounts(arguments) as (_, accounts, config):
        account = await process.existing(accounts, name)
    lines, good = await channels.test(name, platforms.connect(account, config), raw=arguments.json)
    print("\n".join(lines))
    return OK if good else FAILED

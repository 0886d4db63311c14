"""`sika channel`: the process of an account of a chat platform."""

from __future__ import annotations

import argparse

import anyio

from channels.cli.common import FAILED, OK, log_to_stderr
from channels.cli.run.serve import LEAVE_SECONDS, end_within, on_signals
from channels.cli.verbs import Parser
from core.config.load import ConfigSource, home


def arguments(parser: Parser) -> None:
    parser.runs(_channel, log_level="info", serves=True)
    parser.add_argument("platform", help="slack, telegram, discord, feishu, dingtalk or webhook")
    parser.add_argument("--account", metavar="NAME", help="one of channels.<platform>.accounts")
    parser.add_argument("--supervised", metavar="HOLDER", default="", help=argparse.SUPPRESS)


async def _channel(arguments: argparse.Namespace) -> int:
    from actors.wiring import accounts

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

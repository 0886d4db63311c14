"""`sika channels`: the accounts of chat platforms."""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager

import msgspec

from channels.cli.common import FAILED, OK, options_of
from channels.cli.verbs import Parser
from channels.terminal.table import table
from channels.terminal.text import clean, one_line
from core.chat import platforms
from core.chat.account import Accounts
from core.chat.check import checked
from core.chat.port import Finding, Platform
from core.chat.status import Status, statuses
from core.config.load import ConfigSource
from core.config.settings import Config
from core.identity.seal import Seal
from core.runtime.system import System


def arguments(parser: Parser) -> None:
    parser.runs(_channels)
    parser.add_argument("--json", action="store_true")
    below = parser.below(required=False)
    guide = below(
        "setup", _channels_setup, "lead to an account on a platform, try it, and keep its credentials in .env"
    )
    guide.add_argument("platform", help="slack, telegram, discord, feishu, dingtalk or webhook")
    guide.add_argument("--account", metavar="NAME", help="one of channels.<platform>.accounts")
    trial = below(
        "test", _channels_test, "ask a platform about an account's credentials and permissions", writes=True
    )  # `writes`: before the first server, too: accounts are looked up in the log
    trial.add_argument("platform", help="slack, telegram, discord, feishu, dingtalk or webhook")
    trial.add_argument("--account", metavar="NAME", help="one of channels.<platform>.accounts")
    trial.add_argument("--json", action="store_true")


async def _channels_setup(arguments: argparse.Namespace) -> int:
    from channels.cli.extend import channel_setup

    return await channel_setup.command(arguments)


@asynccontextmanager
async def _accounts(arguments: argparse.Namespace) -> AsyncIterator[tuple[System, Accounts, Config]]:
    """The running system, and its accounts of chat platforms."""
    from actors.wiring import compose

    options = options_of(arguments)
    source = ConfigSource(options.config)
    async with compose.attach(options) as system:
        yield system, Accounts(system.log, source.current, Seal(options.home)), source.current()


async def _channels(arguments: argparse.Namespace) -> int:
    async with _accounts(arguments) as (system, accounts, _):
        enabled = {name: account.settings.enabled for name, account in (await accounts.all()).items()}
        reports = await statuses(system.bus, enabled)
    if arguments.json:
        print(msgspec.json.format(msgspec.json.encode(reports)).decode())
    else:
        print("\n".join(lines(reports)))
    return OK


async def _channels_test(arguments: argparse.Namespace) -> int:
    from actors.wiring import accounts as process

    name = process.named(arguments.platform, arguments.account)
    async with _accounts(arguments) as (_, accounts, config):
        account = await process.existing(accounts, name)
    found, good = await test(name, platforms.connect(account, config), raw=arguments.json)
    print("\n".join(found))
    return OK if good else FAILED


COLUMNS = ("ACCOUNT", "STATE", "SINCE", "LAST IN", "LAST OUT", "OPEN", "FAILED", "LIMITED UNTIL")


def lines(statuses: Sequence[Status]) -> Iterator[str]:
    """Yields a row for each account, and below it what is wrong. Times are UTC."""
    if not statuses:
        yield "no accounts of chat platforms; /docs/channels on your server says how to add one"
        return
    head, *rows = table(map(_cells, statuses), COLUMNS, right=[5, 6])
    yield head
    for status, row in zip(statuses, rows, strict=True):
        yield row
        if status.reason:
            yield f"    {one_line(clean(status.reason), 200)}"
        if status.last_failure:
            yield f"    last failure: {one_line(clean(status.last_failure), 200)}"


async def test(account: str, platform: Platform, *, raw: bool) -> tuple[list[str], bool]:
    """Checks an account. Returns the findings as lines, or as JSON, and whether all are well."""
    findings = await checked(platform)
    good = all(finding.ok for finding in findings)
    if raw:
        result = {"account": account, "ok": good, "findings": [finding._asdict() for finding in findings]}
        return [msgspec.json.format(msgspec.json.encode(result)).decode()], good
    return list(_findings(findings)), good


def _cells(status: Status) -> Sequence[object]:
    times = (_time(at) for at in (status.connected_since, status.last_in, status.last_out))
    pending = "?" if status.open_deliveries is None else status.open_deliveries
    counts = (pending, status.failures, _time(status.rate_limited_until))
    return one_line(status.account, 80), status.state, *times, *counts


def _findings(findings: Sequence[Finding]) -> Iterator[str]:
    for finding in findings:
        yield f"{'ok  ' if finding.ok else 'FAIL'}  {clean(finding.what)}"
        if finding.advice:
            yield f"      {clean(finding.advice)}"


def _time(at: str) -> str:
    return at[:19].replace("T", " ")

"""`sika asyncapi`: the bus for actors in other languages."""

from __future__ import annotations

import argparse
from importlib.metadata import version

import anyio.to_thread
import msgspec

from channels.cli.common import OK
from channels.cli.verbs import Parser
from core.config.load import load
from core.runtime.asyncapi import document


def arguments(parser: Parser) -> None:
    parser.runs(_asyncapi)


async def _asyncapi(arguments: argparse.Namespace) -> int:
    from actors.wiring import parts

    config = load(arguments.config)
    await anyio.to_thread.run_sync(parts.plugins_of, config, abandon_on_cancel=True)  # imports all event types
    print(msgspec.json.format(msgspec.json.encode(document(version("sika"), config.nats.prefix))).decode())
    return OK

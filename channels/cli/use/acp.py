"""`sika acp`: an agent of an editor."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from dataclasses import replace

from channels.cli.common import OK, options_of
from channels.cli.use.folders import settle_home
from channels.cli.verbs import Parser
from channels.client.aio import AsyncSikaClient
from channels.client.errors import ClientError
from channels.client.here import Consents
from channels.client.servers import announced, healthy, is_local
from channels.terminal.chat.chat import API_KEY, explained
from core.errors import SikaError


def arguments(parser: Parser) -> None:
    parser.runs(_acp)
    parser.add_argument("--url", help="a server elsewhere")


async def _acp(arguments: argparse.Namespace) -> int:
    from actors.wiring import compose
    from channels.acp.agent import serve

    arguments.here = True
    settle_home(arguments)
    options = options_of(arguments)
    url = arguments.url or announced(options.home)
    consents = Consents(options.home) if not arguments.url or is_local(arguments.url) else None

    async def talk(url: str, locate: Callable[[], str | None]) -> int:
        key = os.environ.get(API_KEY) or None
        try:
            async with AsyncSikaClient(url=url, api_key=key, locate=locate) as client:
                await serve(client, consents)
        except ClientError as error:
            raise SikaError(explained(error)) from error
        return OK

    if arguments.url:
        return await talk(arguments.url, lambda: None)
    if url is not None and await healthy(url):
        return await talk(url, lambda: announced(options.home))
    async with compose.serve(replace(options, port=0)) as url:
        return await talk(url, lambda: None)

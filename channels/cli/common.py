"""Shared parts of the commands: the options that all have, exit codes, and how the terminal's text is written."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from actors.wiring.options import Options
    from channels.client.aio import AsyncSikaClient
    from channels.terminal.log.digest import Digest
    from channels.terminal.log.story import Story
    from core.replay.money import Prices

OK, FAILED, WRONG, INTERRUPTED = 0, 1, 2, 130


def options_of(arguments: argparse.Namespace) -> Options:
    from actors.wiring.options import Options
    from core.config.load import home

    return Options(
        home=home(arguments.home),
        config=arguments.config,
        nats=arguments.nats,
        host=getattr(arguments, "host", None),
        port=getattr(arguments, "port", None),
        actors=getattr(arguments, "actors", None),
        own_process=True,
        writes=getattr(arguments, "writes", False),
    )


def prices_of(arguments: argparse.Namespace) -> Prices:
    """Returns today's prices of models; none, and says so, where the configuration is wrong: the log can be read."""
    from core.config.load import ConfigSource
    from core.errors import SikaError

    try:
        models = ConfigSource(arguments.config).current().models
    except SikaError as error:
        print(f"without prices: {error}", file=sys.stderr)
        return {}
    return {model.name: model.pricing for model in models if model.pricing is not None}


def width() -> int:
    """Returns the width of the terminal; in a pipe, that of lines that are not cut."""
    import shutil

    from core.phrases import UNCUT

    return shutil.get_terminal_size().columns if sys.stdout.isatty() else UNCUT


def story() -> Story:
    from channels.terminal.log.story import Story
    from channels.terminal.text import style_of

    return Story(style_of(sys.stdout), width())


def digest() -> Digest:
    from channels.terminal.log.digest import Digest
    from channels.terminal.text import style_of

    return Digest(story(), style_of(sys.stdout))


def count(text: str) -> int:
    if text.isdecimal():
        return int(text)
    raise argparse.ArgumentTypeError(f"a count is a number, got {text!r}")


def log_to_stderr(level: str) -> None:
    from core.observe import logs

    logs.configure(level, sys.stderr)


def port_number(text: str) -> int:
    if text.isdecimal() and int(text) <= 65535:
        return int(text)
    raise argparse.ArgumentTypeError(f"a port is a number from 0 to 65535, got {text!r}")


def name_list(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if not names:
        raise argparse.ArgumentTypeError("name at least one actor")
    return names


START_ONE = "start one with `sika serve`"


async def server_of(arguments: argparse.Namespace, hint: str = START_ONE) -> str:
    """Returns the address of the running server. Raises `Unavailable` if there is none."""
    from channels.client.servers import announced, healthy
    from core.errors import Unavailable

    home = options_of(arguments).home
    url = announced(home)
    if url is None or not await healthy(url):
        raise Unavailable(f"no server is running in {home}; {hint}")
    return url


@asynccontextmanager
async def client_of(arguments: argparse.Namespace, hint: str = START_ONE) -> AsyncIterator[AsyncSikaClient]:
    """A client of the running server; its errors are lines for people."""
    from channels.client.aio import AsyncSikaClient
    from channels.client.errors import ClientError
    from channels.terminal.chat.chat import API_KEY, explained
    from core.errors import SikaError

    url = await server_of(arguments, hint)
    try:
        async with AsyncSikaClient(url=url, api_key=os.environ.get(API_KEY) or None) as client:
            yield client
    except ClientError as error:
        raise SikaError(explained(error)) from error

"""`sika serve`: a server, its signals and its end."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import threading
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import structlog

from channels.cli.common import FAILED, OK, log_to_stderr, name_list, options_of, port_number
from channels.cli.verbs import Parser
from core import collector
from core.config.load import find, load

if TYPE_CHECKING:
    from collections.abc import Sequence

    from actors.wiring.options import Options
    from core.runtime.readiness import Finding

GRACE_SECONDS = 25.0
"""Limit of a server's drain after SIGTERM: orchestrators kill after 30 seconds."""
LEAVE_SECONDS = 2.0
"""Limit of the process's remaining life after that."""


def arguments(parser: Parser) -> None:
    parser.runs(_serve, log_level="info", serves=True)
    parser.add_argument("--host", help="address to listen on (default: 127.0.0.1)")
    parser.add_argument("--port", type=port_number, help="default: 2026; 0 picks a free one")
    parser.add_argument("--actors", type=name_list, metavar="A,B", help="only these actors (default: all)")
    parser.add_argument("--reload", action="store_true", help="for development: start again when the code changes")


async def _serve(arguments: argparse.Namespace) -> int:
    from actors.wiring import compose

    if arguments.reload:
        return await _reload(arguments)
    log_to_stderr(load(arguments.config).log_level)
    with collector.paused(), anyio.CancelScope() as starting:
        stop = on_signals(starting)
        options = options_of(arguments)
        examine = partial(_examined, options, arguments.port or None)
        async with compose.serve(replace(options, drains=True, examine=examine)) as url:
            starting.shield = True  # from here on nothing is cancelled: leaving the block drains
            print(f"Sika is ready on {url} (Ctrl-C stops it)", flush=True)
            await stop.wait()
    end_within(LEAVE_SECONDS, OK, "threads do not end")
    return OK


async def _examined(options: Options, port: int | None) -> Sequence[Finding]:
    """Returns what `sika doctor` says; its modules are loaded when it is asked."""
    from channels.cli.run import doctor

    return await doctor.findings(options, port)


async def _reload(arguments: argparse.Namespace) -> int:
    from channels.cli.run import reload

    config = load(arguments.config)
    command = [part for part in sys.argv[1:] if not (part.startswith("--r") and "--reload".startswith(part))]
    with anyio.CancelScope() as serving:
        on_signals(serving)
        await reload.serve(command, reload.watched(find(arguments.config) or Path("config.yaml"), config))
    return OK


def end_within(seconds: float, code: int, reason: str) -> None:
    """Kills the process after this time, even if threads of libraries still run."""

    def end() -> None:
        time.sleep(seconds)
        names = [thread.name for thread in threading.enumerate() if thread.is_alive() and not thread.daemon]
        structlog.get_logger("sika").error("ending without them", reason=reason, seconds=seconds, threads=names)
        os._exit(code)

    threading.Thread(target=end, name="end", daemon=True).start()


def on_signals(starting: anyio.CancelScope, seconds: float = GRACE_SECONDS) -> anyio.Event:
    """Handles signals: the first SIGINT or SIGTERM cancels the start or sets the event, the second ends the process, as
    does the end of `seconds`."""

    stop = anyio.Event()

    def received(number: int) -> None:
        if stop.is_set():
            os._exit(128 + number)
        stop.set()
        end_within(seconds, FAILED, "not drained in time")
        if not starting.shield:
            starting.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, received, number)
    return stop

"""A bot on Telegram with many idle chats and some busy ones, beside a bare echo bot on the same SDK."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import telegram

from core.events import RunCompleted, RunRequested
from core.runtime.system import System
from tests.bench.laboratory import Laboratory
from tests.bench.measure import Row, at_most, family, memory_bytes, percentile
from tests.channels.telegram.server import TelegramServer
from tests.chaos.chats import command_of, place
from tests.chaos.towns import TOWNS, Telegram, Webhook
from tests.support.workers import wait_for

IDLE, BUSY, TURNS = 1000, 100, 3
ROUNDS = 10
REST_SECONDS = 2.5
"""Time between messages of one person: no platform's pace holds the next reply up."""
SIGN, COMMAND, END = "message to the first sign", "command to its reply", "end of the run to the final text"
LIMITS = {SIGN: 60, COMMAND: 100, END: 150}
"""What a person who waits alone may have to wait, in milliseconds."""
KILLED = "kill of the account's process to its next connection"
LISTENING = re.compile(
    r"getUpdates|apps.connections|ping|gettoken|accessToken|tenant_access_token|users.info|/im/v1/chats|@me|/gateway|/commands"
)
"""Calls that nobody sees."""
_SECONDS = 600.0


def chats(lab: Laboratory) -> Iterator[Row]:
    """Milliseconds from a message to its run, and from the end of a run to its answer in the chat, p95."""
    idle, busy = (40, 10) if lab.quick else (IDLE, BUSY)
    lab.say(f"{idle} idle and {busy} busy chats")
    with TemporaryDirectory() as folder:
        begins, ends, memory = asyncio.run(_measured(Path(folder), idle, busy))
    echoes = asyncio.run(_echoed(busy))
    note = f"{idle} idle chats, {busy} busy ones; bare: an echo bot, from the message to its echo"
    yield Row(
        "message to run.requested (p95)",
        percentile(begins, 95) / percentile(echoes, 95),
        None,
        "ms",
        percentile(begins, 95),
        percentile(echoes, 95),
        note=note,
    )
    yield Row(
        "end of the run to the answer (p95)",
        percentile(ends, 95) / percentile(echoes, 95),
        None,
        "ms",
        percentile(ends, 95),
        percentile(echoes, 95),
        note=note,
    )
    yield Row("memory of the account's process (MB)", memory / (1 << 20))
    for name, make in TOWNS.items():
        if make is Webhook:  # it shows nothing before the answer
            continue
        lab.say(f"one person on {name}")
        with TemporaryDirectory() as folder:
            waits = asyncio.run(_waited(Path(folder), make(), 3 if lab.quick else ROUNDS))
        for what, limit in LIMITS.items():
            yield Row(f"{name}: {what} (ms, p50)", percentile(waits[what], 50), at_most(limit))
        yield Row(f"{name}: {KILLED} (ms)", waits[KILLED][0], note="the start of a process of Python with its imports")


async def _measured(path: Path, idle: int, busy: int) -> tuple[list[float], list[float], int]:
    town = Telegram()
    async with place(path, town, gather_seconds=0) as ([server], _, running):
        await _talk(town, range(idle), 0)
        first = await running.log.last()
        said = dict[str, float]()
        for turn in range(1, TURNS + 1):
            said |= await _talk(town, range(busy), turn)
        account = next(pid for pid in family(server.process.pid) if "channel" in command_of(pid))
        return *await _times(running, town.server, first, said), memory_bytes(account)


async def _waited(path: Path, town: Any, rounds: int) -> dict[str, list[float]]:
    """Returns the milliseconds that one person waits on an idle server."""
    waits: dict[str, list[float]] = {what: [] for what in LIMITS}
    async with place(path, town, gather_seconds=0) as ([server], _, running):
        await _talk(town, range(1), 0)
        for turn in range(1, rounds + 1):
            await asyncio.sleep(REST_SECONDS)
            before, seen = len(town.server.calls), await running.log.last()
            began = time.time()
            await town.say(0, f"question 0-{turn}")
            waits[SIGN].append(await _until(partial(_visible, town, before), began))
            shown = began + await _until(partial(_says, town, f"that was 0-{turn}.", 0), began) / 1000
            async for record in running.log.between(seen, await running.log.last()):
                if isinstance(record.event, RunCompleted):
                    waits[END].append(1000 * (shown - datetime.fromisoformat(record.head.at).timestamp()))
            await asyncio.sleep(REST_SECONDS)
            said, began = _said(town, "commands, too"), time.time()
            await town.say(0, "/help")
            waits[COMMAND].append(await _until(partial(_says, town, "commands, too", said), began))
        account, began = next(pid for pid in family(server.process.pid) if "channel" in command_of(pid)), time.time()
        os.kill(account, signal.SIGKILL)
        await _until(lambda: not town.connected(), began)
        waits[KILLED] = [await _until(town.connected, began)]
    return waits


def _visible(town: Any, before: int) -> bool:
    calls = town.server.calls[before:]
    return any(not LISTENING.search(f"{getattr(call, 'method', '')} {getattr(call, 'path', '')}") for call in calls)


def _said(town: Any, text: str) -> int:
    return sum(text in answer for answer in town.answers(0))


def _says(town: Any, text: str, before: int) -> bool:
    return _said(town, text) > before


async def _until(condition: Callable[[], object], began: float) -> float:
    """Returns the milliseconds until a condition holds."""
    async with asyncio.timeout(_SECONDS):
        while not condition():  # noqa: ASYNC110 - the server of tests has no event for what people see
            await asyncio.sleep(0.001)
    return 1000 * (time.time() - began)


async def _talk(town: Telegram, people: range, turn: int) -> dict[str, float]:
    """Has people ask, and waits for all answers. Returns the times of the questions by text."""
    said = dict[str, float]()
    for person in people:
        text = f"question {person}-{turn}"
        said[text] = time.time()
        await town.say(person, text)

    async def answered() -> bool:
        return all(any(f"that was {person}-{turn}." in text for text in town.answers(person)) for person in people)

    await wait_for(answered, _SECONDS, every=0.2)
    return said


async def _times(
    running: System, server: TelegramServer, first: int, said: dict[str, float]
) -> tuple[list[float], list[float]]:
    """Returns the milliseconds before each run's request, and after each run's end."""
    offset = time.time() - time.monotonic()
    shown = dict[str, float]()
    for call in server.calls:
        if call.method in ("sendMessage", "editMessageText") and "that was " in str(call.parameters.get("text")):
            shown.setdefault(str(call.parameters["text"]).rpartition("that was ")[2], call.at + offset)
    begins, ends, of_run = list[float](), list[float](), dict[str, str]()
    async for record in running.log.between(first, await running.log.last()):
        at = datetime.fromisoformat(record.head.at).timestamp()
        match record.event:
            case RunRequested(input=values) if values and record.run:
                text = str(values["messages"][-1]["content"])
                if text in said:
                    of_run[record.run] = text
                    begins.append(1000 * (at - said[text]))
            case RunCompleted() if record.run in of_run:
                key = f"{of_run[record.run].removeprefix('question ')}."
                if key in shown:
                    ends.append(1000 * (shown[key] - at))
    return begins, ends


async def _echoed(busy: int) -> list[float]:
    """Returns the milliseconds of an echo bot's answers: `busy` people write at once."""
    async with TelegramServer() as server:
        bot = telegram.Bot(server.token, base_url=f"{server.url}/bot", base_file_url=f"{server.url}/file/bot")
        async with bot:
            echoing = asyncio.create_task(_echo(bot))
            said = dict[str, float]()
            for number in range(busy):
                text = f"hello {number}"
                said[text] = time.monotonic()
                server.person(f"p{number}").says(text)
                await server.wake()

            async def done() -> bool:
                return len(server.made("sendMessage")) >= busy

            await wait_for(done, _SECONDS)
            echoing.cancel()
            with suppress(asyncio.CancelledError):
                await echoing
        return [1000 * (call.at - said[str(call.parameters["text"])]) for call in server.made("sendMessage")]


async def _echo(bot: telegram.Bot) -> None:
    offset = 0
    while True:
        for update in await bot.get_updates(offset=offset, timeout=5):
            offset = update.update_id + 1
            if update.message is not None and update.message.text is not None:
                await bot.send_message(update.message.chat_id, update.message.text)

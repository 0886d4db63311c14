"""The long connection, by the platform's SDK: its frames, their joining, its pings and acknowledgements.

Not the SDK's own way of connecting. It asks for the address with a call that blocks the loop (F2), waits up to 30 s and
then 120 s before it connects again (F6), and ends silently at an unknown answer (F5). So a connection here is one
connection: who uses it connects again. Nor its way of handling: it calls a function and acknowledges with the result,
one message after the other, whereas custody of a message has to be awaited (F9).
"""

from __future__ import annotations

import asyncio
import base64
import importlib.util
import json
import sys
import time
import urllib.parse
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import Any

import anyio
import structlog
import websockets
from websockets.asyncio.client import ClientConnection

from channels.chat.reconnecting import Ended
from core import reasons
from core.chat.port import Report
from core.errors import Unavailable, ungrouped


def _import_client() -> ModuleType:
    """Imports the SDK's client alone. Its package and its dispatcher of events import every method of the platform,
    10 000 modules in 140 MB, of which nothing is used here: placeholders stand in for both meanwhile.
    """
    package = ModuleType("lark_oapi")
    spec = importlib.util.find_spec("lark_oapi")
    if spec is None or spec.submodule_search_locations is None:
        raise ModuleNotFoundError("No module named 'lark_oapi'", name="lark-oapi")
    package.__path__ = list(spec.submodule_search_locations)
    dispatcher = ModuleType("lark_oapi.event.dispatcher_handler")
    dispatcher.__dict__["EventDispatcherHandler"] = object
    placeholders = {module.__name__: module for module in (package, dispatcher) if module.__name__ not in sys.modules}
    sys.modules.update(placeholders)
    try:
        return importlib.import_module("lark_oapi.ws.client")
    finally:
        for name in placeholders:
            del sys.modules[name]


def _import_sdk() -> Any:
    """Imports the SDK. It keeps the event loop of its import (F1): here that of a thread, closed at once, as nothing
    below uses it."""
    with ThreadPoolExecutor(1) as thread:
        module: Any = thread.submit(_import_client).result()
    if not module.loop.is_running():
        module.loop.close()
    return module


sdk: Any = _import_sdk()

log = structlog.get_logger("sika.channels.feishu")

PING_SECONDS = 15.0
"""Longest pause between pings; the platform's settings say 120."""
SILENCE = 3
"""A connection without a frame for this many pings is dead: an answer to each is due."""
CUSTODY_SECONDS = 2.5
"""The platform waits about 3 s for an acknowledgement, then it delivers again."""
HANDLED_AT_ONCE = 64
CLOSE_SECONDS = 2.0

Handle = Callable[[bytes], Awaitable[Any]]
"""Takes custody of an event, and returns what the platform shows (of card actions). Whatever it raises, the platform
delivers the event again."""


class Disconnected(Unavailable):
    """The connection has ended."""


class Connection(sdk.Client):  # type: ignore[misc]
    """One connection, from its opening to its end."""

    def __init__(self, settings: Mapping[str, Any], handle: Handle, report: Report) -> None:
        super().__init__("", "", log_level=sdk.LogLevel.CRITICAL, auto_reconnect=False)
        self._handle = handle
        self._report = report
        self._worked = False
        self._heard_at = time.monotonic()
        self._slots = anyio.Semaphore(HANDLED_AT_ONCE)
        self._ping_interval = _interval(settings.get("PingInterval"))

    async def serve(self, url: str) -> Ended:
        """Opens the connection at `url` and handles its events until it ends. Raises `Disconnected` if it cannot be
        opened."""
        query = urllib.parse.parse_qs(urllib.parse.urlsplit(url).query)
        self._service_id = query.get(sdk.SERVICE_ID, ["0"])[0]
        try:
            self._conn = await _open(url)
            self._report.connected()
            self._heard_at = time.monotonic()
            with ungrouped():
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._ping_loop)
                    tasks.start_soon(self._watch)
                    tasks.start_soon(self._receive)
        except Disconnected as error:
            if not self._worked:
                raise
            return Ended(str(error), worked=True)
        finally:
            self._cache._cron.cancel()
            if self._conn is not None:
                with anyio.move_on_after(CLOSE_SECONDS, shield=True):
                    await self._conn.close()
                self._conn.transport.abort()
        raise AssertionError

    async def _receive(self) -> None:
        try:
            async with anyio.create_task_group() as tasks:
                while True:
                    message = await self._conn.recv()
                    self._heard_at = time.monotonic()
                    self._worked = True
                    self._report.heard()
                    await self._slots.acquire()
                    tasks.start_soon(self._take, message)
        except* websockets.ConnectionClosed as group:
            raise Disconnected(f"Feishu closed the connection: {group.exceptions[0]}") from None

    async def _take(self, message: str | bytes) -> None:
        try:
            await self._handle_message(message)  # the SDK's; it raises nothing
        finally:
            self._slots.release()

    async def _watch(self) -> None:
        """Ends a connection on which nothing arrives any more."""
        while True:
            limit = SILENCE * self._ping_interval
            silent = time.monotonic() - self._heard_at
            if silent > limit:
                raise Disconnected(f"Feishu sent nothing for {limit:.0f} s")
            await anyio.sleep(limit - silent + 0.01)

    async def _handle_data_frame(self, frame: Any) -> None:
        """Handles a frame of an event as the SDK does, except that the handler is awaited."""
        headers = {header.key: header.value for header in frame.headers}
        payload: bytes | None = frame.payload
        if int(headers[sdk.HEADER_SUM]) > 1:
            payload = self._combine(
                headers[sdk.HEADER_MESSAGE_ID], int(headers[sdk.HEADER_SUM]), int(headers[sdk.HEADER_SEQ]), payload
            )
        if payload is None or headers[sdk.HEADER_TYPE] != sdk.MessageType.EVENT.value:
            return
        started = time.monotonic()
        answer: dict[str, Any] = {"code": 200}
        try:
            with anyio.fail_after(CUSTODY_SECONDS):
                result = await self._handle(payload)
            if result is not None:
                answer["data"] = base64.b64encode(json.dumps(result).encode()).decode()
        except Exception as error:
            log.warning("feishu_event_not_taken", frame=headers[sdk.HEADER_MESSAGE_ID], error=repr(error))
            answer = {"code": 500}
        header = frame.headers.add()
        header.key, header.value = sdk.HEADER_BIZ_RT, str(int((time.monotonic() - started) * 1000))
        frame.payload = json.dumps(answer).encode()
        await self._write_message(frame.SerializeToString())

    def _configure(self, settings: Any) -> None:
        """Takes new settings of the platform."""
        self._ping_interval = _interval(settings.PingInterval)


def _interval(seconds: Any) -> float:
    """Returns the pause between pings for the one that the platform's settings say."""
    return min(max(float(seconds), 1.0), PING_SECONDS) if isinstance(seconds, int | float) else PING_SECONDS


async def _open(url: str) -> ClientConnection:
    """Opens a socket. Raises `Disconnected` with the platform's reason."""
    is_local = urllib.parse.urlsplit(url).hostname in ("127.0.0.1", "localhost")
    try:
        return await websockets.connect(url, proxy=None if is_local else True, close_timeout=1.0)
    except websockets.WebSocketException as error:
        raise Disconnected(f"Feishu refuses the connection: {_refusal(error)}") from None
    except (OSError, TimeoutError, asyncio.IncompleteReadError) as error:
        raise Disconnected(f"No connection to Feishu: {reasons.lost(error)}") from None


def _refusal(error: websockets.WebSocketException) -> str:
    """Returns the reason of a refused handshake, which the platform puts into headers."""
    response = getattr(error, "response", None)
    if response is None:
        return reasons.lost(error)
    code = response.headers.get(sdk.HEADER_HANDSHAKE_STATUS) or response.status_code
    return f"{code} {response.headers.get(sdk.HEADER_HANDSHAKE_MSG) or ''}".strip()

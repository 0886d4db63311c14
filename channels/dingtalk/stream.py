"""The stream connection: the SDK's websocket, frames and acknowledgements under our own supervision.

The SDK holds one connection at a time (`_Client`). When to connect again, whether the connection lives and what dead
credentials are is decided here: the SDK tries dead ones for ever, and finds a half-open socket after 40 s (research
im-platforms §1.2). A message is acknowledged when it is in the log. While the log is out of reach it is kept here and
tried again, as DingTalk does not promise to deliver it a second time.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

import anyio
import msgspec
import structlog
import websockets
from cachetools import FIFOCache
from dingtalk_stream import (  # type: ignore[import-untyped]
    AckMessage,
    CallbackHandler,
    CallbackMessage,
    Credential,
    DingTalkStreamClient,
    SystemHandler,
    SystemMessage,
)

from channels.chat.lanes import Lanes, custody
from channels.chat.reconnecting import Ended, stay_connected
from channels.dingtalk import translation
from channels.dingtalk.api import Api
from core import reasons
from core.chat.facts import ChatReceived
from core.chat.port import Receive, Report

ROBOT = "/v1.0/im/bot/messages/get"
CARD = "/v1.0/card/instances/callback"
PING_SECONDS = 15.0
"""Between a pong and the next ping, and the time to answer one: a half-open socket is noticed within twice that."""
OPEN_SECONDS = 10.0
CLOSE_SECONDS = 2.0
PEOPLE = 2000

log = structlog.get_logger(__name__)
_quiet = logging.getLogger("dingtalk_stream.quiet")
_quiet.setLevel(logging.CRITICAL + 1)
"""The SDK logs frames with people's texts. The reasons of failures go to the report instead."""


class Stream:
    """Listens for one account. `on_message` is called with the id of each message before it is in the log.

    `pause`: seconds before the first reconnection; doubled for each failure in a row.
    """

    def __init__(self, api: Api, on_message: Callable[[str], None], *, ping_seconds: float, pause: float) -> None:
        self._api = api
        self._on_message = on_message
        self._people: FIFOCache[str, str] = FIFOCache(PEOPLE)
        """Names of people, as of their newest messages."""
        self._ping_seconds = ping_seconds
        self._pause = pause

    async def listen(self, receive: Receive, report: Report) -> None:
        """Connects again and again, until cancelled. Raises `CredentialsDead`."""
        async with custody("dingtalk", receive) as lanes:
            connection = partial(self._connection, lanes, report)
            await stay_connected("dingtalk", connection, report, first_pause=self._pause)

    async def _connection(self, lanes: Lanes[ChatReceived], report: Report) -> Ended:
        """Connects, and returns when the connection has ended. Raises `CredentialsDead` and `Unavailable`."""
        client = _Client(self._api.client_id, self._ping_seconds, report)
        handlers = {ROBOT: self._message_handler(lanes), CARD: _press_handler(lanes)}
        for topic, handler in handlers.items():
            client.register_callback_handler(topic, _Handler(handler, client.heard))
        client.connection = await self._api.open_stream([{"type": "CALLBACK", "topic": topic} for topic in handlers])
        await client.run()
        return Ended(client.reason, client.alive)

    def _message_handler(self, lanes: Lanes[ChatReceived]) -> Callable[[Mapping[str, Any]], Awaitable[None]]:
        async def handle(data: Mapping[str, Any]) -> None:
            event = translation.message(data, self._people)
            if event is not None:
                self._on_message(event.message)
                await lanes.take(event.target.chat, event)

        return handle


def _press_handler(lanes: Lanes[ChatReceived]) -> Callable[[Mapping[str, Any]], Awaitable[None]]:
    async def handle(data: Mapping[str, Any]) -> None:
        event = translation.press(data)
        if event is not None:
            await lanes.take(event.target.chat, event)

    return handle


class _Client(DingTalkStreamClient):  # type: ignore[misc]
    """One connection of the SDK: it ends instead of reconnecting. `reason` says why, `alive` whether a frame came."""

    def __init__(self, client_id: str, ping_seconds: float, report: Report) -> None:
        options = {"ping_interval": None, "open_timeout": OPEN_SECONDS, "close_timeout": CLOSE_SECONDS}
        super().__init__(Credential(client_id, ""), logger=_quiet, websocket_connect_options=options)
        self.connection: Mapping[str, Any] | None = None
        self.reason = "closed"
        self.alive = False
        self._ping_seconds = ping_seconds
        self._report = report
        self.system_handler = _System(self.heard, self._disconnect_requested)

    async def run(self) -> None:
        """Returns when the connection has ended."""
        # A task of its own: a cancel scope of anyio would cancel the SDK again while it closes its socket.
        task = asyncio.create_task(self.start(), name="dingtalk stream")
        try:
            await asyncio.wait([task])
        finally:
            task.cancel()
            with anyio.move_on_after(2 * CLOSE_SECONDS, shield=True):
                await asyncio.wait([task])
        if not task.cancelled() and (error := task.exception()):
            self.reason = _described(error)

    def heard(self) -> None:
        self.alive = True
        self._report.heard()

    def _disconnect_requested(self) -> None:
        self.reason = "the platform asked to reconnect"

    def open_connection(self) -> Mapping[str, Any] | None:
        """Returns the endpoint, which was asked for without blocking. Called by the SDK in a thread."""
        return self.connection

    async def keepalive(self, ws: Any, ping_interval: float = 0) -> None:
        """Pings. Called by the SDK for each connection, and cancelled with it."""
        self._report.connected()
        while True:
            try:
                pong = await ws.ping()
                async with asyncio.timeout(self._ping_seconds):
                    await pong
            except TimeoutError:
                self.reason = f"no answer within {self._ping_seconds:g} s"
                await ws.close(1011)
                return
            except websockets.ConnectionClosed:
                return
            self.heard()
            await asyncio.sleep(self._ping_seconds)

    async def _wait_before_retry(self, delay: float) -> None:
        """Ends instead of waiting: called by the SDK when a connection has ended, or could not be made."""
        error = sys.exception()
        if error is not None and self.reason == "closed":
            self.reason = _described(error)
        self._stop_event.set()


class _System(SystemHandler):  # type: ignore[misc]
    """The platform's pings, and its request to reconnect."""

    def __init__(self, heard: Callable[[], None], leave: Callable[[], None]) -> None:
        super().__init__()
        self._heard = heard
        self._leave = leave

    async def process(self, message: SystemMessage) -> tuple[int, str]:
        self._heard()
        if message.headers.topic == SystemMessage.TOPIC_DISCONNECT:
            self._leave()
        return AckMessage.STATUS_OK, "OK"


class _Handler(CallbackHandler):  # type: ignore[misc]
    """Acknowledges what is in the log, and what will never be understood."""

    def __init__(self, handle: Callable[[Mapping[str, Any]], Awaitable[None]], heard: Callable[[], None]) -> None:
        super().__init__()
        self._handle = handle
        self._heard = heard

    async def process(self, message: CallbackMessage) -> tuple[int, Mapping[str, Any]]:
        """Returns a code and what a card shows at once: no change.

        Raises `Unavailable`: the SDK then sends no acknowledgement, and the platform may deliver it again."""
        self._heard()
        try:
            await self._handle(message.data)
        except msgspec.ValidationError as error:
            log.warning("frame not understood", topic=message.headers.topic, reason=str(error))
        return AckMessage.STATUS_OK, {}


def _described(error: BaseException) -> str:
    """Returns the reason that an error gives, without addresses: those hold tickets."""
    if isinstance(error, websockets.InvalidStatus):
        return f"the handshake was refused with {error.response.status_code}"
    if isinstance(error, websockets.ConnectionClosed):
        return f"the connection was lost ({error})"
    return f"no connection: {reasons.lost(error)}"

"""A websocket of a platform, from its opening to its end. Silent ones are noticed by pings."""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import aiohttp
import anyio
import structlog
from aiohttp import WSMsgType

from channels.chat.calls import certainty
from channels.chat.reconnecting import Ended
from core.chat.port import Report
from core.errors import Unavailable

GREETING_SECONDS = 20.0
"""Most time to open a connection, and from there to the platform's greeting."""
PING_SECONDS = 20.0
"""Silence after which a connection is pinged. Half of it is the time to answer."""
CLOSE_SECONDS = 3.0
LARGEST = 16 << 20
"""Bytes of a frame."""
_LIFE = frozenset({WSMsgType.BINARY, WSMsgType.TEXT, WSMsgType.PING, WSMsgType.PONG})

log = structlog.get_logger("sika.channels.chat")


class Socket:
    """An open connection. `greeted`: the platform has said that it works."""

    def __init__(self, websocket: aiohttp.ClientWebSocketResponse, report: Report) -> None:
        self.greeted = False
        self._websocket = websocket
        self._report = report
        self._reason = ""
        self._receiving = anyio.CancelScope()

    @property
    def code(self) -> int:
        """The code with which the connection was closed; 0 without one."""
        return self._websocket.close_code or 0

    @property
    def ended(self) -> Ended:
        return Ended(self._reason, self.greeted)

    def greet(self) -> None:
        """Notes that the connection works."""
        if not self.greeted:
            self.greeted = True
            self._report.connected()

    def end(self, reason: str) -> None:
        """Ends `frames`; the first reason counts."""
        self._reason = self._reason or reason
        self._receiving.cancel()

    async def frames(self) -> AsyncIterator[Any]:
        """Yields the objects of texts and the bytes that arrive, until the connection ends."""
        deadline = anyio.current_time() + GREETING_SECONDS
        while not self._reason:
            self._receiving = anyio.CancelScope(deadline=math.inf if self.greeted else deadline)
            with self._receiving:
                message = await self._websocket.receive()
            if self._receiving.cancelled_caught:
                self.end("the platform did not greet")
                continue
            if message.type in _LIFE:
                self._report.heard()
            match message.type:
                case WSMsgType.BINARY:
                    yield message.data
                case WSMsgType.TEXT:
                    if (frame := _object(message.data)) is not None:
                        yield frame
                case WSMsgType.PING:
                    await self._websocket.pong(message.data)
                case WSMsgType.PONG:
                    pass
                case WSMsgType.ERROR:
                    self.end("the platform gave no answer within the time of a ping")
                case _:
                    lost = self.code in (0, aiohttp.WSCloseCode.ABNORMAL_CLOSURE)
                    self.end("the connection was lost" if lost else f"the platform closed it ({self.code})")

    async def send(self, frame: Any) -> None:
        """Sends bytes, or a value as JSON. The end of the connection is noticed where it is read."""
        with suppress(aiohttp.ClientError, ConnectionError), anyio.move_on_after(CLOSE_SECONDS):
            await (self._websocket.send_bytes if isinstance(frame, bytes) else self._websocket.send_json)(frame)


@asynccontextmanager
async def connected(
    session: aiohttp.ClientSession,
    url: Any,
    what: str,
    report: Report,
    *,
    ping_seconds: float | None = PING_SECONDS,
    code: int = aiohttp.WSCloseCode.OK,
    reason_headers: Sequence[str] = (),
) -> AsyncIterator[Socket]:
    """Opens a connection, and closes it with a code. Raises `Unavailable`. `ping_seconds`: None if the platform has
    pings of its own. `reason_headers`: where it says why it refuses a connection."""
    with certainty(what, effect=False), anyio.fail_after(GREETING_SECONDS):
        try:
            websocket = await session.ws_connect(url, heartbeat=ping_seconds, autoping=False, max_msg_size=LARGEST)
        except aiohttp.WSServerHandshakeError as error:
            reasons = [value for name in reason_headers if error.headers and (value := error.headers.get(name))]
            text = " ".join((str(error.status), *reasons))[:300]
            raise Unavailable(f"{what}: the handshake was refused with {text}") from None
    try:
        yield Socket(websocket, report)
    finally:
        with anyio.move_on_after(CLOSE_SECONDS, shield=True):
            await websocket.close(code=code)


def _object(text: str) -> Any:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        log.warning("a frame is no object in JSON", length=len(text))
        return None
    return value

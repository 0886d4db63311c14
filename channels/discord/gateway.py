"""The gateway: the one connection of a bot, over which everything arrives.

A connection begins with `hello`, after which the client identifies itself, or resumes the session of the connection
before it: then Discord sends what was missed since the last number that the client has. There is no acknowledgement of
an event, so a number counts here when its event has a place in the lanes of custody. What finds its lane full ends the
connection, and comes again when it is resumed.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import aiohttp
import anyio
import structlog
import yarl

from channels.chat.calls import certainty
from channels.chat.reconnecting import Ended
from core.chat.port import CredentialsDead, Report
from core.errors import Unavailable, ungrouped

VERSION = {"v": "10", "encoding": "json"}
GUILDS, GUILD_MESSAGES, DIRECT_MESSAGES, MESSAGE_CONTENT = 1 << 0, 1 << 9, 1 << 12, 1 << 15
HELLO_SECONDS = 20.0
"""Most time from the connection to `hello`, and from there to `READY`."""
CLOSE_SECONDS = 3.0
LARGEST = 16 << 20
"""Bytes of a frame: `GUILD_CREATE` of a large server has some."""
KEEP_SESSION = 4000
"""A close code after which the session can be resumed: 1000 and 1001 end it."""
NO_CONTENT = (
    "Discord does not let the bot read messages: switch on Developer Portal → Bot → Message Content Intent, or set "
    "`message_content: false`"
)
_DEAD: Mapping[int, str] = {
    4004: "Discord does not accept the bot token: Developer Portal → Bot → Reset Token",
    4010: "Discord does not accept the shard",
    4011: "the bot is in too many servers for one connection",
    4012: "Discord does not know this version of the gateway",
    4013: "Discord does not know these intents",
    4014: NO_CONTENT,
}
"""Close codes after which no connection will be better."""
_NEW_SESSION = frozenset({4003, 4007, 4009})

Offer = Callable[[str, Mapping[str, Any], int], bool]
"""Takes an event by its name, with its number. Returns False if there is no place for it now."""

log = structlog.get_logger("sika.channels.discord")


class Session:
    """A session that the next connection resumes: its address, and its last event."""

    def __init__(self) -> None:
        self.id = ""
        self.url = ""
        self.seq: int | None = None

    def forget(self) -> None:
        self.id, self.url, self.seq = "", "", None


class Gateway:
    """One connection. `offer` takes the events."""

    def __init__(
        self, http: aiohttp.ClientSession, session: Session, intents: int, offer: Offer, report: Report
    ) -> None:
        self._http = http
        self._session = session
        self._intents = intents
        self._offer = offer
        self._report = report
        self._acknowledged = True
        self._worked = False
        self._reason = ""
        self._ended = anyio.Event()
        self._socket: aiohttp.ClientWebSocketResponse

    async def serve(self, url: str, token: str) -> Ended:
        """Connects and takes events until the connection ends. Raises `CredentialsDead`, and `Unavailable` if it cannot
        be made."""
        address = yarl.URL(self._session.url or url).update_query(VERSION)
        with certainty("the gateway", effect=False):
            try:
                with anyio.fail_after(HELLO_SECONDS):
                    self._socket = await self._http.ws_connect(address, max_msg_size=LARGEST)
            except (aiohttp.ClientError, OSError):
                self._session.url = ""  # the session is resumed at the first address, if this one is away for good
                raise
            try:
                await self._serve(token)
            finally:
                with anyio.move_on_after(CLOSE_SECONDS, shield=True):
                    await self._socket.close(code=KEEP_SESSION)
        code = self._socket.close_code or 0
        if code in _DEAD and not self._reason:
            raise CredentialsDead(_DEAD[code])
        if code in _NEW_SESSION and not self._reason:
            self._session.forget()
        return Ended(self._reason or f"Discord closed the connection ({code})", self._worked)

    async def _serve(self, token: str) -> None:
        with anyio.fail_after(HELLO_SECONDS):
            hello = await self._next()
        if hello is None or hello.get("op") != 10:
            raise Unavailable("the gateway: Discord did not say hello")
        with ungrouped():
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._beat, float(hello["d"]["heartbeat_interval"]) / 1000)
                tasks.start_soon(self._await_greeting)
                await self._introduce(token)
                tasks.start_soon(self._receive)
                await self._ended.wait()
                tasks.cancel_scope.cancel()

    def _end(self, reason: str) -> None:
        """Ends the connection; the first reason counts. Empty: Discord has closed it, and says why by a code."""
        self._reason = self._reason or reason
        self._ended.set()

    async def _introduce(self, token: str) -> None:
        session = self._session
        if session.id:
            return await self._send(6, {"token": token, "session_id": session.id, "seq": session.seq})
        properties = {"os": "linux", "browser": "sika", "device": "sika"}
        await self._send(2, {"token": token, "intents": self._intents, "properties": properties})

    async def _beat(self, seconds: float) -> None:
        await anyio.sleep(seconds * random.random())
        while self._acknowledged:
            self._acknowledged = False
            await self._send(1, self._session.seq)
            await anyio.sleep(seconds)
        self._end("Discord does not answer any more")

    async def _await_greeting(self) -> None:
        await anyio.sleep(HELLO_SECONDS)
        if not self._worked:
            self._end("Discord did not say that the bot is ready")

    async def _send(self, op: int, data: Any) -> None:
        with suppress(aiohttp.ClientError, ConnectionError):  # its end is noticed where it is read
            await self._socket.send_str(json.dumps({"op": op, "d": data}))

    async def _next(self) -> dict[str, Any] | None:
        """Returns the next frame; None if the connection has ended."""
        message = await self._socket.receive()
        if message.type is not aiohttp.WSMsgType.TEXT:
            return None
        frame: dict[str, Any] = json.loads(message.data)
        return frame

    async def _receive(self) -> None:
        while (frame := await self._next()) is not None:
            self._report.heard()
            match frame.get("op"):
                case 0 if not self._dispatch(frame):
                    return self._end("too many messages wait for the log")
                case 1:
                    await self._send(1, self._session.seq)
                case 7:
                    return self._end("Discord asked to connect again")
                case 9:
                    if not frame.get("d"):
                        self._session.forget()
                        await anyio.sleep(random.uniform(1, 5))  # as its documentation demands
                    return self._end("Discord has ended the session")
                case 11:
                    self._acknowledged = True
        self._end("")

    def _dispatch(self, frame: Mapping[str, Any]) -> bool:
        """Takes an event. Returns whether there was a place for it."""
        name, data = str(frame.get("t")), frame.get("d")
        if name == "READY" and isinstance(data, Mapping):
            self._session.id, self._session.url = str(data["session_id"]), str(data["resume_gateway_url"])
            self._session.seq = frame.get("s")
        if name in ("READY", "RESUMED"):
            self._worked = True
            self._report.connected()
        if isinstance(data, Mapping) and not self._offer(name, data, int(frame.get("s") or 0)):
            return False
        self._session.seq = frame.get("s") or self._session.seq
        return True

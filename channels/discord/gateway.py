"""The gateway: the one connection of a bot, over which everything arrives.

A connection begins with `hello`, after which the client identifies itself, or resumes the session of the connection
before it: then Discord sends what was missed since the last number that the client has. There is no acknowledgement of
an event, so a number counts here when its event has a place in the lanes of custody. What finds its lane full ends the
connection, and comes again when it is resumed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

import aiohttp
import anyio
import structlog
import yarl

from channels.chat.reconnecting import Ended
from channels.chat.sockets import Socket, connected
from core.chat.port import CredentialsDead, Report
from core.errors import Unavailable, ungrouped

VERSION = {"v": "10", "encoding": "json"}
GUILDS, GUILD_MESSAGES, DIRECT_MESSAGES, MESSAGE_CONTENT = 1 << 0, 1 << 9, 1 << 12, 1 << 15
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

    async def serve(self, url: str, token: str) -> Ended:
        """Connects and takes events until the connection ends. Raises `CredentialsDead`, and `Unavailable` if it cannot
        be made."""
        address = yarl.URL(self._session.url or url).update_query(VERSION)
        opening = connected(self._http, address, "the gateway", self._report, ping_seconds=None, code=KEEP_SESSION)
        try:
            async with opening as socket:
                await self._serve(socket, token)
                code = socket.code
        except Unavailable:
            self._session.url = ""  # the session is resumed at the first address, if this one is away for good
            raise
        if code in _DEAD:
            raise CredentialsDead(_DEAD[code])
        if code in _NEW_SESSION:
            self._session.forget()
        return socket.ended

    async def _serve(self, socket: Socket, token: str) -> None:
        with ungrouped():
            async with anyio.create_task_group() as tasks:
                async for frame in socket.frames():
                    match frame.get("op"):
                        case 0 if not self._dispatch(socket, frame):
                            socket.end("too many messages wait for the log")
                        case 1:
                            await self._send(socket, 1, self._session.seq)
                        case 7:
                            socket.end("Discord asked to connect again")
                        case 9:
                            if not frame.get("d"):
                                self._session.forget()
                                await anyio.sleep(random.uniform(1, 5))  # as its documentation demands
                            socket.end("Discord has ended the session")
                        case 10:
                            tasks.start_soon(self._beat, socket, float(frame["d"]["heartbeat_interval"]) / 1000)
                            await self._introduce(socket, token)
                        case 11:
                            self._acknowledged = True
                tasks.cancel_scope.cancel()

    async def _introduce(self, socket: Socket, token: str) -> None:
        session = self._session
        if session.id:
            return await self._send(socket, 6, {"token": token, "session_id": session.id, "seq": session.seq})
        properties = {"os": "linux", "browser": "sika", "device": "sika"}
        await self._send(socket, 2, {"token": token, "intents": self._intents, "properties": properties})

    async def _beat(self, socket: Socket, seconds: float) -> None:
        await anyio.sleep(seconds * random.random())
        while self._acknowledged:
            self._acknowledged = False
            await self._send(socket, 1, self._session.seq)
            await anyio.sleep(seconds)
        socket.end("Discord does not answer any more")

    async def _send(self, socket: Socket, op: int, data: Any) -> None:
        await socket.send({"op": op, "d": data})

    def _dispatch(self, socket: Socket, frame: Mapping[str, Any]) -> bool:
        """Takes an event. Returns whether there was a place for it."""
        name, data = str(frame.get("t")), frame.get("d")
        if name == "READY" and isinstance(data, Mapping):
            self._session.id, self._session.url = str(data["session_id"]), str(data["resume_gateway_url"])
            self._session.seq = frame.get("s")
        if name in ("READY", "RESUMED"):
            socket.greet()
        if isinstance(data, Mapping) and not self._offer(name, data, int(frame.get("s") or 0)):
            return False
        self._session.seq = frame.get("s") or self._session.seq
        return True

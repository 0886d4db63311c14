"""The Socket Mode connection of an account, and custody of what arrives through it.

An envelope is acknowledged when its message is in custody. One that finds its lane full is not, so Slack repeats it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from channels.chat.lanes import Handle, Lanes, custody
from channels.chat.reconnecting import Ended, stay_connected
from channels.chat.sockets import connected
from channels.slack.inbound import chat_of
from channels.slack.web import Web
from core.chat.port import Report

Envelope = Mapping[str, Any]


async def listen(
    web: Web, handle: Handle[Envelope], report: Report, *, authorise: Callable[[], Awaitable[Any]], ping_seconds: float
) -> None:
    """Listens until cancelled. `handle` takes an envelope into custody. Raises `CredentialsDead`."""
    async with custody("slack", handle) as lanes:

        async def connection() -> Ended:
            await authorise()
            return await _connection(web, lanes, report, ping_seconds)

        await stay_connected("slack", connection, report)


async def _connection(web: Web, lanes: Lanes[Envelope], report: Report, ping_seconds: float) -> Ended:
    """Connects, and returns when the connection has ended. Raises `CredentialsDead` and `Unavailable`."""
    url = await web.socket_url()
    async with connected(web.rest.session(), url, "Socket Mode", report, ping_seconds=ping_seconds) as socket:
        async for frame in socket.frames():
            match frame.get("type"):
                case "hello":
                    socket.greet()
                case "disconnect":
                    socket.end(f"Slack: {frame.get('reason', 'disconnect')}")
                case _ if identity := frame.get("envelope_id"):
                    acknowledge = partial(socket.send, {"envelope_id": str(identity)})
                    lanes.offer(chat_of(frame), frame, acknowledge)
        return socket.ended

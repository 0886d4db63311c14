"""The Socket Mode connection of an account, and custody of what arrives through it.

A listener (`Listener.run`) keeps one connection at a time: it asks for credentials first, since the SDK's `connect`
retries for ever even with dead ones. An envelope is acknowledged when its message is in
custody. One that finds its lane full is not, so Slack repeats it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from time import monotonic
from typing import Any

import aiohttp
import anyio
import structlog
from slack_sdk.socket_mode.aiohttp import SocketModeClient
from slack_sdk.socket_mode.response import SocketModeResponse

from channels.chat.lanes import Handle, Lanes, custody
from channels.chat.reconnecting import Ended, stay_connected
from channels.slack.inbound import chat_of
from channels.slack.web import Web
from core import reasons
from core.chat.port import Report
from core.errors import Unavailable

log = structlog.get_logger("sika.channels.slack")

PING_SECONDS = 10.0
"""Between pings. The SDK's 5 seconds take slow links for dead ones (S5)."""
CONNECT_SECONDS = 20.0
"""Most time from the request for an address to Slack's `hello`."""
CLOSE_SECONDS = 3.0


class Connection(SocketModeClient):
    """One connection. Unlike the SDK's, it ends instead of reconnecting, and hands over frames without its unbounded
    queue and detached tasks (S4)."""

    def __init__(
        self,
        web: Web,
        url: str,
        ping_seconds: float,
        offer: Callable[[Connection, Mapping[str, Any]], None],
        report: Report,
    ) -> None:
        super().__init__(app_token="", web_client=web.client, ping_interval=ping_seconds)
        self._url = url
        self._offer = offer
        self._report = report
        self.greeted = False
        """Slack has said hello: the connection works."""
        self._ended = anyio.Event()
        self.reason = ""
        self._heard_at = self._began = monotonic()

    def end(self, reason: str) -> None:
        """Marks the connection as over; the first reason counts."""
        self.reason = self.reason or reason
        self._ended.set()

    async def connect(self) -> None:
        """Connects once. Raises `Unavailable`."""
        try:
            self.current_session = await self.aiohttp_client_session.ws_connect(
                self._url, autoping=False, heartbeat=self.ping_interval, proxy=self.proxy
            )
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Unavailable(f"Socket Mode: {reasons.lost(error)}") from None
        self.message_receiver = asyncio.ensure_future(self.receive_messages())
        self.current_session_monitor = asyncio.ensure_future(self.monitor_current_session())

    async def connect_to_new_endpoint(self, force: bool = False) -> None:
        self.end("the connection was closed")

    async def enqueue_message(self, message: str) -> None:
        self._heard_at = monotonic()
        try:
            frame = json.loads(message)
        except ValueError:
            log.warning("a frame of Slack is no JSON", length=len(message))
            return
        match frame.get("type"):
            case "hello":
                self.greeted = True
                self._report.connected()
            case "disconnect":
                self.end(f"Slack: {frame.get('reason', 'disconnect')}")
            case _ if frame.get("envelope_id"):
                self._offer(self, frame)

    async def watch(self) -> None:
        """Waits for the end of the connection. Reports each sign of life."""
        reported, pong = 0.0, self.last_ping_pong_time
        while not self._ended.is_set():
            if self.last_ping_pong_time != pong:
                pong, self._heard_at = self.last_ping_pong_time, monotonic()
            if self._heard_at > reported:
                reported = self._heard_at
                self._report.heard()
            if self.current_session is None or self.current_session.closed:
                self.end("the connection was lost")
            elif monotonic() - self._heard_at > 4 * self.ping_interval:
                self.end("the connection is silent")
            elif not self.greeted and monotonic() - self._began > CONNECT_SECONDS:
                self.end("Slack did not say hello")
            with anyio.move_on_after(min(1.0, self.ping_interval)):
                await self._ended.wait()

    async def acknowledge(self, envelope_id: str) -> None:
        """Tells Slack that an envelope is in custody. Slack delivers others again, and they are noticed."""
        with anyio.move_on_after(CLOSE_SECONDS):
            try:
                await self.send_socket_mode_response(SocketModeResponse(envelope_id))
            except (aiohttp.ClientError, OSError, AttributeError):
                log.info("an envelope of Slack was not acknowledged", reason="the connection is over")

    async def close(self) -> None:
        """Ends the connection and the SDK's tasks, also within a cancelled scope."""
        self.closed = True
        tasks = [task for task in (self.message_processor, self.current_session_monitor, self.message_receiver) if task]
        for task in tasks:
            task.cancel()
        with anyio.CancelScope(shield=True):
            with anyio.move_on_after(CLOSE_SECONDS):
                await asyncio.gather(*tasks, return_exceptions=True)
                if self.current_session is not None:
                    await self.current_session.close()
            await self.aiohttp_client_session.close()


class Listener:
    """Listens for one account. `handle` takes an envelope into custody."""

    def __init__(
        self,
        web: Web,
        handle: Handle[Mapping[str, Any]],
        report: Report,
        *,
        authorise: Callable[[], Awaitable[Any]],
        ping_seconds: float,
    ) -> None:
        self._web = web
        self._handle = handle
        self._report = report
        self._authorise = authorise
        self._ping_seconds = ping_seconds

    async def run(self) -> None:
        """Listens until cancelled. Raises `CredentialsDead`."""
        async with custody("slack", self._handle) as lanes:
            await stay_connected("slack", lambda: self._connection(lanes), self._report)

    async def _connection(self, lanes: Lanes[Mapping[str, Any]]) -> Ended:
        """Connects, and returns when the connection has ended. Raises `CredentialsDead` and `Unavailable`."""
        await self._authorise()
        url = await self._web.socket_url()

        def offer(connection: Connection, envelope: Mapping[str, Any]) -> None:
            acknowledge = partial(connection.acknowledge, str(envelope["envelope_id"]))
            lanes.offer(chat_of(envelope), envelope, acknowledge)

        connection = Connection(self._web, url, self._ping_seconds, offer, self._report)
        try:
            with anyio.fail_after(CONNECT_SECONDS):
                await connection.connect()
            await connection.watch()
            return Ended(connection.reason, connection.greeted)
        except TimeoutError:
            raise Unavailable(f"Socket Mode: no connection within {CONNECT_SECONDS:.0f} s") from None
        finally:
            await connection.close()

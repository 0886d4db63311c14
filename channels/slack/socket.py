"""The Socket Mode connection of an account, and custody of what arrives through it.

A listener (`Listener.run`) keeps one connection at a time: it asks for credentials first, since the SDK's `connect`
retries for ever even with dead ones (research im-platforms S3), and connects anew when a connection ends, with growing
pauses. What arrives goes to lanes, one for each share of the channels, so that messages of a channel stay in order. An
envelope is acknowledged when its message is in custody. One that finds its lane full is not, so Slack repeats it.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from time import monotonic
from typing import Any, NamedTuple
from zlib import crc32

import aiohttp
import anyio
import structlog
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from slack_sdk.socket_mode.aiohttp import SocketModeClient
from slack_sdk.socket_mode.response import SocketModeResponse

from channels.slack.inbound import chat_of
from channels.slack.web import Web
from core import reasons
from core.chat.port import CredentialsDead, RateLimited, Report
from core.errors import Unavailable

log = structlog.get_logger("sika.channels.slack")

PING_SECONDS = 10.0
"""Between pings. The SDK's 5 seconds take slow links for dead ones (S5)."""
CONNECT_SECONDS = 20.0
"""Most time from the request for an address to Slack's `hello`."""
STABLE_SECONDS = 20.0
"""A connection that lasted as long resets the pauses."""
FIRST_PAUSE = 0.25
LONGEST_PAUSE = 60.0
LONGEST_BREAK = 4.0
"""Longest pause after a connection that Slack had greeted: long ones are for what refuses connections, and an envelope
is delivered four times only."""
CUSTODY_SECONDS = 30.0
"""Most time for one attempt to take a message into custody."""
LANES = 8
LANE_LENGTH = 64
CLOSE_SECONDS = 3.0

Handle = Callable[[Mapping[str, Any]], Awaitable[None]]
"""Takes an envelope into custody. Raises `Unavailable`: then it must be delivered again."""


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


class _Offer(NamedTuple):
    connection: Connection
    envelope: Mapping[str, Any]


class Listener:
    """Listens for one account. `handle` takes an envelope into custody."""

    def __init__(
        self, web: Web, handle: Handle, report: Report, *, authorise: Callable[[], Awaitable[Any]], ping_seconds: float
    ) -> None:
        self._web = web
        self._handle = handle
        self._report = report
        self._authorise = authorise
        self._ping_seconds = ping_seconds
        self._lanes: Sequence[MemoryObjectSendStream[_Offer]] = ()

    async def run(self) -> None:
        """Listens until cancelled. Raises `CredentialsDead`."""
        dead: CredentialsDead | None = None
        streams = [anyio.create_memory_object_stream[_Offer](LANE_LENGTH) for _ in range(LANES)]
        self._lanes = [send for send, _ in streams]
        try:
            async with anyio.create_task_group() as tasks:
                for _, receive in streams:
                    tasks.start_soon(self._lane, receive)
                try:
                    await self._connect_for_ever()
                except CredentialsDead as error:
                    dead = error
                tasks.cancel_scope.cancel()
        finally:
            for send, receive in streams:
                send.close()
                receive.close()
        if dead is not None:
            raise dead

    async def _connect_for_ever(self) -> None:
        failures = 0
        while True:
            began, wait, longest = monotonic(), 0.0, LONGEST_PAUSE
            try:
                ended = await self._connection()
                reason, longest = ended.reason, LONGEST_BREAK if ended.greeted else LONGEST_PAUSE
            except RateLimited as error:
                reason, wait = str(error), error.seconds
            except Unavailable as error:
                reason = str(error)
            failures = 0 if monotonic() - began > STABLE_SECONDS else failures + 1
            self._report.disconnected(reason)
            log.info("disconnected from Slack", reason=reason)
            if failures:
                wait = max(wait, min(longest, FIRST_PAUSE * 2.0 ** min(failures - 1, 10)) * random.uniform(0.5, 1.0))
            await anyio.sleep(wait)

    async def _connection(self) -> Connection:
        """Connects, and returns the connection when it has ended. Raises `CredentialsDead` and `Unavailable`."""
        await self._authorise()
        url = await self._web.socket_url()
        connection = Connection(self._web, url, self._ping_seconds, self._offer, self._report)
        try:
            with anyio.fail_after(CONNECT_SECONDS):
                await connection.connect()
            await connection.watch()
            return connection
        except TimeoutError:
            raise Unavailable(f"Socket Mode: no connection within {CONNECT_SECONDS:.0f} s") from None
        finally:
            await connection.close()

    def _offer(self, connection: Connection, envelope: Mapping[str, Any]) -> None:
        try:
            self._lanes[crc32(chat_of(envelope).encode()) % LANES].send_nowait(_Offer(connection, envelope))
        except anyio.WouldBlock:
            log.warning("too many messages of Slack wait, one will be delivered again")

    async def _lane(self, offers: MemoryObjectReceiveStream[_Offer]) -> None:
        async for connection, envelope in offers:
            if await self._in_custody(envelope):
                await connection.acknowledge(str(envelope["envelope_id"]))

    async def _in_custody(self, envelope: Mapping[str, Any]) -> bool:
        """Takes an envelope into custody, however long the bus is away: what comes after it must not overtake it."""
        pause = FIRST_PAUSE
        while True:
            try:
                with anyio.fail_after(CUSTODY_SECONDS):
                    await self._handle(envelope)
                return True
            except (Unavailable, TimeoutError) as error:
                log.warning("a message of Slack waits for the bus", reason=str(error) or type(error).__name__)
            except Exception:
                log.exception("a message of Slack was not taken", type=envelope.get("type"))
                return False
            await anyio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, 10.0)

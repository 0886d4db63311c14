"""A feed on the wire: as server-sent events, or on a WebSocket with commands beside it.

A stream of this protocol has no end of its own: a client takes a proper end for a fault, or for the end of the thread.
So a connection that ends for our reasons is cut, and clients come back with `since`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator
from contextlib import aclosing

import structlog
from aiohttp import WSCloseCode, WSMsgType, web

from channels.http.endpoints.call import Call
from channels.http.protocols.langgraph_events.commands import Command, envelope, execute, success
from channels.http.protocols.langgraph_events.feed import Feed, Item
from channels.http.protocols.langgraph_events.filters import Filter, SubscribeParams
from channels.http.protocols.langgraph_events.wire import WireEvent, encode, failure
from channels.http.server.errors import BadRequest
from channels.http.server.live import STALLED_SECONDS, Outlet
from channels.http.server.parsing import convert
from channels.http.streams.sse import CONTENT_TYPE, HEARTBEAT, gathered, sending
from core.errors import Invalid, NotFound, SikaError
from core.ids import uuid7
from core.runs.follow import Beat, Stopping

log = structlog.get_logger("sika.http")

GONE = encode(failure(None, "unknown_error", "The thread was deleted"))
MOST_SUBSCRIPTIONS = 100

NOT_FOUND, UNAVAILABLE, RESTARTING = 4404, 4503, 1012
"""Close codes: clients read 4000 and more as 4000 plus the status that the same stream would have as SSE."""


# ── server-sent events ───────────────────────────────────────────────────────────────────────────────────────────────


async def play(call: Call, thread_id: str, subscription: Filter) -> web.StreamResponse:
    """Everything the subscription wants, until the client goes."""
    outlet = Outlet(call.request, CONTENT_TYPE, {})
    async with sending(outlet, "thread stream", thread=thread_id):
        async with Feed.open(call.live, thread_id, call.user) as feed:
            async for data in gathered(_framed(feed.add("", subscription))):
                await outlet.write(data)
            if not outlet.response.prepared:
                await outlet.write(HEARTBEAT)
            async with aclosing(feed.batches()) as batches:
                while not feed.ended:
                    async for data in gathered(_framed(feed.tell(await anext(batches)))):
                        await outlet.write(data)
        await outlet.write(b"event: error\ndata: %b\n\n" % GONE)
    return outlet.response


async def _framed(items: AsyncIterable[Item]) -> AsyncIterator[bytes]:
    async for item in items:
        yield item.framed() if isinstance(item, WireEvent) else HEARTBEAT


# ── WebSocket ────────────────────────────────────────────────────────────────────────────────────────────────────────


class Socket:
    """One WebSocket: commands in, answers and events out."""

    def __init__(self, call: Call, thread_id: str) -> None:
        self._call = call
        self._thread = thread_id
        self._names: set[str] = set()
        self._turn = asyncio.Lock()
        """Serialises access to the feed between the sender and subscribe commands."""
        most = call.config.http.max_body_bytes
        self.ws = web.WebSocketResponse(compress=False, max_msg_size=most)

    async def run(self) -> web.WebSocketResponse:
        await self.ws.prepare(self._call.request)
        try:
            async with (
                Feed.open(self._call.live, self._thread, self._call.user) as feed,
                asyncio.TaskGroup() as tasks,
            ):
                telling = tasks.create_task(self._send_all(feed))
                async for message in self.ws:
                    if message.type not in (WSMsgType.TEXT, WSMsgType.BINARY):
                        break
                    raw = message.data.encode() if isinstance(message.data, str) else message.data
                    await self._carry_out(feed, raw)
                telling.cancel()
        except* ConnectionError:
            pass  # the client is gone
        except* Exception as errors:
            log.error("thread stream failed", thread=self._thread, exc_info=errors)
            await self.ws.close(code=WSCloseCode.INTERNAL_ERROR)
        return self.ws

    async def _send_all(self, feed: Feed) -> None:
        """Everything that is wanted, until the connection is closed."""
        code = RESTARTING
        try:
            async with aclosing(feed.batches()) as batches:
                while not feed.ended:
                    batch = await anext(batches)
                    async with self._turn:
                        async for item in feed.tell(batch):
                            await self._send(item)
            await self._send(GONE)
            code = NOT_FOUND
        except Stopping:
            pass
        except NotFound:
            code = NOT_FOUND
        except SikaError as error:
            log.warning("thread stream broken off", thread=self._thread, error=str(error))
            code = UNAVAILABLE
        except ConnectionError:
            return
        await self.ws.close(code=code)

    async def _carry_out(self, feed: Feed, raw: bytes) -> None:
        """Carry out a command, and answer it."""
        try:
            command = envelope(raw)
        except BadRequest as error:
            await self._send(encode(failure(None, "invalid_argument", str(error))))
            return
        try:
            match command.method:
                case "subscription.subscribe":
                    await self._subscribe(feed, command)
                case "subscription.unsubscribe":
                    await self._unsubscribe(feed, command)
                case _ if not self._call.principal.may("runs:create"):
                    await self._send(encode(failure(command.id, "permission_denied", "needs the scope runs:create")))
                case _:
                    await self._send(encode(await execute(self._call, command)))
        except SikaError as error:
            await self._send(encode(failure(command.id, "unknown_error", str(error))))

    async def _subscribe(self, feed: Feed, command: Command) -> None:
        try:
            subscription = Filter(convert(command.params or {}, SubscribeParams))
        except Invalid as error:
            await self._send(encode(failure(command.id, "invalid_argument", str(error))))
            return
        if len(self._names) >= MOST_SUBSCRIPTIONS:
            await self._send(encode(failure(command.id, "invalid_argument", "too many subscriptions; unsubscribe")))
            return
        name, code = uuid7(), NOT_FOUND
        async with self._turn:
            self._names.add(name)
            await self._send(encode(success(command.id, {"subscription_id": name})))
            try:
                async for item in feed.add(name, subscription):
                    await self._send(item)
                if not feed.ended:
                    return
            except NotFound:
                pass
            except SikaError as error:
                log.warning("thread stream broken off", thread=self._thread, error=str(error))
                code = UNAVAILABLE
        await self.ws.close(code=code)

    async def _unsubscribe(self, feed: Feed, command: Command) -> None:
        name = str((command.params or {}).get("subscription_id"))
        async with self._turn:
            known = feed.drop(name)
        self._names.discard(name)
        answer = (
            success(command.id, {})
            if known
            else failure(command.id, "no_such_subscription", f"no such subscription: {name[:80]}")
        )
        await self._send(encode(answer))

    async def _send(self, item: Item | bytes) -> None:
        """Raises `ConnectionError` if the client is gone, or has not read for a minute."""
        try:
            async with asyncio.timeout(STALLED_SECONDS):
                if isinstance(item, Beat):
                    await self.ws.ping()
                else:
                    await self.ws.send_str((item.encoded() if isinstance(item, WireEvent) else item).decode())
        except TimeoutError:
            if self._call.request.transport is not None:
                self._call.request.transport.abort()
            raise ConnectionResetError("the client does not read") from None

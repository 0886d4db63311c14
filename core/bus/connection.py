"""NATS: a process's connection, and its requests."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeAlias

import anyio
import msgspec
import structlog

from core.bus import upkeep as upkeep_of
from core.bus.endpoint import Endpoint, reach
from core.bus.errors import NO_PEERS, NOT_READY, ApiError, BusUnavailable, api_error, is_permanent
from core.bus.subjects import Subjects, stream_configs
from core.bus.upkeep import Upkeep
from core.errors import Invalid, NotFound, Unavailable

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg
    from nats.aio.subscription import Subscription


log = structlog.get_logger("sika.bus")

ASK_SECONDS = 5.0
"""Timeout of a request to the server (its own API answers in milliseconds; a leader election takes up to 5 s)."""
CONNECT_SECONDS = 10.0
"""Timeout of the first connection."""
CLOSE_SECONDS = 2.0
"""Timeout of closing a connection."""
RECONNECT_SECONDS = 0.25
"""Pause between two attempts to connect again: a child nats-server is back in half a second."""
RETRY_SECONDS = 1.0
"""Pause of a start whose connection was lost."""
REPORT_SECONDS = 5.0
"""Interval of warnings while the start waits for NATS."""

BATCHES = 8
"""Batches of messages that are read at once (`core.bus.streams.direct_get`)."""

Handler: TypeAlias = "Callable[[Msg], Awaitable[None]]"


class Bus:
    """A process's connection. Reconnects for ever; requests in flight meanwhile fail as `Unavailable`."""

    def __init__(self, nc: Client, endpoint: Endpoint) -> None:
        self.nc = nc
        self.names = Subjects(endpoint.prefix)
        self.replicas = endpoint.replicas
        """Those of the log as it is, once the streams were looked at; those that a new one gets until then."""
        self._trouble = endpoint.trouble
        self._on_reconnect: set[Callable[[], None]] = set()
        self.batches = asyncio.Semaphore(BATCHES)
        """Bounds what the server has to send to this connection."""
        self._inbox = nc.new_inbox()
        self._waiting: dict[str, asyncio.Queue[Msg] | asyncio.Future[Msg]] = {}
        self._requests = 0
        self._lost = 0
        """The number of the last request before the connection was lost: no request up to it can be answered."""

    # ── requests ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def ask(
        self, subject: str, payload: bytes, headers: dict[str, str] | None = None, timeout: float = ASK_SECONDS
    ) -> Msg:
        """Sends a request and returns its reply. Raises `Unavailable` if there is no responder or the timeout passes:
        the request may still take effect.
        """
        future: asyncio.Future[Msg] = asyncio.get_running_loop().create_future()
        with self._inbox_of(future) as inbox:
            await self._send(subject, payload, inbox, headers)
            reply = await self._within(timeout, future, f"{subject}: no answer")
        if reply.header and reply.header.get("Status") == "503":
            raise self.unavailable(f"{subject}: nobody answers: no JetStream there, or it has no leader at the moment")
        return reply

    async def echo(self) -> None:
        """Sends a message to this connection. On return, all messages that the server had for it before have arrived.
        Raises `Unavailable`.
        """
        future: asyncio.Future[Msg] = asyncio.get_running_loop().create_future()
        with self._inbox_of(future) as inbox:
            await self._send(inbox, b"", "", None)
            await self._within(ASK_SECONDS, future, "the server does not send back")

    @asynccontextmanager
    async def ask_many(self, subject: str, payload: bytes) -> AsyncIterator[asyncio.Queue[Msg]]:
        """Sends a request with many replies: yields a queue of them, for as long as the block lasts."""
        queue: asyncio.Queue[Msg] = asyncio.Queue()
        with self._inbox_of(queue) as inbox:
            await self._send(subject, payload, inbox, None)
            yield queue

    async def api(self, call: str, request: Mapping[str, Any] | None = None) -> Any:
        """Calls the JetStream API. Raises `ApiError`, `Unavailable`."""
        payload = msgspec.json.encode(request) if request is not None else b""
        return decoded_reply(await self.ask(f"$JS.API.{call}", payload))

    async def store(self, subject: str, payload: bytes, headers: dict[str, str] | None = None) -> int:
        """Publishes to a stream, and returns the acknowledged sequence. Raises `ApiError`, `Unavailable`."""
        return int(decoded_reply(await self.ask(subject, payload, headers), f"{subject}: ")["seq"])

    async def probe(self) -> None:
        """Stores a byte to test the storage. Raises `ApiError`, `Unavailable`."""
        await self.store(self.names.place("-probe"), b"1")

    def trouble(self) -> str | None:
        """Returns the known reason why NATS cannot be used at the moment."""
        if trouble := self._trouble():
            return trouble
        return None if self.connected else "the connection to NATS is lost and being made again"

    @property
    def connected(self) -> bool:
        return self.nc.is_connected

    def unavailable(self, text: str) -> BusUnavailable:
        """Returns the error, with the known reason."""
        trouble = self.trouble()
        return BusUnavailable(f"{text} ({trouble})" if trouble else text)

    @property
    def reconnects(self) -> int:
        """The number of reconnects. It is incremented before the subscriptions are renewed."""
        return self.nc.stats["reconnects"]

    async def publish(self, subject: str, payload: bytes, headers: dict[str, str] | None = None) -> None:
        """Publishes without acknowledgement: the message may be lost."""
        await self._send(subject, payload, "", headers)

    async def request_from(self, subject: str, payload: bytes, reply: str) -> None:
        """Sends a request whose replies go to a subscription of the caller's."""
        await self._send(subject, payload, reply, None)

    async def subscribe(self, subject: str, handler: Handler, queue: str = "") -> Subscription:
        """Calls `handler` with each message of a subject. Raises `Invalid`, `Unavailable`."""
        import nats.errors

        try:
            return await self.nc.subscribe(subject, queue=queue, cb=handler)
        except (nats.errors.Error, OSError) as error:
            raise self._error(subject, error) from error

    async def _send(self, subject: str, payload: bytes, reply: str, headers: dict[str, str] | None) -> None:
        import nats.errors  # loaded by the connection

        try:
            await self.nc.publish(subject, payload, reply, headers)
        except nats.errors.MaxPayloadError as error:
            raise Invalid(f"{subject}: {len(payload)} bytes are more than the server takes") from error
        except (nats.errors.Error, OSError) as error:
            raise self._error(subject, error) from error

    def _error(self, subject: str, error: Exception) -> Invalid | Unavailable:
        """Returns an error of the client as one of ours."""
        text = f"{subject}: {str(error) or type(error).__name__}"
        return Invalid(text) if is_permanent(error) else self.unavailable(text)

    @contextmanager
    def _inbox_of(self, waiter: asyncio.Queue[Msg] | asyncio.Future[Msg]) -> Iterator[str]:
        """Yields a subject whose messages go to the waiter, for as long as the block lasts."""
        self._requests += 1
        token = f"{self._requests:x}"
        self._waiting[token] = waiter
        try:
            yield f"{self._inbox}.{token}"
        finally:
            del self._waiting[token]

    async def _within(self, timeout: float, reply: asyncio.Future[Msg], problem: str) -> Msg:
        """Returns a reply. Its future has the deadline: a timeout of the task costs several times as much."""

        def late() -> None:
            if not reply.done():
                reply.set_exception(self.unavailable(f"{problem} within {timeout:g} s"))

        timer = reply.get_loop().call_later(timeout, late)
        try:
            return await reply
        finally:
            timer.cancel()

    async def _on_reply(self, msg: Msg) -> None:
        waiter = self._waiting.get(msg.subject.rpartition(".")[2])
        if isinstance(waiter, asyncio.Queue):
            waiter.put_nowait(msg)
        elif waiter is not None and not waiter.done():
            waiter.set_result(msg)

    @contextmanager
    def on_reconnect(self, callback: Callable[[], None]) -> Iterator[None]:
        """Calls back after each reconnect: subscriptions live on, but messages sent meanwhile may be lost."""
        self._on_reconnect.add(callback)
        try:
            yield
        finally:
            self._on_reconnect.discard(callback)

    def disconnected(self) -> None:
        self._lost = self._requests

    def reconnected(self) -> None:
        for token, waiter in self._waiting.items():
            if isinstance(waiter, asyncio.Future) and not waiter.done() and int(token, 16) <= self._lost:
                waiter.set_exception(BusUnavailable("the connection to NATS was lost before the answer"))
        for callback in list(self._on_reconnect):
            callback()

    async def start(self) -> None:
        await self.nc.subscribe(f"{self._inbox}.*", cb=self._on_reply)

    # ── streams ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def ensure_streams(self, upkeep: Upkeep = Upkeep.ALL) -> None:
        """Makes and changes the streams of all planes, as far as `upkeep` goes (`core.bus.upkeep`)."""
        await upkeep_of.keep_streams(self, upkeep)

    async def ensure_previews(self) -> None:
        """Makes the stream of previews: a memory stream vanishes with its definition when its server restarts."""
        await upkeep_of.keep_stream(self, stream_configs(self.names)["tok"], Upkeep.MISSING)

    async def ensure_consumer(self, stream: str, config: Mapping[str, Any], *, anew: bool = False) -> None:
        """Makes a durable consumer, or changes it if it is of an older version. `anew` forgets its deliveries that were
        not acked.
        """
        if anew:
            try:
                await self.api(f"CONSUMER.DELETE.{stream}.{config['durable_name']}")
            except ApiError as error:
                log.debug("no consumer to reset", consumer=config["durable_name"], error=str(error))
        await upkeep_of.keep_consumer(self, stream, config)


@asynccontextmanager
async def connect(endpoint: Endpoint, name: str = "sika", *, upkeep: Upkeep = Upkeep.MISSING) -> AsyncIterator[Bus]:
    """Connects, and makes and changes the streams, as far as `upkeep` goes. Raises `Unavailable` with the address and
    the reason, `NotFound` if there are no streams and none are made.
    """
    import nats.errors

    from core.bus.client import TrustingClient

    nc = TrustingClient()
    bus = Bus(nc, endpoint)

    async def reconnected() -> None:
        log.info("nats reconnected", server=nc.connected_url.netloc if nc.connected_url else "?")
        bus.reconnected()

    async def disconnected() -> None:
        bus.disconnected()

    errors: deque[str] = deque(maxlen=2)
    loop = asyncio.get_running_loop()
    began = reported = loop.time()
    seconds = endpoint.patience or CONNECT_SECONDS

    async def trouble(error: Exception) -> None:
        nonlocal reported
        errors.append(str(error) or type(error).__name__)
        if ready:
            repeated = len(errors) > 1 and errors[0] == errors[1]
            if not repeated or loop.time() - reported >= REPORT_SECONDS:
                reported = loop.time()
                log.warning("nats", error=errors[-1])
        elif (now := loop.time()) - reported >= REPORT_SECONDS:
            reported = now
            log.warning("NATS is waited for", url=endpoint.url, seconds=round(now - began), error=errors[-1])

    ready = False
    try:
        async with asyncio.timeout(seconds):
            await nc.connect(
                **reach(endpoint),
                name=name,
                max_reconnect_attempts=-1,
                reconnect_time_wait=RECONNECT_SECONDS,  # type: ignore[arg-type]  # it only sleeps so long
                ping_interval=20,
                connect_timeout=5,
                allow_reconnect=True,
                pending_size=64 << 20,
                flusher_queue_size=8192,
                inbox_prefix=b"_INBOX",
                error_cb=trouble,
                reconnected_cb=reconnected,
                disconnected_cb=disconnected,
            )
        ready = True
        await bus.start()
        await _ensure_streams(bus, upkeep, began + seconds)
    except (nats.errors.Error, OSError, Unavailable, NotFound, Invalid) as error:
        await _closed(nc)
        reason = str(error) or (f"no answer within {seconds:g} s" + (f" ({errors[-1]})" if errors else ""))
        kind = type(error) if isinstance(error, NotFound) else Invalid if _is_permanent(error) else Unavailable
        raise kind(f"NATS at {endpoint.url}: {reason}") from error
    try:
        yield bus
    finally:
        await _closed(nc)


def _is_permanent(error: BaseException) -> bool:
    return isinstance(error, Invalid) or is_permanent(error)


async def _closed(nc: Client) -> None:
    """Closes a connection, also when cancelled. It may be dead already: then asyncio of Python 3.13.0 raises a
    `TypeError`."""
    import nats.errors

    closing = anyio.move_on_after(CLOSE_SECONDS, shield=True)
    with closing, suppress(OSError, nats.errors.Error, TypeError):
        await nc.close()


def decoded_reply(reply: Msg, where: str = "") -> Any:
    """Returns JetStream's decoded response. Raises `ApiError` for an error; `where` precedes its text."""
    response = msgspec.json.decode(reply.data)
    if error := response.get("error"):
        raise api_error(error, where)
    return response


async def _ensure_streams(bus: Bus, upkeep: Upkeep, until: float) -> None:
    """Makes and changes the streams, again while the cluster is forming or the connection is lost. Raises `Unavailable`
    at the time `until`, and `NotFound`.
    """
    while True:
        try:
            return await bus.ensure_streams(upkeep)
        except Unavailable as error:
            forming = not isinstance(error, ApiError) or error.status == NOT_READY or error.err_code == NO_PEERS
            if not forming or asyncio.get_running_loop().time() >= until:
                raise
            log.warning("NATS is waited for", error=str(error))
            await asyncio.sleep(RETRY_SECONDS)

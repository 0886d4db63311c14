"""NATS: the connection, the subjects, the streams, and three ways to ask.

Every subject of the system is built in this file. What the planes are for: design decision 0002 in `core/decisions/`.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import nats
import nats.errors
import structlog
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from core.errors import Invalid, Unavailable
from core.events import Aggregate

log = structlog.get_logger("sika.bus")

ASK_SECONDS = 5.0
"""Deadline of one request to the server (its own API answers in milliseconds; a leader election takes up to 5 s)."""
CONNECT_SECONDS = 10.0
"""How long a first connection may take before the start is given up with an error."""
WORD_SECONDS = 5.0
"""How often a start that waits for NATS says so."""
SECOND = 1_000_000_000
"""Nanoseconds: the unit of durations in the JetStream API."""

STREAM_NOT_FOUND = 10059
STREAM_NAME_IN_USE = 10058
MESSAGE_NOT_FOUND = 10037


class ApiError(Exception):
    """The JetStream API refused. `code` is its error code (`err_code`), see nats-server's errors.json."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"JetStream {code}: {text}")
        self.code = code


class Subjects:
    """Names of everything on the bus, under one prefix."""

    def __init__(self, prefix: str = "sika") -> None:
        if not prefix.replace("-", "").replace("_", "").isalnum():
            raise Invalid(f"nats.prefix: letters, digits, - and _ only, got {prefix!r}")
        self.prefix = prefix
        self.all_log, self.all_live = f"{prefix}.log.>", f"{prefix}.live.>"
        self._log, self._live = f"{prefix}.log.", f"{prefix}.live."

    def stream(self, plane: str) -> str:
        """`log`, `cmd`, `tok`, `timer` or `dlq`."""
        return f"{self.prefix}_{plane}".upper()

    @property
    def blobs(self) -> str:
        return f"{self.prefix}-blobs"

    def log(self, aggregate: Aggregate) -> str:
        return f"{self._log}{aggregate.kind}.{aggregate.id}"

    def live(self, aggregate: Aggregate) -> str:
        return f"{self._live}{aggregate.kind}.{aggregate.id}"

    def tok(self, run: str) -> str:
        return f"{self.prefix}.tok.{run}"

    def cmd(self, actor: str, aggregate: Aggregate) -> str:
        return f"{self.prefix}.cmd.{actor}.{aggregate.kind}.{aggregate.id}"

    def cmd_of(self, actor: str) -> str:
        return f"{self.prefix}.cmd.{actor}.>"

    def timer(self, actor: str, aggregate: Aggregate, key: str) -> str:
        return f"{self.prefix}.timer.{actor}.{aggregate.kind}.{aggregate.id}.{key}"

    def wake(self, actor: str, aggregate: Aggregate) -> str:
        return f"{self.prefix}.wake.{actor}.{aggregate.kind}.{aggregate.id}"

    @property
    def all_wakes(self) -> str:
        return f"{self.prefix}.wake.>"

    def place(self, actor: str) -> str:
        """How far into the log an actor's events have been dispatched."""
        return f"{self.prefix}.place.{actor}"

    def call(self, actor: str) -> str:
        return f"{self.prefix}.call.{actor}"

    def dlq(self, actor: str, aggregate: Aggregate) -> str:
        return f"{self.prefix}.dlq.{actor}.{aggregate.kind}.{aggregate.id}"

    def aggregate(self, subject: str) -> Aggregate:
        """The aggregate at the end of any of these subjects."""
        kind, identity = subject.rsplit(".", 2)[-2:]
        return Aggregate(kind, identity)

    def target(self, subject: str) -> tuple[str, Aggregate]:
        """Actor and aggregate of a `cmd`, `wake` or `dlq` subject. Raises `ValueError` if it has too few parts."""
        parts = subject.split(".", 4)
        if len(parts) != 5:
            raise ValueError(f"{self.prefix}.<plane>.<actor>.<kind>.<id> has five parts, this subject {len(parts)}")
        return parts[2], Aggregate(parts[3], parts[4])


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where NATS is and how to be let in. Paths are files; `token` and `password` never appear in `repr`."""

    url: str
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    credentials: str | None = None
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    prefix: str = "sika"
    replicas: int = 1
    patience: float | None = None
    """How long a NATS that is not there yet is waited for; None: no longer than a working one may take."""
    trouble: Callable[[], str | None] = field(default=lambda: None, repr=False, compare=False)
    """Why this NATS does not work at the moment, if that is known."""


class _Client(Client):
    """nats-py's client with a header parser that trusts its server: a quarter of the time, and headers are many."""

    @staticmethod
    def _parse_header_lines(raw: bytes) -> dict[str, str]:
        found = {}
        for line in raw.decode("utf-8", "replace").split("\r\n"):
            name, colon, value = line.partition(":")
            if colon:
                found[name] = value.strip()
        return found


Handler = Callable[[Msg], Awaitable[None]]


class Bus:
    """One process's connection. Reconnects for ever; what was in flight meanwhile times out as `Unavailable`."""

    def __init__(self, nc: Client, endpoint: Endpoint) -> None:
        self.nc = nc
        self.names = Subjects(endpoint.prefix)
        self.replicas = endpoint.replicas
        self._trouble = endpoint.trouble
        self._on_reconnect: set[Callable[[], None]] = set()
        self._inbox = nc.new_inbox()
        self._waiting: dict[str, asyncio.Queue[Msg] | asyncio.Future[Msg]] = {}
        self._asked = 0
        self._lost = 0
        """The number of the last request before the connection was lost: no request up to it can be answered."""

    # ── asking ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def ask(
        self, subject: str, payload: bytes, headers: dict[str, str] | None = None, timeout: float = ASK_SECONDS
    ) -> Msg:
        """One request, one reply. Raises `Unavailable` if nobody is there or the deadline passes: it may still have
        happened.
        """
        future: asyncio.Future[Msg] = asyncio.get_running_loop().create_future()
        token = self._await(future)
        try:
            await self._send(subject, payload, f"{self._inbox}.{token}", headers)
            async with asyncio.timeout(timeout):
                reply = await future
        except TimeoutError as error:
            raise self.unavailable(f"{subject}: no answer within {timeout:g} s") from error
        finally:
            del self._waiting[token]
        if reply.header and reply.header.get("Status") == "503":
            raise self.unavailable(f"{subject}: nobody answers: no JetStream there, or it has no leader at the moment")
        return reply

    async def echo(self, timeout: float = ASK_SECONDS) -> None:
        """Send a message to ourselves. When this returns, everything that the server had for this connection before it
        took the message has arrived. Raises `Unavailable`.
        """
        future: asyncio.Future[Msg] = asyncio.get_running_loop().create_future()
        token = self._await(future)
        try:
            await self._send(f"{self._inbox}.{token}", b"", "", None)
            async with asyncio.timeout(timeout):
                await future
        except TimeoutError as error:
            raise self.unavailable(f"the server does not send back within {timeout:g} s") from error
        finally:
            del self._waiting[token]

    @asynccontextmanager
    async def ask_many(self, subject: str, payload: bytes) -> AsyncIterator[asyncio.Queue[Msg]]:
        """One request, many replies: a queue of them, for as long as the block lasts."""
        queue: asyncio.Queue[Msg] = asyncio.Queue()
        token = self._await(queue)
        try:
            await self._send(subject, payload, f"{self._inbox}.{token}", None)
            yield queue
        finally:
            del self._waiting[token]

    async def api(self, call: str, request: Mapping[str, Any] | None = None) -> Any:
        """A JetStream API call. Raises `ApiError`, `Unavailable`."""
        payload = msgspec.json.encode(request) if request is not None else b""
        reply = msgspec.json.decode((await self.ask(f"$JS.API.{call}", payload)).data)
        if error := reply.get("error"):
            raise ApiError(error.get("err_code", 0), error.get("description", ""))
        return reply

    async def probe(self) -> None:
        """Stores a byte, to find out whether that works. Raises `ApiError`, `Unavailable`."""
        reply = msgspec.json.decode((await self.ask(self.names.place("-probe"), b"1")).data)
        if error := reply.get("error"):
            raise ApiError(error.get("err_code", 0), error.get("description", ""))

    def trouble(self) -> str | None:
        """Why NATS cannot be used at the moment, if that is known."""
        if trouble := self._trouble():
            return trouble
        return None if self.connected else "the connection to NATS is lost and being made again"

    @property
    def connected(self) -> bool:
        return self.nc.is_connected

    def unavailable(self, text: str) -> Unavailable:
        """The error, with what is being waited for."""
        trouble = self.trouble()
        return Unavailable(f"{text} ({trouble})" if trouble else text)

    @property
    def reconnects(self) -> int:
        """How often the connection was made again: counted before the subscriptions are."""
        return self.nc.stats["reconnects"]

    async def publish(self, subject: str, payload: bytes, headers: dict[str, str] | None = None) -> None:
        """Fire and forget: may be lost."""
        await self._send(subject, payload, "", headers)

    async def request_from(self, subject: str, payload: bytes, reply: str) -> None:
        """Fire a request whose replies go to a subscription of the caller's."""
        await self._send(subject, payload, reply, None)

    async def subscribe(self, subject: str, handler: Handler, queue: str = "") -> Subscription:
        return await self.nc.subscribe(subject, queue=queue, cb=handler)

    async def _send(self, subject: str, payload: bytes, reply: str, headers: dict[str, str] | None) -> None:
        try:
            await self.nc.publish(subject, payload, reply, headers)
        except nats.errors.MaxPayloadError as error:
            raise Invalid(f"{subject}: {len(payload)} bytes are more than the server takes") from error
        except (nats.errors.Error, OSError) as error:
            raise self.unavailable(f"{subject}: {error or type(error).__name__}") from error

    def _await(self, waiter: asyncio.Queue[Msg] | asyncio.Future[Msg]) -> str:
        self._asked += 1
        token = f"{self._asked:x}"
        self._waiting[token] = waiter
        return token

    async def _on_reply(self, msg: Msg) -> None:
        waiter = self._waiting.get(msg.subject.rpartition(".")[2])
        if isinstance(waiter, asyncio.Queue):
            waiter.put_nowait(msg)
        elif waiter is not None and not waiter.done():
            waiter.set_result(msg)

    @contextmanager
    def on_reconnect(self, callback: Callable[[], None]) -> Iterator[None]:
        """Call back after each reconnect: subscriptions live on, but what was sent or asked meanwhile may be lost."""
        self._on_reconnect.add(callback)
        try:
            yield
        finally:
            self._on_reconnect.discard(callback)

    def disconnected(self) -> None:
        self._lost = self._asked

    def reconnected(self) -> None:
        for token, waiter in self._waiting.items():
            if isinstance(waiter, asyncio.Future) and not waiter.done() and int(token, 16) <= self._lost:
                waiter.set_exception(Unavailable("the connection to NATS was lost before the answer"))
        for callback in list(self._on_reconnect):
            callback()

    async def start(self) -> None:
        await self.nc.subscribe(f"{self._inbox}.*", cb=self._on_reply)

    # ── streams ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def ensure_streams(self) -> None:
        """Create or update the streams of all planes. Safe to run from every process at every start."""
        for config in self._stream_configs():
            try:
                await self.api(f"STREAM.CREATE.{config['name']}", config)
            except ApiError as error:
                if error.code != STREAM_NAME_IN_USE:
                    raise
                await self.api(f"STREAM.UPDATE.{config['name']}", config)

    async def ensure_previews(self) -> None:
        """A memory stream vanishes, definition and all, when its server restarts."""
        config = self._previews_config()
        await self.api(f"STREAM.CREATE.{config['name']}", config)

    async def ensure_consumer(self, stream: str, config: Mapping[str, Any], *, anew: bool = False) -> None:
        """Create or update a durable consumer; `anew` forgets what it had delivered and not been acked for."""
        name = config["durable_name"]
        if anew:
            try:
                await self.api(f"CONSUMER.DELETE.{stream}.{name}")
            except ApiError as error:
                log.debug("no consumer to reset", consumer=name, error=str(error))
        await self.api(f"CONSUMER.CREATE.{stream}.{name}", {"stream_name": stream, "config": config})

    def _stream_configs(self) -> list[dict[str, Any]]:
        n, p = self.names, self.names.prefix
        shared = {"num_replicas": self.replicas, "storage": "file"}
        return [
            {
                **shared,
                "name": n.stream("log"),
                "subjects": [n.all_log],
                "retention": "limits",
                "compression": "s2",
                "allow_direct": True,
                "allow_atomic": True,
                "republish": {"src": n.all_log, "dest": n.all_live},
                "duplicate_window": 120 * SECOND,
            },
            {
                **shared,
                "name": n.stream("cmd"),
                "subjects": [f"{p}.cmd.>"],
                "retention": "workqueue",
                "duplicate_window": 120 * SECOND,
            },
            {
                **shared,
                "name": n.stream("timer"),
                "subjects": [f"{p}.timer.>", n.all_wakes],
                "allow_msg_schedules": True,
                "allow_msg_ttl": True,
                "allow_rollup_hdrs": True,
            },
            {**shared, "name": n.stream("place"), "subjects": [n.place("*")], "max_msgs_per_subject": 1},
            {**shared, "name": n.stream("dlq"), "subjects": [f"{p}.dlq.>"], "max_age": 30 * 86400 * SECOND},
            self._previews_config(),
        ]

    def _previews_config(self) -> dict[str, Any]:
        return {
            "name": self.names.stream("tok"),
            "subjects": [f"{self.names.prefix}.tok.>"],
            "storage": "memory",
            "max_age": 900 * SECOND,
            "max_bytes": 64 << 20,
            "allow_direct": True,
            "allow_rollup_hdrs": True,
            "num_replicas": 1,
        }


@asynccontextmanager
async def connect(endpoint: Endpoint, name: str = "sika") -> AsyncIterator[Bus]:
    """Connect and make sure the streams are there. Raises `Unavailable` with the place and the reason."""
    nc = _Client()
    bus = Bus(nc, endpoint)

    async def reconnected() -> None:
        log.info("nats reconnected", server=nc.connected_url.netloc if nc.connected_url else "?")
        bus.reconnected()

    async def disconnected() -> None:
        bus.disconnected()

    said: deque[str] = deque(maxlen=1)
    loop = asyncio.get_running_loop()
    began = word = loop.time()
    seconds = endpoint.patience or CONNECT_SECONDS

    async def trouble(error: Exception) -> None:
        nonlocal word
        said.append(str(error) or type(error).__name__)
        if ready:
            log.warning("nats", error=said[-1])
        elif (now := loop.time()) - word >= WORD_SECONDS:
            word = now
            log.warning("NATS is waited for", url=endpoint.url, seconds=round(now - began), error=said[-1])

    ready = False
    try:
        async with asyncio.timeout(seconds):
            await nc.connect(
                **reach(endpoint),
                name=name,
                max_reconnect_attempts=-1,
                reconnect_time_wait=1,
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
        await bus.ensure_streams()
    except (nats.errors.Error, ApiError, OSError, TimeoutError, Unavailable) as error:
        with suppress(OSError, nats.errors.Error):
            await nc.close()
        reason = str(error) or (f"no answer within {seconds:g} s" + (f" ({said[-1]})" if said else ""))
        raise Unavailable(f"NATS at {endpoint.url}: {reason}") from error
    try:
        yield bus
    finally:
        with suppress(OSError, nats.errors.Error):  # the connection may be dead already
            await nc.close()


def reach(endpoint: Endpoint) -> dict[str, Any]:
    """Returns the options of `Client.connect` that say where the server is, and who connects."""
    return {
        "servers": endpoint.url.split(","),
        "user": endpoint.user,
        "password": endpoint.password,
        "token": endpoint.token,
        "user_credentials": Path(endpoint.credentials) if endpoint.credentials else None,
        "tls": tls_context(endpoint),
    }


def tls_context(endpoint: Endpoint) -> ssl.SSLContext | None:
    """What a connection to this endpoint needs, None if it is not to be encrypted by us."""
    if not (endpoint.tls_ca or endpoint.tls_cert):
        return None
    context = ssl.create_default_context(cafile=endpoint.tls_ca)
    if endpoint.tls_cert:
        context.load_cert_chain(endpoint.tls_cert, endpoint.tls_key)
    return context

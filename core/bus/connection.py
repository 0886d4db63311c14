"""NATS: the connection, the subjects, the streams, and requests.

Every subject of the system is built in this file. Decision 0002 in `core/decisions/` explains the planes.
"""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
import structlog

from core.errors import Invalid, Unavailable
from core.events import Aggregate

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg
    from nats.aio.subscription import Subscription

    from core.config.server import Nats

log = structlog.get_logger("sika.bus")

ASK_SECONDS = 5.0
"""Timeout of a request to the server (its own API answers in milliseconds; a leader election takes up to 5 s)."""
CONNECT_SECONDS = 10.0
"""Timeout of the first connection."""
RECONNECT_SECONDS = 0.25
"""Pause between two attempts to connect again: a child nats-server is back in half a second."""
RETRY_SECONDS = 1.0
"""Pause of a start whose connection was lost."""
REPORT_SECONDS = 5.0
"""Interval of warnings while the start waits for NATS."""
SECOND = 1_000_000_000
"""Nanoseconds: the unit of durations in the JetStream API."""

STREAM_NOT_FOUND = 10059
STREAM_NAME_IN_USE = 10058
MESSAGE_NOT_FOUND = 10037
SEQUENCE_NOT_FOUND = 10043
DELETION_FAILED = 10057
WRONG_LAST_SEQUENCE = frozenset({10071, 10164})
PREVIEW_SECONDS = 900
"""Time that previews stay in their stream, in memory."""


class ApiError(Unavailable):
    """The JetStream API refused. `err_code` is its error code, see nats-server's errors.json."""

    def __init__(self, err_code: int, text: str) -> None:
        super().__init__(f"JetStream {err_code}: {text}")
        self.err_code = err_code


class Subjects:
    """Names of subjects, streams and buckets, under one prefix."""

    def __init__(self, prefix: str = "sika") -> None:
        if not prefix.replace("-", "").replace("_", "").isalnum():
            raise Invalid(f"nats.prefix: letters, digits, - and _ only, got {prefix!r}")
        self.prefix = prefix
        self.all_log, self.all_live = f"{prefix}.log.>", f"{prefix}.live.>"
        self._log, self._live = f"{prefix}.log.", f"{prefix}.live."

    def stream(self, plane: str) -> str:
        """The stream of `log`, `cmd`, `tok`, `timer`, `place`, `dlq` or `blobs`."""
        return f"OBJ_{self.blobs}" if plane == "blobs" else f"{self.prefix}_{plane}".upper()

    @property
    def blobs(self) -> str:
        """The bucket of the object store."""
        return f"{self.prefix}-blobs"

    def blob(self, name: str) -> str:
        """The subject of an object's description, as JetStream's object store has it."""
        return f"$O.{self.blobs}.M.{base64.urlsafe_b64encode(name.encode()).decode()}"

    def chunks(self, nuid: str) -> str:
        """The subject of the chunks of an upload."""
        return f"$O.{self.blobs}.C.{nuid}"

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
        """The subject of an actor's offset: the sequence up to which its events have been dispatched."""
        return f"{self.prefix}.place.{actor}"

    @property
    def processes(self) -> str:
        """The subject on which every process reports what it does."""
        return f"{self.prefix}.processes"

    def call(self, actor: str) -> str:
        return f"{self.prefix}.call.{actor}"

    def dlq(self, actor: str, aggregate: Aggregate) -> str:
        return f"{self.prefix}.dlq.{actor}.{aggregate.kind}.{aggregate.id}"

    def aggregate(self, subject: str) -> Aggregate:
        """Returns the aggregate at the end of any of these subjects."""
        kind, identity = subject.rsplit(".", 2)[-2:]
        return Aggregate(kind, identity)

    def target(self, subject: str) -> tuple[str, Aggregate]:
        """Returns actor and aggregate of a `cmd`, `wake` or `dlq` subject. Raises `ValueError` for too few parts."""
        parts = subject.split(".", 4)
        if len(parts) != 5:
            raise ValueError(f"{self.prefix}.<plane>.<actor>.<kind>.<id> has five parts, this subject {len(parts)}")
        return parts[2], Aggregate(parts[3], parts[4])


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Address and credentials of a NATS. Paths are files; `token` and `password` never appear in `repr`."""

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
    """Timeout of the first connection in seconds; None: `CONNECT_SECONDS`."""
    trouble: Callable[[], str | None] = field(default=lambda: None, repr=False, compare=False)
    """Returns the known reason why this NATS does not work at the moment."""


def configured(nats: Nats, url: str) -> Endpoint:
    """Returns the endpoint of a NATS that runs elsewhere. Raises `Invalid` for credentials in its address."""
    if "@" in url:
        raise Invalid("--nats: no credentials in the address; use nats.user and nats.password, or nats.token")
    tls = nats.tls
    return Endpoint(
        url,
        user=nats.user,
        password=nats.password.reveal() if nats.password else None,
        token=nats.token.reveal() if nats.token else None,
        credentials=nats.credentials,
        tls_ca=tls.ca if tls else None,
        tls_cert=tls.cert if tls else None,
        tls_key=tls.key if tls else None,
        prefix=nats.prefix,
        replicas=nats.replicas,
    )


Handler: TypeAlias = "Callable[[Msg], Awaitable[None]]"


class Bus:
    """A process's connection. Reconnects for ever; requests in flight meanwhile fail as `Unavailable`."""

    def __init__(self, nc: Client, endpoint: Endpoint) -> None:
        self.nc = nc
        self.names = Subjects(endpoint.prefix)
        self.replicas = endpoint.replicas
        self._trouble = endpoint.trouble
        self._on_reconnect: set[Callable[[], None]] = set()
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
        return checked(await self.ask(f"$JS.API.{call}", payload))

    async def store(self, subject: str, payload: bytes, headers: dict[str, str] | None = None) -> int:
        """Publishes to a stream, and returns the acknowledged sequence. Raises `ApiError`, `Unavailable`."""
        return int(checked(await self.ask(subject, payload, headers), f"{subject}: ")["seq"])

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

    def unavailable(self, text: str) -> Unavailable:
        """Returns the error, with the known reason."""
        trouble = self.trouble()
        return Unavailable(f"{text} ({trouble})" if trouble else text)

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
        return await self.nc.subscribe(subject, queue=queue, cb=handler)

    async def _send(self, subject: str, payload: bytes, reply: str, headers: dict[str, str] | None) -> None:
        import nats.errors  # loaded by the connection

        try:
            await self.nc.publish(subject, payload, reply, headers)
        except nats.errors.MaxPayloadError as error:
            raise Invalid(f"{subject}: {len(payload)} bytes are more than the server takes") from error
        except (nats.errors.Error, OSError) as error:
            raise self.unavailable(f"{subject}: {error or type(error).__name__}") from error

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
        try:
            async with asyncio.timeout(timeout):
                return await reply
        except TimeoutError as error:
            raise self.unavailable(f"{problem} within {timeout:g} s") from error

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
                waiter.set_exception(Unavailable("the connection to NATS was lost before the answer"))
        for callback in list(self._on_reconnect):
            callback()

    async def start(self) -> None:
        await self.nc.subscribe(f"{self._inbox}.*", cb=self._on_reply)

    # ── streams ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def ensure_streams(self) -> None:
        """Creates or updates the streams of all planes. Safe to run from every process at every start."""
        for config in stream_configs(self.names, self.replicas).values():
            try:
                await self.api(f"STREAM.CREATE.{config['name']}", config)
            except ApiError as error:
                if error.err_code != STREAM_NAME_IN_USE:
                    raise
                await self.api(f"STREAM.UPDATE.{config['name']}", config)

    async def ensure_previews(self) -> None:
        """Creates the stream of previews: a memory stream vanishes with its definition when its server restarts."""
        config = stream_configs(self.names)["tok"]
        await self.api(f"STREAM.CREATE.{config['name']}", config)

    async def ensure_consumer(self, stream: str, config: Mapping[str, Any], *, anew: bool = False) -> None:
        """Creates or updates a durable consumer. `anew` forgets its deliveries that were not acked."""
        name = config["durable_name"]
        if anew:
            try:
                await self.api(f"CONSUMER.DELETE.{stream}.{name}")
            except ApiError as error:
                log.debug("no consumer to reset", consumer=name, error=str(error))
        await self.api(f"CONSUMER.CREATE.{stream}.{name}", {"stream_name": stream, "config": config})


def stream_configs(names: Subjects, replicas: int = 1) -> dict[str, dict[str, Any]]:
    """Returns the configuration of the streams, by plane."""
    prefix = names.prefix
    shared = {"num_replicas": replicas, "storage": "file"}
    configs: dict[str, dict[str, Any]] = {
        "log": {
            **shared,
            "subjects": [names.all_log],
            "retention": "limits",
            "compression": "s2",
            "allow_direct": True,
            "allow_atomic": True,
            "republish": {"src": names.all_log, "dest": names.all_live},
            "duplicate_window": 120 * SECOND,
        },
        "cmd": {
            **shared,
            "subjects": [f"{prefix}.cmd.>"],
            "retention": "workqueue",
            "duplicate_window": 120 * SECOND,
        },
        "timer": {
            **shared,
            "subjects": [f"{prefix}.timer.>", names.all_wakes],
            "allow_msg_schedules": True,
            "allow_msg_ttl": True,
            "allow_rollup_hdrs": True,
        },
        "place": {**shared, "subjects": [names.place("*")], "max_msgs_per_subject": 1},
        "dlq": {**shared, "subjects": [f"{prefix}.dlq.>"], "max_age": 30 * 86400 * SECOND},
        "tok": {
            "subjects": [f"{prefix}.tok.>"],
            "storage": "memory",
            "max_age": PREVIEW_SECONDS * SECOND,
            "max_bytes": 64 << 20,
            "allow_direct": True,
            "allow_rollup_hdrs": True,
            "num_replicas": 1,
        },
    }
    return {plane: {"name": names.stream(plane), **config} for plane, config in configs.items()}


@asynccontextmanager
async def connect(endpoint: Endpoint, name: str = "sika") -> AsyncIterator[Bus]:
    """Connects, and creates or updates the streams. Raises `Unavailable` with the address and the reason."""
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
        await _ensure_streams(bus, began + seconds)
    except (nats.errors.Error, OSError, Unavailable) as error:
        with suppress(OSError, nats.errors.Error):
            await nc.close()
        reason = str(error) or (f"no answer within {seconds:g} s" + (f" ({errors[-1]})" if errors else ""))
        raise Unavailable(f"NATS at {endpoint.url}: {reason}") from error
    try:
        yield bus
    finally:
        with suppress(OSError, nats.errors.Error):  # the connection may be dead already
            await nc.close()


def checked(reply: Msg, where: str = "") -> Any:
    """Returns JetStream's decoded response. Raises `ApiError` for an error; `where` precedes its text."""
    response = msgspec.json.decode(reply.data)
    if error := response.get("error"):
        raise ApiError(error.get("err_code", 0), where + error.get("description", ""))
    return response


def reach(endpoint: Endpoint) -> dict[str, Any]:
    """Returns the options of `Client.connect` for the server's address and the credentials."""
    return {
        "servers": endpoint.url.split(","),
        "user": endpoint.user,
        "password": endpoint.password,
        "token": endpoint.token,
        "user_credentials": Path(endpoint.credentials) if endpoint.credentials else None,
        "tls": tls_context(endpoint),
    }


def tls_context(endpoint: Endpoint) -> ssl.SSLContext | None:
    """Returns the TLS context of a connection to this endpoint; None if none is configured."""
    if not (endpoint.tls_ca or endpoint.tls_cert):
        return None
    context = ssl.create_default_context(cafile=endpoint.tls_ca)
    if endpoint.tls_cert:
        context.load_cert_chain(endpoint.tls_cert, endpoint.tls_key)
    return context


async def _ensure_streams(bus: Bus, until: float) -> None:
    """Creates or updates the streams, again if the connection is lost meanwhile. Raises `Unavailable`."""
    while True:
        try:
            return await bus.ensure_streams()
        except ApiError:
            raise
        except Unavailable as error:
            if asyncio.get_running_loop().time() >= until:
                raise
            log.warning("NATS is waited for", error=str(error))
            await asyncio.sleep(RETRY_SECONDS)

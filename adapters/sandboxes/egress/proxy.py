"""The proxy of sandboxed commands: the only way out of a sandbox with a network.

Theory of operation
===================

A sandbox has no network of its own, only a loopback. For each call the server listens on a unix socket in the call's
folder, which the sandbox sees; `forwarder.py` inside makes a port of it, and the proxy variables name the port. So what
came through a socket was connected to by that call, and a program that ignores the variables reaches nothing.

    command ── 127.0.0.1:PORT ── forwarder │ unix socket ── proxy ── checked address

The proxy speaks HTTP/1.1: CONNECT for tunnels, absolute URLs for plain HTTP, one request per connection. Names are
resolved here, and the connection goes to an address that was checked, so that a name that changes its address between
the two (rebinding) gains nothing. A redirect is a new request, with a new check.

To hosts with credentials the proxy speaks itself: the command's TLS ends at the proxy, with a certificate of
`authority.py`, and begins again to the real host, whose certificate is verified; in between the header is added. The
command never has the credential, and cannot send it elsewhere.

Bounds: connections of a call at a time, bytes of a call, the size of a head, the time to connect and the time of
silence. The socket lives as long as the server: a command that outlives it has no network until the next server goes on
with the call, which listens at the same place.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

import anyio
import h11
import structlog
from anyio import to_thread
from anyio.abc import ByteStream
from anyio.streams.tls import TLSStream

from adapters.sandboxes.egress.accesses import Accesses, TooMuch
from adapters.sandboxes.egress.rules import Place, Refused, Rules, plain
from core.config.sections import Secret
from core.errors import ungrouped
from core.ports.sandbox import Access

if TYPE_CHECKING:
    from adapters.sandboxes.egress.authority import Authority

log = structlog.get_logger("sika.sandbox")

SOCKET = "proxy.sock"
MOST_CONNECTIONS, QUEUE = 256, 4096
"""Connections of a call that are served at a time, and those that wait in the kernel: they take no descriptor here."""
MOST_HEAD = 64 << 10
MOST_HOST = 253
"""Limit of the characters of a host, as DNS has it: hosts are recorded in the thread's log."""
CHUNK = 64 << 10
CONNECT_SECONDS, HEAD_SECONDS, SILENT_SECONDS = 15.0, 30.0, 300.0
ACCEPT_PAUSE = 1.0
"""Seconds until another try to accept a connection, as when the server has no descriptor left."""
_OF_CONNECTION = frozenset(
    b"connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer upgrade".split()
)
"""Headers that concern one connection only (RFC 9110 §7.6.1). `Transfer-Encoding` stays: h11 frames by it."""
_REASONS = {403: b"Forbidden", 502: b"Bad Gateway", 504: b"Gateway Timeout"}


class Credential(NamedTuple):
    """A header that is added to requests to a place over TLS."""

    place: Place
    header: str
    value: Secret


class Failed(Exception):
    """The request cannot be fulfilled; the client is told so with this status."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Proxy:
    """Serves the calls of a server. `authority` makes the certificates for hosts with credentials."""

    def __init__(
        self,
        rules: Rules,
        credentials: Sequence[Credential] = (),
        authority: Authority | None = None,
        *,
        most_bytes: int = 0,
    ) -> None:
        self._rules, self._credentials, self._authority = rules, credentials, authority
        self._most_bytes = most_bytes
        self._trust: ssl.SSLContext | None = None

    @asynccontextmanager
    async def serving(self, folder: Path, record: Path | None = None) -> AsyncIterator[None]:
        """Listens on the socket in a folder, and records in another one (default: the same) what was connected to."""
        accesses = await to_thread.run_sync(Accesses, record or folder, self._most_bytes)
        slots = anyio.Semaphore(MOST_CONNECTIONS)

        async def handle(stream: ByteStream) -> None:
            try:
                async with stream:
                    await _Connection(self, stream, accesses).run()
                await to_thread.run_sync(accesses.write)
            except Exception as error:  # it must not end the command
                log.warning("a connection of a sandbox ended", error=f"{type(error).__name__}: {error}")
            finally:
                slots.release()

        with ungrouped(Exception):
            # Closed in the cancelled scope of the tasks, the listener would swallow the error of the block.
            async with await _listener(folder) as listener, anyio.create_task_group() as tasks:
                tasks.start_soon(_accept, listener, slots, tasks, handle)
                try:
                    yield
                finally:
                    tasks.cancel_scope.cancel()
                    with suppress(OSError):
                        accesses.write(now=True)

    async def connect(self, host: str, port: int, accesses: Accesses) -> tuple[ByteStream, Access]:
        """Connects to an allowed address of a host. Raises `Failed`."""
        try:
            with anyio.fail_after(CONNECT_SECONDS):
                addresses = await self._rules.addresses(host, port)
                stream = await _first(addresses, port)
        except Refused as refusal:
            accesses.connected(host, port, str(refusal))
            raise Failed(403, str(refusal)) from None
        except TimeoutError:
            raise Failed(504, f"{host}:{port} did not answer within {CONNECT_SECONDS:g} s") from None
        except OSError as error:
            raise Failed(502, f"{host}:{port}: {error.strerror or 'cannot be reached'}") from None
        return stream, accesses.connected(host, port)

    def headers_for(self, host: str, port: int) -> Mapping[str, Secret]:
        """Returns the headers that are added to requests to a host over TLS."""
        if self._authority is None:
            return {}
        return {entry.header: entry.value for entry in self._credentials if entry.place.has(plain(host), port)}

    async def opened(self, client: ByteStream, host: str) -> ByteStream:
        """Begins TLS with the client, in the name of a host."""
        assert self._authority is not None
        context = await to_thread.run_sync(self._authority.context, plain(host))
        return await TLSStream.wrap(client, server_side=True, ssl_context=context, standard_compatible=False)

    async def secured(self, stream: ByteStream, host: str) -> ByteStream:
        """Begins TLS with the host, whose certificate is verified."""
        if self._trust is None:
            self._trust = await to_thread.run_sync(ssl.create_default_context)
            self._trust.set_alpn_protocols(["http/1.1"])
        return await TLSStream.wrap(stream, hostname=host, ssl_context=self._trust, standard_compatible=False)


class _Connection:
    """A connection of a command."""

    def __init__(self, proxy: Proxy, client: ByteStream, accesses: Accesses) -> None:
        self._proxy, self._client, self._accesses = proxy, client, accesses

    async def run(self) -> None:
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError, OSError, TooMuch), ungrouped(*_BROKEN):
            conn = h11.Connection(h11.SERVER, max_incomplete_event_size=MOST_HEAD)
            try:
                with anyio.fail_after(HEAD_SECONDS):
                    request = await _event(conn, self._client)
                if not isinstance(request, h11.Request):
                    return
                if request.method == b"CONNECT":
                    conn.next_event()  # its end, after which protocols may be switched
                    await self._tunnel(conn, *_authority_of(request))
                else:
                    await self._plain(conn, request)
            except Failed as failure:
                await _respond(conn, self._client, failure.status, str(failure))
            except h11.RemoteProtocolError as error:
                await _respond(conn, self._client, error.error_status_hint, "this is no HTTP request")

    async def _tunnel(self, conn: h11.Connection, host: str, port: int) -> None:
        stream, entry = await self._proxy.connect(host, port, self._accesses)
        async with stream:
            await self._client.send(_sent(conn, h11.Response(status_code=200, headers=[], reason=b"OK")))
            if added := self._proxy.headers_for(host, port):
                await self._intercept(stream, entry, host, port, added)
                return
            first, _ = conn.trailing_data
            if first:
                self._accesses.count(entry, sent=len(first))
                await stream.send(first)
            await _relay(self._client, stream, self._counter(entry))

    async def _intercept(
        self, stream: ByteStream, entry: Access, host: str, port: int, added: Mapping[str, Secret]
    ) -> None:
        """Reads a request inside of the tunnel, adds the headers, and passes it on."""
        try:
            with anyio.fail_after(HEAD_SECONDS):
                inside = await self._proxy.opened(self._client, host)
                conn = h11.Connection(h11.SERVER, max_incomplete_event_size=MOST_HEAD)
                request = await _event(conn, inside)
        except ssl.SSLError:
            return  # the command does not trust the sandbox's authority
        if not isinstance(request, h11.Request):
            return
        if not request.target.startswith((b"/", b"*")):  # an absolute URL would name a host again
            await _respond(conn, inside, 400, "the path of a URL is expected")
            return
        try:
            async with await self._proxy.secured(stream, host) as secure:
                place = _authority(host, port, 443)
                await self._exchange(conn, inside, request, secure, entry, request.target, place, added)
        except ssl.SSLError as error:
            await _respond(conn, inside, 502, f"{host}:{port}: {error.reason or 'TLS failed'}")

    async def _plain(self, conn: h11.Connection, request: h11.Request) -> None:
        host, port, target = _url_of(request)
        stream, entry = await self._proxy.connect(host, port, self._accesses)
        async with stream:
            await self._exchange(conn, self._client, request, stream, entry, target, _authority(host, port, 80), {})

    async def _exchange(
        self,
        conn: h11.Connection,
        client: ByteStream,
        request: h11.Request,
        stream: ByteStream,
        entry: Access,
        target: bytes,
        authority: bytes,
        added: Mapping[str, Secret],
    ) -> None:
        """Passes a request and its response on; the body of the one may still be under way when the other begins.

        `Host` becomes the host that was checked (RFC 9112 §3.2.2): a server of many sites would take it for another.
        """
        up = h11.Connection(h11.CLIENT, max_incomplete_event_size=MOST_HEAD)
        named = {"host", *(name.lower() for name in added)}
        headers = [(b"Host", authority)]
        headers += [(name, value) for name, value in _ours(request) if name.decode().lower() not in named]
        headers += [(name.encode(), value.reveal().encode()) for name, value in added.items()]
        count = self._counter(entry)
        head = _sent(up, h11.Request(method=request.method, target=target, headers=[*headers, _CLOSE]))
        async with anyio.create_task_group() as tasks:
            count(len(head), 0)
            await stream.send(head)
            tasks.start_soon(_upload, conn, client, up, stream, count)
            await _download(up, stream, conn, client, count)
            tasks.cancel_scope.cancel()

    def _counter(self, entry: Access) -> Count:
        return lambda sent, received: self._accesses.count(entry, sent=sent, received=received)


_BROKEN = (OSError, anyio.BrokenResourceError, anyio.ClosedResourceError, h11.RemoteProtocolError)
Count = Callable[[int, int], None]
"""Counts bytes to and from a host. Raises `TooMuch`."""
_CLOSE = (b"Connection", b"close")


async def _upload(
    conn: h11.Connection, client: ByteStream, up: h11.Connection, stream: ByteStream, count: Count
) -> None:
    if conn.they_are_waiting_for_100_continue:
        await client.send(_sent(conn, h11.InformationalResponse(status_code=100, headers=[])))
    with suppress(anyio.BrokenResourceError):  # the host has answered before it has read all
        while not isinstance(event := await _event(conn, client), h11.EndOfMessage | h11.ConnectionClosed):
            if isinstance(event, h11.Data):
                data = _sent(up, event)
                count(len(data), 0)
                await stream.send(data)
        if isinstance(event, h11.EndOfMessage) and (end := _sent(up, event)):
            await stream.send(end)


async def _download(
    up: h11.Connection, stream: ByteStream, conn: h11.Connection, client: ByteStream, count: Count
) -> None:
    while not isinstance(event := await _event(up, stream, count), h11.EndOfMessage | h11.ConnectionClosed):
        match event:
            case h11.Response():
                headers = [*_ours(event), _CLOSE]
                response = h11.Response(status_code=event.status_code, headers=headers, reason=event.reason)
                await client.send(_sent(conn, response))
            case h11.Data():
                await client.send(_sent(conn, event))
    if isinstance(event, h11.EndOfMessage):
        await client.send(_sent(conn, event))


async def _event(conn: h11.Connection, stream: ByteStream, count: Count | None = None) -> h11.Event:
    """Returns the next event of a connection. Raises `h11.RemoteProtocolError`, and `TimeoutError` after silence."""
    while (event := conn.next_event()) is h11.NEED_DATA:
        try:
            with anyio.fail_after(SILENT_SECONDS):
                data = await stream.receive(CHUNK)
        except anyio.EndOfStream:
            data = b""
        if count is not None:
            count(0, len(data))
        conn.receive_data(data)
    if isinstance(event, h11.Event):
        return event
    return h11.ConnectionClosed()  # PAUSED: this connection serves one request


def _sent(conn: h11.Connection, event: h11.Event) -> bytes:
    return conn.send(event) or b""


def _ours(message: h11.Request | h11.Response) -> Sequence[tuple[bytes, bytes]]:
    """Returns the headers that are passed on."""
    named = b",".join(value for name, value in message.headers if name == b"connection")
    dropped = _OF_CONNECTION.union(name.strip().lower() for name in named.split(b",")) | {b"expect"}
    return [(name, value) for name, value in message.headers if name not in dropped]


def _authority_of(request: h11.Request) -> tuple[str, int]:
    """Returns the host and port of a CONNECT. Raises `Failed`."""
    return _split(f"//{request.target.decode('ascii', 'replace')}", 443)


def _authority(host: str, port: int, default: int) -> bytes:
    """Returns the value of `Host` for a place."""
    name = f"[{host}]" if ":" in host else host
    return (name if port == default else f"{name}:{port}").encode()


def _url_of(request: h11.Request) -> tuple[str, int, bytes]:
    """Returns the host, the port and the path of a request with an absolute URL. Raises `Failed`."""
    url = request.target.decode("ascii", "replace")
    if not url.lower().startswith("http://"):
        raise Failed(400, "this is the sandbox's proxy: an absolute http URL, or CONNECT, is expected")
    host, port = _split(url, 80)
    parts = urlsplit(url)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return host, port, path.encode()


def _split(url: str, default: int) -> tuple[str, int]:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port or default
    except ValueError:
        host, port = None, 0
    if not host or not plain(host) or len(host) > MOST_HOST:
        raise Failed(400, "no host is named")
    return host, port


async def _respond(conn: h11.Connection, client: ByteStream, status: int, text: str) -> None:
    """Sends a response of the proxy itself."""
    body = f"sika sandbox: {text}\n".encode()
    headers = [(b"Content-Type", b"text/plain"), (b"Content-Length", str(len(body)).encode()), _CLOSE]
    if conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
        response = h11.Response(status_code=status, headers=headers, reason=_REASONS.get(status, b""))
        await client.send(_sent(conn, response) + _sent(conn, h11.Data(data=body)) + _sent(conn, h11.EndOfMessage()))


async def _relay(client: ByteStream, host: ByteStream, count: Count) -> None:
    """Passes bytes on in both directions until both have ended, or neither has said anything for a while."""
    active = anyio.current_time()

    async def one_way(source: ByteStream, target: ByteStream, counted: Callable[[int], None]) -> None:
        nonlocal active
        while True:
            data = None
            with anyio.move_on_at(active + SILENT_SECONDS):
                try:
                    data = await source.receive(CHUNK)
                except anyio.EndOfStream:
                    await target.send_eof()
                    return
            if data is None and anyio.current_time() >= active + SILENT_SECONDS:
                raise TimeoutError
            if data:
                active = anyio.current_time()
                counted(len(data))
                with anyio.fail_after(SILENT_SECONDS):
                    await target.send(data)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(one_way, client, host, lambda size: count(size, 0))
        tasks.start_soon(one_way, host, client, lambda size: count(0, size))


async def _first(addresses: Sequence[str], port: int) -> ByteStream:
    """Connects to the first address that answers. Raises `OSError`."""
    failure: OSError | None = None
    for address in addresses:
        try:
            return await anyio.connect_tcp(address, port)
        except OSError as error:
            failure = error
    raise failure or OSError("there is no address")


async def _accept(
    listener: anyio.abc.SocketListener,
    slots: anyio.Semaphore,
    tasks: anyio.abc.TaskGroup,
    handle: Callable[[ByteStream], Coroutine[Any, Any, None]],
) -> None:
    """Starts the handler of each connection in a slot, which the handler releases."""
    while True:
        await slots.acquire()
        try:
            tasks.start_soon(handle, await listener.accept())
        except anyio.BrokenResourceError as error:  # it must not end the command, nor the server
            slots.release()
            log.warning("a connection of a sandbox was not accepted", error=str(error.__cause__))
            await anyio.sleep(ACCEPT_PAUSE)


async def _listener(folder: Path) -> anyio.abc.SocketListener:
    """Listens on the socket of a folder, whose path may be longer than that of a socket may (unix(7): 107 bytes). Who
    sees the socket is answered: one that refuses was left by a process that was killed.
    """
    draft = f".{SOCKET}"
    with suppress(FileNotFoundError):
        os.unlink(folder / draft)
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        listener = await anyio.create_unix_listener(f"/proc/self/fd/{fd}/{draft}", mode=0o600, backlog=QUEUE)
        os.rename(draft, SOCKET, src_dir_fd=fd, dst_dir_fd=fd)
        return listener
    finally:
        os.close(fd)

"""The long connection: frames in protocol buffers, each event answered when it is in custody."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import aiohttp
import anyio
import structlog
import yarl
from cachetools import TTLCache
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory  # type: ignore[import-untyped]
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from channels.chat.reconnecting import Ended
from channels.chat.sockets import PING_SECONDS as SILENT_SECONDS
from channels.chat.sockets import Socket, connected
from channels.feishu.api import Endpoint
from core.chat.port import Report
from core.errors import ungrouped

PING_SECONDS = 15.0
"""Longest pause between pings; the platform's settings say 120."""
CUSTODY_SECONDS = 2.5
"""The platform waits about 3 s for an acknowledgement, then it delivers again."""
HANDLED_AT_ONCE = 64
PIECES, PIECES_SECONDS = 100, 10.0
"""Events that come in several frames, and the time for the last one."""
REASONS = ("handshake-status", "handshake-msg")
"""The headers in which the platform says why it refuses a connection."""
_CONTROL = 0

Handle = Callable[[bytes], Awaitable[Any]]
"""Takes custody of an event, and returns what the platform shows (of card actions). Whatever it raises, the platform
delivers the event again."""

log = structlog.get_logger("sika.channels.feishu")


def _frame() -> Any:
    """Returns the class of frames (`pbbp2.proto` of the platform's SDKs)."""
    field = descriptor_pb2.FieldDescriptorProto
    required, optional, text = field.LABEL_REQUIRED, field.LABEL_OPTIONAL, field.TYPE_STRING
    file = descriptor_pb2.FileDescriptorProto(name="pbbp2.proto", package="pbbp2")
    header, frame = file.message_type.add(name="Header"), file.message_type.add(name="Frame")
    for number, name in enumerate(("key", "value"), 1):
        header.field.add(name=name, number=number, type=text, label=required)
    for number, name in enumerate(("SeqID", "LogID"), 1):
        frame.field.add(name=name, number=number, type=field.TYPE_UINT64, label=required)
    for number, name in enumerate(("service", "method"), 3):
        frame.field.add(name=name, number=number, type=field.TYPE_INT32, label=required)
    frame.field.add(
        name="headers", number=5, type=field.TYPE_MESSAGE, type_name=".pbbp2.Header", label=field.LABEL_REPEATED
    )
    frame.field.add(name="payload", number=8, type=field.TYPE_BYTES, label=optional)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("pbbp2.Frame"))


Frame = _frame()


class Connection:
    """One connection, from its opening to its end."""

    def __init__(self, endpoint: Endpoint, handle: Handle) -> None:
        self._url = yarl.URL(endpoint.url, encoded=True)
        self._handle = handle
        self._ping_seconds = _interval(endpoint.settings)
        self._slots = anyio.Semaphore(HANDLED_AT_ONCE)
        self._pieces: TTLCache[str, dict[int, bytes]] = TTLCache(PIECES, PIECES_SECONDS)

    async def serve(self, session: aiohttp.ClientSession, report: Report) -> Ended:
        """Opens the connection and handles its events until it ends. Raises `Unavailable` if it cannot be opened."""
        silent = min(SILENT_SECONDS, 2 * PING_SECONDS)
        opening = connected(session, self._url, "Feishu", report, ping_seconds=silent, reason_headers=REASONS)
        async with opening as socket:
            with ungrouped():
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._ping, socket)
                    async for data in socket.frames():
                        socket.greet()
                        await self._slots.acquire()
                        tasks.start_soon(self._take, data, socket)
                    tasks.cancel_scope.cancel()
            return socket.ended

    async def _ping(self, socket: Socket) -> None:
        service = int(self._url.query.get("service_id") or 0)
        headers = [{"key": "type", "value": "ping"}]
        ping = Frame(SeqID=0, LogID=0, service=service, method=_CONTROL, headers=headers).SerializeToString()
        while True:
            await socket.send(ping)
            await anyio.sleep(self._ping_seconds)

    async def _take(self, data: bytes, socket: Socket) -> None:
        try:
            frame = Frame.FromString(data)
            headers = {header.key: header.value for header in frame.headers}
            if frame.method == _CONTROL:
                if headers["type"] == "pong" and frame.payload:
                    self._ping_seconds = _interval(json.loads(frame.payload))
            elif headers["type"] == "event" and (payload := self._joined(headers, frame.payload)) is not None:
                await self._answer(frame, headers["message_id"], payload, socket)
        except (DecodeError, LookupError, TypeError, ValueError, AttributeError) as error:
            log.warning("a frame of Feishu is not as documented", error=type(error).__name__)
        finally:
            self._slots.release()

    async def _answer(self, frame: Any, message: str, payload: bytes, socket: Socket) -> None:
        started = time.monotonic()
        answer: dict[str, Any] = {"code": 200}
        try:
            with anyio.fail_after(CUSTODY_SECONDS):
                result = await self._handle(payload)
            if result is not None:
                answer["data"] = base64.b64encode(json.dumps(result).encode()).decode()
        except Exception as error:
            log.warning("feishu_event_not_taken", frame=message, error=repr(error))
            answer = {"code": 500}
        frame.headers.add(key="biz_rt", value=str(int((time.monotonic() - started) * 1000)))
        frame.payload = json.dumps(answer).encode()
        await socket.send(frame.SerializeToString())

    def _joined(self, headers: Mapping[str, str], payload: bytes) -> bytes | None:
        """Returns the payload of an event; None if parts of it are still to come."""
        count = int(headers["sum"])
        if count <= 1:
            return payload
        pieces = self._pieces.setdefault(headers["message_id"], {})
        pieces[int(headers["seq"])] = payload
        if len(pieces) < count:
            return None
        del self._pieces[headers["message_id"]]
        return b"".join(piece for _, piece in sorted(pieces.items()))


def _interval(settings: Mapping[str, Any]) -> float:
    """Returns the pause between pings for the platform's settings."""
    seconds = settings.get("PingInterval")
    return min(max(float(seconds), 1.0), PING_SECONDS) if isinstance(seconds, int | float) else PING_SECONDS

"""`sika mcp serve`: the running server's `/mcp` on standard input and output, for clients that start a command.

A line is a JSON-RPC message. Each is posted for itself; what the server answers is written as it comes. Standard output
belongs to the protocol.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import httpx
import msgspec
from anyio import to_thread

from channels.client.servers import is_local
from channels.client.sse import frames_of
from channels.client.standard_input import standard_input
from core import reasons

MOST_LINE_BYTES = 4 << 20
"""Limit of a message of the client."""
AT_ONCE = 32
"""Limit of requests that are under way; the client is not read meanwhile."""
CONNECT_SECONDS = 10.0
SILENCE_SECONDS = 900.0
"""Longer than any tool of `/mcp` waits."""
END_SECONDS = 10.0
"""Time of requests that are under way when the client closes its end."""
PARSE_ERROR, INTERNAL_ERROR = -32700, -32603


class Writer(Protocol):
    async def __call__(self, line: bytes) -> None:
        """Writes a line and its end, and flushes it."""
        ...


class Relay:
    """Passes messages on. `locate` returns the present URL of the server, None if none runs."""

    def __init__(self, locate: Callable[[], str | None], headers: Mapping[str, str], write: Writer) -> None:
        self._locate, self._headers, self._write = locate, dict(headers), write
        self._calls: dict[Any, asyncio.Task[None]] = {}
        """Requests under way, by their ids."""
        self._slots = asyncio.Semaphore(AT_ONCE)

    async def run(self, lines: asyncio.StreamReader) -> None:
        """Passes messages on until the client closes its end; what is under way then has `END_SECONDS`.

        Nothing is passed on before the first message, `initialize`, is answered.
        """
        timeout = httpx.Timeout(SILENCE_SECONDS, connect=CONNECT_SECONDS)
        async with (
            httpx.AsyncClient(timeout=timeout, trust_env=not is_local(self._locate() or "")) as http,
            asyncio.TaskGroup() as tasks,
        ):
            while line := await self._line(lines):
                if message := await self._message(line):
                    if message.get("method") == "initialize":
                        await self._pass(http, message)
                        continue
                    await self._slots.acquire()
                    task = tasks.create_task(self._pass(http, message))
                    task.add_done_callback(lambda _: self._slots.release())
                    if "id" in message and "method" in message:
                        self._calls[message["id"]] = task
            if under_way := list(self._calls.values()):
                await asyncio.wait(under_way, timeout=END_SECONDS)
            for task in under_way:
                task.cancel()

    async def _line(self, lines: asyncio.StreamReader) -> bytes:
        try:
            return await lines.readline()
        except ValueError:  # it ends the input: where the next message begins is not known
            await self._fail(None, PARSE_ERROR, f"a message is larger than {MOST_LINE_BYTES} bytes")
            return b""

    async def _message(self, line: bytes) -> dict[str, Any] | None:
        """Returns the message of a line, if it is to be passed on."""
        if not line.strip():
            return None
        try:
            message = msgspec.json.decode(line, type=dict[str, Any])
        except msgspec.DecodeError as error:
            await self._fail(None, PARSE_ERROR, f"not a JSON-RPC message: {error}")
            return None
        if message.get("method") == "notifications/cancelled":
            identity = (message.get("params") or {}).get("requestId")
            if (task := self._calls.get(identity)) is not None:
                task.cancel()  # the server ends the call when its client leaves
            return None
        return message

    async def _pass(self, http: httpx.AsyncClient, message: Mapping[str, Any]) -> None:
        identity = message.get("id")
        try:
            answered = await self._post(http, message)
            if not answered and identity is not None and "method" in message:
                await self._fail(identity, INTERNAL_ERROR, "the server ended its answer early")
        except httpx.HTTPError as error:
            if identity is not None:
                await self._fail(identity, INTERNAL_ERROR, f"the server is out of reach: {reasons.lost(error)}")
        finally:
            self._calls.pop(identity, None)

    async def _post(self, http: httpx.AsyncClient, message: Mapping[str, Any]) -> bool:
        """Writes what the server answers. Returns False if that was no response."""
        url = self._locate()
        if url is None:
            raise httpx.ConnectError("no server is running")
        headers = {**self._headers, "Accept": "application/json, text/event-stream"}
        async with http.stream("POST", f"{url}/mcp", json=message, headers=headers) as response:
            if response.status_code == 202:
                return True
            if response.headers.get("Content-Type", "").startswith("text/event-stream"):
                answered = False
                async for frame in frames_of(response.aiter_bytes()):
                    if isinstance(frame.data, dict):
                        answered = "id" in frame.data and "method" not in frame.data
                        self._note(message, frame.data)
                        await self._write(msgspec.json.encode(frame.data))
                return answered
            body = await response.aread()
            if response.status_code == 200:
                self._note(message, msgspec.json.decode(body))
                await self._write(b"".join(body.splitlines()))
            elif "id" in message:
                await self._fail(message["id"], INTERNAL_ERROR, _reason(response.status_code, body))
            return True

    def _note(self, message: Mapping[str, Any], answer: Mapping[str, Any]) -> None:
        """Remembers the revision of the protocol that the two have agreed on."""
        if message.get("method") == "initialize" and (version := (answer.get("result") or {}).get("protocolVersion")):
            self._headers["MCP-Protocol-Version"] = str(version)

    async def _fail(self, identity: Any, code: int, text: str) -> None:
        error = {"jsonrpc": "2.0", "id": identity, "error": {"code": code, "message": f"sika: {text}"}}
        await self._write(msgspec.json.encode(error))


def _reason(status: int, body: bytes) -> str:
    try:
        detail = msgspec.json.decode(body).get("detail")
    except (msgspec.DecodeError, AttributeError):
        detail = None
    text = detail.get("message") if isinstance(detail, dict) else detail
    hint = "; set SIKA_API_KEY" if status == 401 else ""
    return f"{text or f'the server answers {status}'}{hint}"


async def serve(locate: Callable[[], str | None], key: str | None) -> None:
    """Serves standard input and output until the client closes them."""
    lines = await standard_input(MOST_LINE_BYTES)
    writing = asyncio.Lock()

    def written(line: bytes) -> None:
        sys.stdout.buffer.write(line + b"\n")
        sys.stdout.buffer.flush()

    async def write(line: bytes) -> None:
        async with writing:
            await to_thread.run_sync(written, line)

    headers = {"X-Api-Key": key} if key else {}
    await Relay(locate, headers, write).run(lines)

"""A run, followed over broken connections.

A run does not need its reader, so after a broken connection the stream is requested again, from the last frame on. The
only ambiguous step is the request for the run itself: it has a client key in the run's metadata, and after a break the
runs are searched for that key before a retry.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote

import httpx

from channels.client.errors import NotFound, Refused, Unavailable, unexpected
from channels.client.events import MODES
from channels.client.sse import Frame, frames_of
from channels.client.wire import UNREACHABLE, Retries, Transport
from core.ids import uuid7

KEY = "client_key"
_RUN = re.compile(r"/runs/([^/?]+)$")


class RunStream:
    """A run that is requested with `body`, or an existing one (`run_id`). The id is set from the first frame on."""

    def __init__(self, transport: Transport, thread_id: str, body: Mapping[str, Any], run_id: str = "") -> None:
        self.run_id = run_id
        self._transport = transport
        self._runs = f"/api/threads/{quote(thread_id, safe='')}/runs"
        self._key = uuid7()
        self._body = {
            **body,
            "metadata": {**body.get("metadata", {}), KEY: self._key},
            "stream_mode": MODES,
            "stream_resumable": True,
            "on_disconnect": "continue",
        }
        self._requested = False
        """True if the request may have reached the server."""
        self._last = "-1"

    async def frames(self) -> AsyncGenerator[Frame, None]:
        """Yields the run's frames, each once, until it has ended. Raises `Unavailable` if the server stays away."""
        retries = Retries(self._transport)
        while True:
            try:
                async with self._open() as response:
                    if not response.headers.get("Content-Type", "").startswith("text/event-stream"):
                        raise unexpected(response.headers)
                    async for frame in frames_of(response.aiter_bytes()):
                        retries.succeeded()
                        self._note(frame)
                        yield frame
                        if frame.event == "end":
                            return
                raise Unavailable("the stream ended before the run", "connection_lost")
            except Unavailable as error:
                await retries.wait(error)

    async def cancel(self) -> None:
        """Stops the run, if it was begun, and waits for its end."""
        if run := self.run_id or (self._requested and await self._find()):
            try:
                path = f"{self._runs}/{quote(run, safe='')}/cancel"
                await self._transport.ask("POST", path, query={"wait": True}, safe=True)
            except (NotFound, Refused):
                return  # it has ended by itself

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[httpx.Response]:
        if self._requested and not self.run_id:
            self.run_id = await self._find()
        if not self.run_id:
            self._requested = True
            async with self._post() as response:
                yield response
            return
        path = f"{self._runs}/{quote(self.run_id, safe='')}/stream"
        query, headers = {"stream_mode": MODES}, {"Last-Event-ID": self._last}
        async with self._transport.open("GET", path, params=query, headers=headers) as response:
            yield response

    @asynccontextmanager
    async def _post(self) -> AsyncIterator[httpx.Response]:
        try:
            async with self._transport.open("POST", f"{self._runs}/stream", json=self._body) as response:
                if match := _RUN.search(response.headers.get("Content-Location", "")):
                    self.run_id = match[1]
                yield response
        except Unavailable as error:
            self._requested = error.code != UNREACHABLE
            raise

    def _note(self, frame: Frame) -> None:
        self._last = frame.id or self._last
        if frame.event == "metadata" and isinstance(frame.data, dict):
            self.run_id = str(frame.data.get("run_id") or self.run_id)

    async def _find(self) -> str:
        """Returns the id of the requested run; empty if the request was lost."""
        try:
            runs = await self._transport.ask("GET", self._runs, query={"limit": 10})
        except NotFound:
            return ""
        if not isinstance(runs, list):
            raise unexpected(runs)
        own = (run for run in runs if (run.get("metadata") or {}).get(KEY) == self._key)
        return next((str(run["run_id"]) for run in own), "")

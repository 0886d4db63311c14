"""A run, followed over broken connections.

A run does not need its reader, so a broken connection is answered by asking again, from the last frame that was seen.
The only doubtful moment is the request for the run itself: it carries a key of ours in the run's metadata, and after a
break we look for that before we ask again.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote

import anyio
import httpx

from channels.client.errors import NotFound, Refused, Unavailable, unexpected
from channels.client.events import MODES
from channels.client.wire import PAUSES, Wire
from channels.terminal.sse import Frame, frames_of
from core.ids import uuid7

PATIENCE_SECONDS = 60.0
"""How long a server may be away from a run that it has begun."""
FIRST_SECONDS = 10.0
"""How long it may be away before."""
BROKEN = 500
"""The status of an answer that will be no other next time."""
KEY = "client_key"
_RUN = re.compile(r"/runs/([^/?]+)$")


class Turn:
    """A request for a run, and the run. `run_id` is known from the first frame on."""

    def __init__(self, wire: Wire, thread_id: str, body: Mapping[str, Any]) -> None:
        self.run_id = ""
        self._wire = wire
        self._runs = f"/api/threads/{quote(thread_id, safe='')}/runs"
        self._key = uuid7()
        self._body = {
            **body,
            "metadata": {**body.get("metadata", {}), KEY: self._key},
            "stream_mode": MODES,
            "stream_resumable": True,
            "on_disconnect": "continue",
        }
        self._asked = False
        self._last = "-1"
        self._lost_at: float | None = None
        self._losses = 0

    async def frames(self) -> AsyncGenerator[Frame, None]:
        """The run's frames, each once, until it has ended. Raises `Unavailable` if the server stays away."""
        while True:
            try:
                async with self._open() as response:
                    if not response.headers.get("Content-Type", "").startswith("text/event-stream"):
                        raise unexpected(response.headers)
                    async for frame in frames_of(response.aiter_bytes()):
                        self._saw(frame)
                        yield frame
                        if frame.event == "end":
                            return
                raise Unavailable("the stream ended before the run", "connection_lost")
            except Unavailable as error:
                if error.status == BROKEN:
                    raise
                await self._wait(error)

    async def cancel(self) -> None:
        """Stop the run, if it was begun, and wait for its end."""
        if self._asked and (run := self.run_id or await self._find()):
            try:
                path = f"{self._runs}/{quote(run, safe='')}/cancel"
                await self._wire.ask("POST", path, query={"wait": True}, safe=True)
            except (NotFound, Refused):
                return  # it has ended by itself

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[httpx.Response]:
        if self._asked and not self.run_id:
            self.run_id = await self._find()
        if not self.run_id:
            self._asked = True
            async with self._wire.open("POST", f"{self._runs}/stream", json=self._body) as response:
                if found := _RUN.search(response.headers.get("Content-Location", "")):
                    self.run_id = found[1]
                yield response
            return
        path = f"{self._runs}/{quote(self.run_id, safe='')}/stream"
        query, headers = {"stream_mode": MODES}, {"Last-Event-ID": self._last}
        async with self._wire.open("GET", path, params=query, headers=headers) as response:
            yield response

    def _saw(self, frame: Frame) -> None:
        self._lost_at, self._losses = None, 0
        self._last = frame.id or self._last
        if frame.event == "metadata" and isinstance(frame.data, dict):
            self.run_id = str(frame.data.get("run_id") or self.run_id)

    async def _wait(self, error: Unavailable) -> None:
        """Before the next try; raises the error when it is time to give up."""
        now = anyio.current_time()
        self._lost_at = now if self._lost_at is None else self._lost_at
        if now - self._lost_at > (PATIENCE_SECONDS if self.run_id else FIRST_SECONDS):
            raise error
        await anyio.sleep(PAUSES[min(self._losses, len(PAUSES) - 1)])
        self._losses += 1

    async def _find(self) -> str:
        """The run of our request, if it got through."""
        try:
            runs = await self._wire.ask("GET", self._runs, query={"limit": 10})
        except NotFound:
            return ""
        if not isinstance(runs, list):
            raise unexpected(runs)
        found = (run for run in runs if (run.get("metadata") or {}).get(KEY) == self._key)
        return next((str(run["run_id"]) for run in found), "")

"""A run, followed over broken connections.

A run does not need its reader: it goes on while nobody listens, also when the server is restarted. So a broken
connection is answered by asking again, from the last frame that was seen. The only doubtful moment is the request for
the run itself: it carries a key of ours in the run's metadata, and after a break we look for that before we ask again.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from channels.terminal.client import Client, Patience
from channels.terminal.sse import Frame, frames_of
from core.errors import NotFound, Refused, Unavailable
from core.ids import uuid7

MODES = ("messages-tuple", "values", "custom")
_RUN = re.compile(r"/runs/([^/?]+)$")
RECONNECTED = Frame("reconnected", None)
"""Not of the server: the frames that follow come over another connection."""
OPEN = ("pending", "running")
"""How a run stands that has not ended."""


def said(text: str) -> dict[str, Any]:
    """What a run is asked for with: a message of the person."""
    return {"input": {"messages": [{"type": "human", "id": uuid7(), "content": text}]}}


def answered(question: str, text: str) -> dict[str, Any]:
    """What a run is asked for with: the answer to a question (an interrupt's id) that the thread is paused at."""
    return {"command": {"resume": {question: text}}}


class Turn:
    """A run that is asked for (`wanted`, as `said` and `answered` have it), or one that is there (`run`)."""

    def __init__(
        self,
        client: Client,
        thread_id: str,
        wanted: Mapping[str, Any] | None = None,
        *,
        run: str | None = None,
        plan: bool = False,
    ) -> None:
        self.run = run
        self.status: str | None = None
        """How the run ended, when `frames` has come to its end."""
        self._client = client
        self._runs = f"/api/threads/{thread_id}/runs"
        self._key = uuid7()
        self._asked = False
        self._last = "-1"
        self._body = {
            "assistant_id": "lead_agent",
            **(wanted or {}),
            "metadata": {"terminal_key": self._key},
            "context": {"is_plan_mode": True} if plan else {},
            "stream_mode": MODES,
            "stream_resumable": True,
            "on_disconnect": "continue",
            "multitask_strategy": "reject",
        }

    async def frames(self) -> AsyncGenerator[Frame, None]:
        """The run's frames, each once, until it has ended; `RECONNECTED` where the connection was broken."""
        patience = Patience(self._client)
        again = False
        while self.status is None:
            try:
                async with self._open() as response:
                    if again:
                        yield RECONNECTED
                    async for frame in frames_of(response.content.iter_any()):
                        patience.rewarded()
                        self._saw(frame)
                        yield frame
                status = await self._ended()
                if status is None:
                    raise Unavailable("the stream ended before the run")
                self.status = status
            except Unavailable as error:
                await patience.wait(error)
                again = True

    async def cancel(self) -> None:
        """Ask the run to stop; its frames then come to an end."""
        try:
            run = self.run or await self._find()
            if run is not None:
                await self._client.ask("POST", f"{self._runs}/{run}/cancel?action=interrupt")
        except (NotFound, Refused):
            return  # it has ended by itself

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[aiohttp.ClientResponse]:
        if self.run is None and self._asked:
            self.run = await self._find()
        if self.run is None:
            self._asked = True
            async with self._client.open("POST", f"{self._runs}/stream", json=self._body) as response:
                if found := _RUN.search(response.headers.get("Content-Location", "")):
                    self.run = found[1]
                yield response
            return
        parameters = [("stream_mode", mode) for mode in MODES]
        headers = {"Last-Event-ID": self._last}
        path = f"{self._runs}/{self.run}/stream"
        async with self._client.open("GET", path, params=parameters, headers=headers) as response:
            yield response

    def _saw(self, frame: Frame) -> None:
        self._last = frame.id or self._last
        if frame.event == "metadata" and isinstance(frame.data, dict):
            self.run = str(frame.data.get("run_id") or self.run)

    async def _find(self) -> str | None:
        """The run of our request, if it got through."""
        for run in await self._client.ask("GET", f"{self._runs}?limit=10"):
            if (run.get("metadata") or {}).get("terminal_key") == self._key:
                return str(run["run_id"])
        return None

    async def _ended(self) -> str | None:
        run = await self._client.ask("GET", f"{self._runs}/{self.run}") if self.run else {}
        status = run.get("status")
        return None if status is None or status in OPEN else str(status)

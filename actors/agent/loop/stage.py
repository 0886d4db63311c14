"""What a tool call does now, in its own words: previews of the run, at most one per `SECONDS`, the newest."""

from __future__ import annotations

import asyncio
import time

from actors.agent.run.attempt import Attempt
from core.config.redaction import redactor

SECONDS = 0.1
CHARACTERS = 200
"""Limit of the text, which is one line."""


class Stage:
    """The stage of one call, shown until `close`."""

    def __init__(self, attempt: Attempt, call_id: str, name: str) -> None:
        self._attempt, self._call_id, self._name = attempt, call_id, name
        self._newest, self._sent_at = "", float("-inf")
        self._sending: asyncio.Task[None] | None = None

    async def show(self, text: str) -> None:
        """Shows a text in place of the one before."""
        self._newest = redactor.text(" ".join(text.split()))[:CHARACTERS]
        if self._sending is None or self._sending.done():
            if time.monotonic() - self._sent_at >= SECONDS:
                await self._send()
            else:
                self._sending = self._attempt.task(self._later())

    def close(self) -> None:
        if self._sending is not None:
            self._sending.cancel()

    async def _later(self) -> None:
        await asyncio.sleep(SECONDS)
        await self._send()

    async def _send(self) -> None:
        text, self._newest, self._sent_at = self._newest, "", time.monotonic()
        if text:
            await self._attempt.journal.progress(self._call_id, self._name, f"{text}\n", stage=True)

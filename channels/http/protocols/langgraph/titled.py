"""The end of a thread's first run, sent after its title.

Clients read the thread's title when its first run ends, and not again. It is made beside the run (`actors.title`), and
comes after the end of a quick one. So the last frame waits for it: the run itself does not.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from channels.http.protocols.langgraph.frames import Frames
from channels.http.streams.sse import Frame
from core.config.load import Config
from core.events import Record, RunRequested, ThreadErased, ThreadTitled
from core.runs.follow import Batch
from core.runs.previews import RunPreview
from core.thread.turns import first_message

SECONDS = 1.0
"""The longest wait for a title."""
_SHOWING = frozenset({"updates", "values"})


def awaits_title(config: Config, frames: Frames, request: RunRequested) -> bool:
    """Tells whether a title is made for the run's first message, and the client is shown it."""
    if not config.title.enabled or _SHOWING.isdisjoint(frames.modes.names) or frames.ended:
        return False
    state = frames.state
    return len(state.runs) <= 1 and not state.values.get("title") and first_message(state, request) is not None


class TitledEnd:
    """A translator of a run whose last frame waits for the title."""

    def __init__(self, frames: Frames) -> None:
        self._frames = frames
        self._end: Frame | None = None

    @property
    def ended(self) -> bool:
        return self._frames.ended and self._end is None

    @ended.setter
    def ended(self, ended: bool) -> None:
        self._frames.ended = ended

    def fact(self, record: Record) -> Sequence[Frame]:
        if self._end is not None:
            return [*self._frames.titled(record), *self.last()] if isinstance(record.event, ThreadTitled) else []
        frames = self._frames.fact(record)
        untitled = not (isinstance(record.event, ThreadErased) or self._frames.state.values.get("title"))
        if self._frames.ended and untitled and frames and frames[-1].event == "end":
            self._end = frames.pop()
        return frames

    def run_preview(self, item: RunPreview) -> Sequence[Frame]:
        return self._frames.run_preview(item)

    def last(self) -> list[Frame]:
        """Returns the last frame if it still waits."""
        end, self._end = self._end, None
        return [end] if end is not None else []

    async def until_titled(self, batches: AsyncGenerator[Batch]) -> AsyncGenerator[Batch]:
        """Yields the batches; from the run's end on for `SECONDS` at most."""
        loop, until = asyncio.get_running_loop(), None
        async with aclosing(batches):
            while True:
                if until is None and self._end is not None:
                    until = loop.time() + SECONDS
                try:
                    async with asyncio.timeout_at(until):
                        batch = await anext(batches, None)
                except TimeoutError:
                    return
                if batch is None:
                    return
                yield batch

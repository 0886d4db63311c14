"""The logs of subagents, which translators read before they need them: an answer begins, or comes as a whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from channels.http.server.live import Live
from channels.http.streams.sse import Before
from core.events import Message
from core.runs.follow import Item


class Behind(Protocol):
    """A translator that has to know the logs of subagents."""

    def behind(self, item: Item) -> str | None:
        """Returns the subagent that `learn` needs before the item is fed, or None."""
        ...

    def learn(self, subagent: str, messages: Sequence[Message]) -> None:
        """Takes the messages of a subagent's own log, as it is by now."""
        ...


def informed(live: Live, translator: Behind) -> Before:
    """Returns what has a translator learn what subagents did, before it needs it."""

    async def before(item: Item) -> None:
        if (subagent := translator.behind(item)) is not None:
            translator.learn(subagent, (await live.services.subagents.threads.load(subagent)).messages)

    return before

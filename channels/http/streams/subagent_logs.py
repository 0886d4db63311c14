"""The logs of subagents, which translators read before they need them: an answer begins, or comes as a whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from channels.http.server.live import Live
from channels.http.streams.sse import Before
from core.events import Message, Record, SubagentProgressed
from core.runs.follow import Item
from core.runs.previews import Preview, RunPreview


class Behind(Protocol):
    """A translator that has to know the logs of subagents."""

    def behind(self, item: Item) -> str | None:
        """Returns the subagent of which `learn` has to be told before the item is fed, if there is any."""
        ...

    def learn(self, subagent: str, messages: Sequence[Message]) -> None:
        """Takes the messages of a subagent's own log, as it is by now."""
        ...


class Child(NamedTuple):
    """A subagent at work. `knows`: tells if a message of it is being made, or finished."""

    id: str
    knows: Callable[[str], bool]


def informed(live: Live, translator: Behind) -> Before:
    """Returns what has a translator learn what subagents did, before it needs it."""

    async def before(item: Item) -> None:
        if (subagent := translator.behind(item)) is not None:
            translator.learn(subagent, (await live.services.subagents.threads.load(subagent)).messages)

    return before


def subagent_behind(
    item: Item, of_run: Callable[[str], Child | None], of_call: Callable[[str], Child | None]
) -> str | None:
    """Returns the subagent whose log has to be read before the item: an answer of it begins that it does not know."""
    event = item.event if isinstance(item, Record) else None
    if isinstance(item, RunPreview) and isinstance(item.preview, Preview):
        child, message = of_run(item.run), item.preview.message
    elif isinstance(event, SubagentProgressed):
        child, message = of_call(event.call_id), str(event.message.get("id"))
    else:
        return None
    return None if child is None or child.knows(message) else child.id

"""The messages of a thread that its summaries have replaced, and those that are still there.

What was removed in any other way, by a person or a program, is not among them.
"""

from __future__ import annotations

from typing import NamedTuple

import anyio
import anyio.lowlevel

from core.events import Message
from core.thread.messages import text_of
from core.thread.past import PAGE
from core.thread.state import ThreadState
from core.thread.usage import is_summary
from core.thread.values import REMOVE_ALL, dicts

SEARCH = "search_conversation"
"""Name of the tool that searches them."""
MOST_CHARACTERS = 16_000_000
MOST_MESSAGES = 50_000
"""Limits of what is read, of the newest first."""


class Entry(NamedTuple):
    """A message as it was when it was last written. `key` identifies it as long as the thread exists."""

    key: str
    message: Message
    at: str


async def conversation(state: ThreadState) -> list[Entry]:
    """Returns the messages on the way to the head, the newest first, as if none had been summarised."""
    seen: set[str] = set()
    entries: list[Entry] = []
    characters = 0
    for steps, index in enumerate(state.chain(state.head)):
        if steps % PAGE == 0:
            await anyio.lowlevel.checkpoint()  # a page of commits takes time to decode
        commit = state.commits[index]
        if is_summary(commit.patch):
            continue
        for place, message in reversed(list(enumerate(dicts(commit.patch.get("messages"))))):
            identity, kind = str(message.get("id")), message.get("type")
            if kind == "remove" and identity == REMOVE_ALL:
                return entries
            if identity in seen or not isinstance(kind, str):
                continue
            seen.add(identity)
            if kind != "remove":
                entries.append(Entry(f"{index}-{place}", message, commit.at))
                characters += len(text_of(message.get("content", "")))
        if characters > MOST_CHARACTERS or len(entries) > MOST_MESSAGES:
            break
    return entries

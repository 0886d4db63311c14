"""The latest threads of a person, as a numbered list."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from channels.client.aio import AsyncSikaClient
from channels.client.events import text_of
from channels.terminal.text import one_line

_EXTRACT = {"title": "values.title", "first": "values.messages[0].content"}


async def latest_threads(client: AsyncSikaClient, limit: int) -> list[dict[str, Any]]:
    """Returns the latest threads: `{thread_id, updated_at, title}`. The title may be that of the first message."""
    return [_titled(thread) for thread in await client.search_threads(limit, _EXTRACT)]


def thread_rows(threads: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """Returns the rows of a numbered list of threads."""
    return [
        (
            str(number),
            str(thread.get("updated_at", ""))[:16].replace("T", " "),
            one_line(str(thread["thread_id"]), 200),
            one_line(thread["title"], 60) or "(empty)",
        )
        for number, thread in enumerate(threads, 1)
    ]


def _titled(thread: dict[str, Any]) -> dict[str, Any]:
    extracted = thread.get("extracted") or {}
    return thread | {"title": str(extracted.get("title") or text_of(extracted.get("first") or ""))}

"""What a call of a model got, as far as the log has it: the system prompt, the tools, the parameters, the conversation.

Policies put reminders around it at the call (of todos, memories, the time) and hold tools back that are of no use yet.
That is made of the same facts, and not recorded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from core.errors import Invalid
from core.events import Message, ModelCompleted, ModelFailed, Record, RunStarted
from core.replay import causes
from core.replay.source import Source
from core.runs import prompts
from core.thread.fold import fold


class Request(msgspec.Struct, frozen=True):
    """A request to a model. `missing` says, by part, why one of the first three is not there."""

    prompt: str | None
    tools: Sequence[Any] | None
    """Schemas of functions, as OpenAI's protocol has them, by name."""
    model: Any
    """The parameters of the models that were to answer, the first one first."""
    messages: Sequence[Message]
    notes: Sequence[Message]
    """Remarks of policies after the conversation."""
    missing: Mapping[str, str]


async def request_of(source: Source, records: Sequence[Record], place: str) -> Request:
    """Returns the request of a call of a model, by its answer or its failure (`causes.find`) in a log.

    Raises `NotFound`, and `Invalid` for another event.
    """
    record = causes.find(records, place, records[0].aggregate)
    at = records.index(record)
    if not isinstance(record.event, ModelCompleted | ModelFailed):
        calls = (n for n, other in enumerate(records, 1) if isinstance(other.event, ModelCompleted | ModelFailed))
        raise Invalid(f"event {at + 1} is {record.type}; models were called in {', '.join(map(str, calls)) or 'none'}")
    starts = [other.event for other in records[:at] if other.run == record.run and isinstance(other.event, RunStarted)]
    parts: dict[str, str] = {}
    missing: dict[str, str] = {}
    for part in prompts.PARTS:
        sha256 = starts[-1].setup.get(part) if starts else None
        content = await prompts.content(source.read, sha256, starts[-1].setup_thread) if sha256 else None
        if isinstance(content, str):
            parts[part] = content
        else:
            missing[part] = content.reason if content else "it was not recorded"
    state = fold(records[:at])
    run = state.runs.get(record.run or "")
    return Request(
        prompt=parts.get("prompt"),
        tools=msgspec.json.decode(parts["tools"]) if "tools" in parts else None,
        model=msgspec.json.decode(parts["model"]) if "model" in parts else None,
        messages=state.messages,
        notes=run.notes if run else (),
        missing=missing,
    )

"""The text of a message, keys that the server sets in it, and the duration of a run at its last answer."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import datetime
from typing import Any

from core.control import UNSEEN, neutralised
from core.events import Message
from core.phrases import text_of as text_of
from core.thread.state import Run, ThreadState

REMINDER = "reminder"
"""Key of `additional_kwargs`: text that the model reads right before the message (decision 11)."""
UPLOADS_BLOCK = "uploads_block"
"""Key of `additional_kwargs`: number of characters of the content, or of its first block, that the server wrote."""
MEMORY = "memory"
"""Key of `additional_kwargs`: references to the part of the memory that the model gets with the message
(`core.memory.inject`).
"""
SPEAKER_MEMORY = "speaker_memory"
"""Key of `additional_kwargs`: the same for the private memory of the person who wrote the message in a group, with the
`user` whose it is. The model gets it as long as the turn is that person's.
"""
SKILL = "skill"
"""Key of `additional_kwargs`: the skill that the message calls, with its text (`core.skills.selection`)."""
REFERENCES = "references"
"""Key of `additional_kwargs`: the resources and prompts that the message names, with their content
(`core.mcp.references`).
"""
SPEAKER = "speaker"
"""Key of `additional_kwargs`: who wrote the message, in a conversation of several people: `{"id": …, "name": …}` as the
chat platform has them.
"""
MOST_NAME = 80
"""Limit of characters of a speaker's name, and of the id."""
NUMBER = "seq"
"""Key of `additional_kwargs` in what clients are shown: the message's number (`core.thread.numbers`)."""
RESERVED = frozenset(
    {REMINDER, UPLOADS_BLOCK, MEMORY, SPEAKER_MEMORY, SKILL, REFERENCES, SPEAKER, NUMBER, "dynamic_context_reminder"}
)
"""Keys of `additional_kwargs` that only the server sets; those of clients are ignored."""

_UNSEEN = re.compile(rf"[{UNSEEN}]")


def speaker_of(message: Message) -> str:
    """Returns the speaker of a message as text for a model (`person`); "" if the message names none."""
    extra = message.get("additional_kwargs")
    speaker = extra.get(SPEAKER) if isinstance(extra, dict) else None
    return person(speaker.get("name"), speaker.get("id")) if isinstance(speaker, dict) else ""


def person(name: Any, identity: Any) -> str:
    """Returns a person as text for a model, `"Ann" (U012AB3CD)`; "" for one without a name and an id.

    The name is data from a stranger: it is quoted, of one line, bounded, and has neither control tags nor unseen
    characters.
    """
    name, identity = _one_line(name), _one_line(identity)
    quoted = json.dumps(name or identity, ensure_ascii=False)
    return f"{quoted} ({identity})" if name and identity else quoted if name or identity else ""


def _one_line(value: Any) -> str:
    text = _UNSEEN.sub("", value) if isinstance(value, str) else ""
    return neutralised(" ".join(text.split())[:MOST_NAME])


def timed(message: Message, run: Run | None) -> Message:
    """Returns the message; the last answer of an ended run with the run's duration in whole seconds."""
    if run is None or message.get("id") != run.answer or (seconds := _duration(run)) is None:
        return message
    extra = message.get("additional_kwargs")
    return {
        **message,
        "additional_kwargs": {**(extra if isinstance(extra, dict) else {}), "turn_duration": seconds},
    }


def last_answers(state: ThreadState) -> Callable[[str], Run | None]:
    """Returns a function that gives the ended run whose last message has an id."""
    newest = {run.answer: run for run in state.runs.tail.values() if run.answer and not run.open}
    return lambda message_id: newest.get(message_id) or state.runs.ended_with(message_id)


def _duration(run: Run) -> int | None:
    """Returns the seconds from the request of an ended run to its end."""
    if run.open:
        return None
    try:
        duration = datetime.fromisoformat(run.updated_at) - datetime.fromisoformat(run.created_at)
    except (ValueError, TypeError):  # the fold takes any text for a time
        return None
    return max(0, int(duration.total_seconds()))

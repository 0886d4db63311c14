"""What of a conversation is summarised, and what stays: pure (contract runtime §5.10)."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from core.config.settings import ContextSize, Summarization
from core.events import ContextCompacted, Json, Message
from core.thread.messages import REMINDER
from core.thread.usage import SUMMARY, Size, estimate

AGAIN = 0.1
"""A conversation over its limit is summarised again when it has grown by this much of the limit."""
IS_REMINDER = "dynamic_context_reminder"
"""Key of `additional_kwargs`: the message is nothing but a reminder."""
PATHS = ("path", "file_path", "filepath", "file")
"""Arguments of tools that read files."""


class Cut(NamedTuple):
    """What is to become of a conversation."""

    messages: Sequence[Message]
    """The conversation it was made for."""
    summarised: list[Message]
    kept: list[str]
    """Ids, in their order."""
    changed: list[Message]
    """Messages of which only a part is kept, as they are then."""
    reminder: str
    """What the messages that go reminded the model of."""

    @property
    def remaining(self) -> list[Message]:
        """What stays, as it is then."""
        changed = {str(message["id"]): message for message in self.changed}
        kept = {str(message.get("id")): message for message in self.messages}
        return [changed.get(one, kept[one]) for one in self.kept]


class Summary(NamedTuple):
    """The message that takes the place of what was summarised, and who wrote it."""

    message: Message
    model: str


class _Read(NamedTuple):
    """A call that read a file of a skill: where it is, and where its result is."""

    place: int
    call: str
    result: int
    path: str


def due(settings: Summarization, window: int | None, now: Size, then: Size) -> str:
    """Why a conversation of this size is to be summarised, empty if it is not. `window`: tokens that fit the model.

    `then`: its size when the model was last asked. If it was too long by then it was summarised in vain, or could not
    be: it is not tried at every call, but when it has grown by a tenth of the limit.
    """
    for trigger in settings.trigger:
        kind = "messages" if trigger.type == "messages" else "tokens"
        limit, size, before = _limit(trigger, window), getattr(now, kind), getattr(then, kind)
        if limit is None or size < limit:
            continue
        if before < limit or _steps(size, limit) > _steps(before, limit):
            return f"{size} {kind}; the limit is {limit:g}"
    return ""


def plan(messages: Sequence[Message], settings: Summarization, window: int | None, skills: str) -> Cut | None:
    """What to summarise, None if there is nothing. `skills`: where the agent sees them."""
    cut = _cut(messages, settings.keep, window)
    rescued = _rescued(messages, cut, settings, skills)
    stays = {place for place in range(cut) if _is_reminder(messages[place])}
    stays |= {read.place for read in rescued} | {read.result for read in rescued}
    kept = [str(messages[place].get("id")) for place in (*sorted(stays), *range(cut, len(messages)))]
    goes = [messages[place] for place in range(cut) if place not in stays]
    changed = []
    for place in sorted({read.place for read in rescued}):
        mine, others = _split(messages[place], {read.call for read in rescued if read.place == place})
        if others is not None:
            changed.append(mine)
            goes.append(others)
    if all(message.get("name") == SUMMARY for message in goes):
        return None
    order = {str(message.get("id")): place for place, message in enumerate(messages)}
    goes.sort(key=lambda message: order[str(message.get("id"))])
    return Cut(messages, goes, kept, changed, _reminder(goes))


def compacted(
    made: Cut, summary: Summary, messages: Sequence[Message], *, reason: str, before: int
) -> ContextCompacted | None:
    """The fact. What was added to the conversation meanwhile is kept; None if it changed otherwise."""
    known = len(made.messages)
    if list(messages[:known]) != list(made.messages):
        return None
    later = messages[known:]
    return ContextCompacted(
        summary=summary.message,
        kept=[*made.kept, *(str(message.get("id")) for message in later)],
        messages=made.changed,
        reason=reason,
        tokens_before=before,
        tokens_after=estimate([summary.message, *made.remaining, *later]),
        model=summary.model,
    )


def _limit(size: ContextSize, window: int | None) -> float | None:
    """In messages or tokens; None for a part of a window that nobody knows."""
    if size.type == "fraction":
        return size.value * window if window else None
    return size.value


def _steps(size: int, limit: float) -> int:
    return int((size - limit) // (limit * AGAIN))


# ── where to cut ────────────────────────────────────────────────────────────────────────────────────────────────────


def _cut(messages: Sequence[Message], keep: ContextSize, window: int | None) -> int:
    """Place of the first message of the tail that is kept: at least the last message, and never a result without its
    call.
    """
    if keep.type == "fraction" and not window:
        keep = Summarization().keep
    limit = _limit(keep, window) or 1
    cut = len(messages) - max(int(limit), 1) if keep.type == "messages" else _tail(messages, limit)
    cut = max(min(cut, len(messages) - 1), 0)
    callers = list(_callers(messages))
    place = len(messages) - 1
    while place >= cut:
        cut = min(cut, callers[place])
        place -= 1
    return cut


def _tail(messages: Sequence[Message], tokens: float) -> int:
    for place in range(len(messages) - 1, -1, -1):
        tokens -= estimate(messages[place : place + 1])
        if tokens < 0:
            return place + 1
    return 0


def _callers(messages: Sequence[Message]) -> Iterator[int]:
    """For each message the place of the one it answers, if it is a result; else its own."""
    made: dict[str, int] = {}
    for place, message in enumerate(messages):
        if message["type"] == "ai":
            made.update((str(call["id"]), place) for call in message.get("tool_calls", ()))
        answers = message["type"] == "tool"
        yield made.get(str(message.get("tool_call_id")), place) if answers else place


# ── reminders ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _extra(message: Message) -> Mapping[str, Any]:
    extra = message.get("additional_kwargs")
    return extra if isinstance(extra, dict) else {}


def _is_reminder(message: Message) -> bool:
    return bool(_extra(message).get(IS_REMINDER))


def _reminder(messages: Sequence[Message]) -> str:
    found = (_extra(message).get(REMINDER) for message in messages if message["type"] == "human")
    return "\n".join(dict.fromkeys(text for text in found if isinstance(text, str) and text))


# ── skills ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _rescued(messages: Sequence[Message], cut: int, settings: Summarization, skills: str) -> list[_Read]:
    """Skills that were read before the cut and stay readable: the newest first, each once, as many as there is room
    for.
    """
    reads = list(_reads(messages, settings, skills))
    seen = {read.path for read in reads if read.place >= cut}
    found: list[_Read] = []
    room = settings.preserve_recent_skill_tokens
    for read in reversed([read for read in reads if read.place < cut]):
        if len(found) >= settings.preserve_recent_skill_count:
            break
        tokens = estimate([messages[read.result]])
        if read.path in seen or tokens > min(room, settings.preserve_recent_skill_tokens_per_skill):
            continue
        seen.add(read.path)
        found.append(read)
        room -= tokens
    return found


def _reads(messages: Sequence[Message], settings: Summarization, skills: str) -> Iterator[_Read]:
    """Calls that read a file of a skill, and got it."""
    answers = {
        (caller, str(messages[place].get("tool_call_id"))): place
        for place, caller in enumerate(_callers(messages))
        if caller != place and messages[place].get("status") != "error"
    }
    for place, message in enumerate(messages):
        for call in message.get("tool_calls", ()) if message["type"] == "ai" else ():
            result = answers.get((place, str(call["id"])))
            path = _path(call, settings, skills)
            if path and result is not None:
                yield _Read(place, str(call["id"]), result, path)


def _path(call: Json, settings: Summarization, skills: str) -> str:
    """The file of a skill that a call reads, if it does."""
    if call["name"] not in settings.skill_file_read_tool_names:
        return ""
    given = next((call["args"][name] for name in PATHS if isinstance(call["args"].get(name), str)), "")
    path = posixpath.normpath(given) if given else ""
    return path if path.startswith(posixpath.normpath(skills) + "/") else ""


def _split(message: Message, kept: set[str]) -> tuple[Message, Message | None]:
    """A message with only these calls, and with all but them: None if there are no others."""
    others = {str(call["id"]) for call in message["tool_calls"]} - kept
    if not others:
        return message, None
    return {**_with_calls(message, kept), "content": ""}, _with_calls(message, others)


def _with_calls(message: Message, ids: set[str]) -> Message:
    """What the provider said of calls stays in step with them."""
    extra = {name: value for name, value in _extra(message).items() if name != "function_call"}
    if isinstance(raw := extra.get("tool_calls"), list):
        extra["tool_calls"] = [call for call in raw if isinstance(call, dict) and str(call.get("id")) in ids]
    made = {name: value for name, value in message.items() if name != "additional_kwargs"}
    made["tool_calls"] = [call for call in message["tool_calls"] if str(call["id"]) in ids]
    return {**made, "additional_kwargs": extra} if extra else made

"""Divides a conversation into the part to summarise and the rest. Pure (contract runtime §5.10)."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from core.config.settings import Config, ContextSize, Summarization
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
    """The plan of a compaction."""

    messages: Sequence[Message]
    """The conversation before it."""
    summarised: list[Message]
    kept: list[str]
    """Ids of the messages that stay, in order."""
    changed: list[Message]
    """Messages of which a part stays, as they become."""
    reminder: str
    """The reminders of the messages that go."""

    @property
    def remaining(self) -> list[Message]:
        """The messages that stay, as they become."""
        before = {str(message.get("id")): message for message in self.messages}
        after = before | {str(message["id"]): message for message in self.changed}
        return [after[identity] for identity in self.kept]


class Summary(NamedTuple):
    """The message that replaces the summarised ones, and the model that wrote it."""

    message: Message
    model: str


class _Read(NamedTuple):
    """A call that read a file of a skill: the places of its message and of its result."""

    place: int
    call: str
    result: int
    path: str


def due(settings: Summarization, window: int | None, now: Size, then: Size) -> str:
    """Returns the reason to summarise a conversation of the size `now`, "" if there is none.

    `window` is the model's context in tokens; `then` is the size at the last model call. If `then` was over the limit,
    that summary failed or did not help. The next attempt waits until the size has grown by 10 % of the limit.
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
    """Returns the plan, None if there is nothing to summarise. `skills` is their directory in the sandbox."""
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
    cut: Cut, summary: Summary, messages: Sequence[Message], *, reason: str, before: int
) -> ContextCompacted | None:
    """Returns the event. It keeps messages that were added meanwhile; None if the conversation changed otherwise."""
    size = len(cut.messages)
    if list(messages[:size]) != list(cut.messages):
        return None
    later = messages[size:]
    return ContextCompacted(
        summary=summary.message,
        kept=[*cut.kept, *(str(message.get("id")) for message in later)],
        messages=cut.changed,
        reason=reason,
        tokens_before=before,
        tokens_after=estimate([summary.message, *cut.remaining, *later]),
        model=summary.model,
    )


def window_of(config: Config, model: str | None) -> int | None:
    """Returns the context window of a model in tokens, None if it is not configured."""
    return next((entry.context_window for entry in config.models if entry.name == model), None)


def _limit(size: ContextSize, window: int | None) -> float | None:
    """Returns the limit in messages or tokens; None for a fraction of an unknown window."""
    if size.type == "fraction":
        return size.value * window if window else None
    return size.value


def _steps(size: int, limit: float) -> int:
    return int((size - limit) // (limit * AGAIN))


# ── where to cut ────────────────────────────────────────────────────────────────────────────────────────────────────


def _cut(messages: Sequence[Message], keep: ContextSize, window: int | None) -> int:
    """Returns the place of the first message of the tail that stays.

    The tail has at least the last message, and no result without its call.
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
    """Yields for each message the place of its call if it is a result, else its own place."""
    places: dict[str, int] = {}
    for place, message in enumerate(messages):
        if message["type"] == "ai":
            places.update((str(call["id"]), place) for call in message.get("tool_calls", ()))
        answers = message["type"] == "tool"
        yield places.get(str(message.get("tool_call_id")), place) if answers else place


# ── reminders ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _extra(message: Message) -> Mapping[str, Any]:
    extra = message.get("additional_kwargs")
    return extra if isinstance(extra, dict) else {}


def _is_reminder(message: Message) -> bool:
    return bool(_extra(message).get(IS_REMINDER))


def _reminder(messages: Sequence[Message]) -> str:
    reminders = (_extra(message).get(REMINDER) for message in messages if message["type"] == "human")
    return "\n".join(dict.fromkeys(text for text in reminders if isinstance(text, str) and text))


# ── skills ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _rescued(messages: Sequence[Message], cut: int, settings: Summarization, skills: str) -> list[_Read]:
    """Returns the reads of skills before the cut that stay: the newest of each, within the limits of the settings."""
    reads = list(_reads(messages, settings, skills))
    paths = {read.path for read in reads if read.place >= cut}
    rescued: list[_Read] = []
    room = settings.preserve_recent_skill_tokens
    for read in reversed([read for read in reads if read.place < cut]):
        if len(rescued) >= settings.preserve_recent_skill_count:
            break
        tokens = estimate([messages[read.result]])
        if read.path in paths or tokens > min(room, settings.preserve_recent_skill_tokens_per_skill):
            continue
        paths.add(read.path)
        rescued.append(read)
        room -= tokens
    return rescued


def _reads(messages: Sequence[Message], settings: Summarization, skills: str) -> Iterator[_Read]:
    """Yields the successful calls that read a file of a skill."""
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
    """Returns the file of a skill that a call reads, "" for other calls."""
    if call["name"] not in settings.skill_file_read_tool_names:
        return ""
    argument = next((call["args"][name] for name in PATHS if isinstance(call["args"].get(name), str)), "")
    path = posixpath.normpath(argument) if argument else ""
    return path if path.startswith(posixpath.normpath(skills) + "/") else ""


def _split(message: Message, ids: set[str]) -> tuple[Message, Message | None]:
    """Splits a message into one with these calls and one with the others, None if there are no others."""
    others = {str(call["id"]) for call in message["tool_calls"]} - ids
    if not others:
        return message, None
    return {**_with_calls(message, ids), "content": ""}, _with_calls(message, others)


def _with_calls(message: Message, ids: set[str]) -> Message:
    """Returns the message with only these calls, also in the provider's raw form."""
    extra = {name: value for name, value in _extra(message).items() if name != "function_call"}
    if isinstance(raw := extra.get("tool_calls"), list):
        extra["tool_calls"] = [call for call in raw if isinstance(call, dict) and str(call.get("id")) in ids]
    changed = {name: value for name, value in message.items() if name != "additional_kwargs"}
    changed["tool_calls"] = [call for call in message["tool_calls"] if str(call["id"]) in ids]
    return {**changed, "additional_kwargs": extra} if extra else changed

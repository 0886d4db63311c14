"""Divides a conversation into the part to summarise and the rest. Pure (DeerFlow's middleware Summarization)."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from actors.agent.messages.content import text_by_line, with_text
from actors.agent.messages.excerpt import Ends, shortened
from actors.agent.summary.sizes import share_of
from core.config.settings import ContextSize, Summarization
from core.config.windows import Window
from core.events import ContextCompacted, Json, Message
from core.thread.messages import REMINDER
from core.thread.usage import SUMMARY, Size, estimate

AGAIN = 0.1
"""A conversation over its limit is summarised again when it has grown by this much of the limit."""
IS_REMINDER = "dynamic_context_reminder"
"""Key of `additional_kwargs`: the message is nothing but a reminder."""
KEPT_SHARE = 0.25
"""The part of a conversation that stays at most if no `keep` is set: a summary is made because it is to be shorter."""
TAIL_SHARE = 0.5
"""The part of what fits that the end of the conversation may take after a summary."""
PERSON_SHARE = 0.6
"""The part of what fits that the person's newest message may take, before it is shortened or summarised."""
QUOTED_TOKENS = 200
"""A message of the person of so many tokens is quoted whole in a summary, so it need not stay beside it."""
LEAST_CHARACTERS = 400
"""Least length of a message that is shortened because it does not fit."""
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
    long: Sequence[Message] = ()
    """Messages that stay, and are shortened because they do not fit."""

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


def due(settings: Summarization, window: Window, now: Size, then: Size) -> str:
    """Returns the reason to summarise a conversation of the size `now`, "" if there is none.

    `then` is the size at the last model call. If `then` was over the limit, that summary failed or did not help. The
    next attempt waits until the size has grown by 10 % of the limit.
    """
    for kind, limit in _limits(settings, window):
        size, before = getattr(now, kind), getattr(then, kind)
        if size < limit:
            continue
        if before < limit or _steps(size, limit) > _steps(before, limit):
            return f"{size} {kind}; the limit is {limit:g}"
    return ""


def plan(
    messages: Sequence[Message],
    settings: Summarization,
    window: Window,
    skills: str,
    *,
    room: float | None = None,
    files: Mapping[str, str] | None = None,
) -> Cut | None:
    """Returns the plan, None if there is nothing to summarise. `skills` is their directory in the sandbox.

    The messages that stay have at most `room` tokens; longer ones are shortened. `files` are the paths of the whole
    texts, by the ids of messages.
    """
    room = min(window.limit * TAIL_SHARE, room or window.limit)
    most = estimate(messages) * KEPT_SHARE if settings.keep == Summarization().keep else room
    cut = _cut(messages, settings.keep, window, min(room, max(most, 1)))
    rescued = _rescued(messages, cut, settings, skills, room / 2)
    task = _newest_of_person(messages, min(window.limit * PERSON_SHARE, 2 * room))
    stays = {place for place in range(cut) if _is_reminder(messages[place])}
    if task is not None and task < cut and estimate([messages[task]]) > QUOTED_TOKENS:
        stays.add(task)
    stays |= {read.place for read in rescued} | {read.result for read in rescued}
    kept = [str(messages[place].get("id")) for place in (*sorted(stays), *range(cut, len(messages)))]
    goes = [messages[place] for place in range(cut) if place not in stays]
    changed = []
    for place in sorted({read.place for read in rescued}):
        mine, others = _split(messages[place], {read.call for read in rescued if read.place == place})
        if others is not None:
            changed.append(mine)
            goes.append(others)
    spared = None if task is None else str(messages[task].get("id"))
    shorter = _shortened(messages[cut:], room, files or {}, spared)
    if all(message.get("name") == SUMMARY for message in goes) and not shorter:
        return None
    order = {str(message.get("id")): place for place, message in enumerate(messages)}
    goes.sort(key=lambda message: order[str(message.get("id"))])
    long = [message for message in messages[cut:] if str(message.get("id")) in shorter]
    return Cut(messages, goes, kept, [*changed, *shorter.values()], _reminder(goes), long)


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


def _limits(settings: Summarization, window: Window) -> Iterator[tuple[str, float]]:
    """Yields the sizes from which on a conversation is summarised, by kind: those configured, and the window's."""
    for trigger in settings.trigger:
        yield "messages" if trigger.type == "messages" else "tokens", _limit(trigger, window)
    yield "tokens", window.limit


def _limit(size: ContextSize, window: Window) -> float:
    """Returns the limit in messages or tokens."""
    return size.value * window.tokens if size.type == "fraction" else size.value


def _steps(size: int, limit: float) -> int:
    return int((size - limit) // (limit * AGAIN))


# ── where to cut ────────────────────────────────────────────────────────────────────────────────────────────────────


def _cut(messages: Sequence[Message], keep: ContextSize, window: Window, room: float) -> int:
    """Returns the place of the first message of the tail that stays.

    The tail has at least the last message, and no result without its call.
    """
    limit = _limit(keep, window) or 1
    cut = len(messages) - max(int(limit), 1) if keep.type == "messages" else _tail(messages, limit)
    cut = max(min(max(cut, _tail(messages, room)), len(messages) - 1), 0)
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


# ── messages that do not fit ────────────────────────────────────────────────────────────────────────────────────────


def _newest_of_person(messages: Sequence[Message], most: float) -> int | None:
    """Returns the place of the person's newest message: the task at hand. None if it is larger than `most` tokens."""
    for place in range(len(messages) - 1, -1, -1):
        message = messages[place]
        hidden = message.get("name") == SUMMARY or _is_reminder(message) or _extra(message).get("hide_from_ui")
        if message["type"] == "human" and not hidden:
            return place if estimate([message]) <= most else None
    return None


def _shortened(
    tail: Sequence[Message], room: float, files: Mapping[str, str], spared: str | None = None
) -> dict[str, Message]:
    """Returns the messages that must be shorter so that all fit the room, as they become, by their ids. The `spared`
    one is left as it is, beside the room.
    """
    tail = [message for message in tail if str(message.get("id")) != spared]
    sizes = [estimate([message]) for message in tail]
    if not sizes or sum(sizes) <= room:
        return {}
    share = share_of(sizes, int(room))
    shorter: dict[str, Message] = {}
    for message, size in zip(tail, sizes, strict=True):
        if size > share:
            identity = str(message.get("id"))
            changed = _shorter(message, share / size, files.get(identity, ""))
            if changed != message:
                shorter[identity] = changed
    return shorter


def _shorter(message: Message, part: float, path: str) -> Message:
    """Returns a message with this part of its text and of its calls' arguments."""
    again = "; make the call again for the rest" if message["type"] == "tool" else ""
    where = f"; all of it is in {path}" if path else again
    changed = {**message}
    if text := text_by_line(message.get("content") or ""):
        changed["content"] = with_text(message["content"], _excerpt(text, part, where))
    if calls := message.get("tool_calls"):
        changed["tool_calls"] = [{**call, "args": _values(call["args"], part)} for call in calls]
        extra = _extra(message)
        changed["additional_kwargs"] = {name: value for name, value in extra.items() if name != "tool_calls"}
    return changed


def _values(args: Mapping[str, Any], part: float) -> Json:
    return {name: _excerpt(value, part, "") if isinstance(value, str) else value for name, value in args.items()}


def _excerpt(text: str, part: float, where: str) -> str:
    most = int(len(text) * part * 0.9)
    if len(text) <= LEAST_CHARACTERS or most >= len(text):
        return text
    most = max(most, LEAST_CHARACTERS // 2)
    ends = Ends(most * 2 // 3, most // 3)
    left = len(text) - ends.head - ends.tail
    return shortened(text, ends, f"{left} characters are left out, as the model's context window is full{where}")


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


def _rescued(messages: Sequence[Message], cut: int, settings: Summarization, skills: str, most: float) -> list[_Read]:
    """Returns the reads of skills before the cut that stay: the newest of each, within the limits of the settings."""
    reads = list(_reads(messages, settings, skills))
    paths = {read.path for read in reads if read.place >= cut}
    rescued: list[_Read] = []
    room = min(settings.preserve_recent_skill_tokens, int(most))
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

"""Adds the time, the uploaded files, the date, instructions of folders and what is remembered to a run's input.

The additions are part of `run.started`, and are applied right after the input: messages of the same id replace.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import date
from itertools import chain
from pathlib import PurePath
from types import MappingProxyType
from typing import Any, NamedTuple

from core.control import neutralised
from core.events import Json, Message, RunRequested
from core.files.paths import USER_DATA
from core.files.uploads import Outline, Upload, Uploads
from core.ids import now
from core.ports.documents import KINDS
from core.thread import instructions
from core.thread.instructions import InstructionFile
from core.thread.messages import REFERENCES, REMINDER, RESERVED, SKILL, SPEAKER, UPLOADS_BLOCK, text_of
from core.thread.state import ThreadState
from core.thread.values import REMOVE_ALL

NAME = "user-input"
"""Default `name` of the last human message of a turn (DeerFlow's thread state)."""
MOST_OLD_FILES = 100
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")

_HINTS = f"""\
To work with these files:
- Read what you need with `read_file`: long ones by line ranges (`start_line` and `end_line`).
- Search in them with `grep`, and find others with `glob` in {USER_DATA}/uploads.
- Search the web only if the answer is not in them.\
"""
_OLD_BLOCK = re.compile(r"\s*<uploaded_files>.*?</uploaded_files>\s*", re.DOTALL)


Recall = Callable[[str, Sequence[Message]], Awaitable[Json]]
"""Returns what a message records of memories (`core.memory.inject`) by its keys, for its text and the messages before
it.
"""


async def nothing(text: str, earlier: Sequence[Message]) -> Json:
    """Recalls nothing."""
    return {}


Later = Callable[[], Awaitable[Collection[str]]]
"""Returns the names of files that were uploaded after the run was requested: they belong to later messages."""


async def none() -> Collection[str]:
    """Returns no names."""
    return ()


async def prepare(
    run: str,
    request: RunRequested,
    state: ThreadState,
    thread: str,
    uploads: Uploads | None,
    recall: Recall = nothing,
    skill: Json | None = None,
    references: Sequence[Json] = (),
    guidance: Sequence[InstructionFile] = (),
    later: Later = none,
) -> Json:
    """Returns `prepared` for the first attempt at a run. Lists files only if the last message is a person's.

    `skill` is the record of the skill that this message calls, `references` are those of what it names, `guidance` are
    the instructions in the folders of the run.
    """
    values = request.input or {}
    base = state.head if request.base is None else state.commit_at(request.base)
    names = claimed(values)
    files = [] if names is None or uploads is None else await uploads.listing(state.user, thread, names)
    if files:  # after the look at them: nothing that comes in between is missed
        files = _without(files, {*await later()} - {*(names or ())})
    history = state.values_at(base).get("messages", ())
    records = {**await _recalled(values, history, recall), SKILL: skill, REFERENCES: [*references]}
    extra: Json = {key: value for key, value in records.items() if value}
    if request.origin is not None and (speaker := request.origin.speaker) is not None:
        extra[SPEAKER] = {"id": speaker.id, "name": speaker.name}
    patch = prepared(values, run=run, at=now(), history=history, files=files, guidance=guidance, records=extra)
    return _slim(patch, values) if patch else patch


async def with_files(user: str, thread: str, uploads: Uploads | None, messages: Sequence[Message]) -> list[Message]:
    """Returns messages that join a run, each with the list of the files that came with it."""
    names = [_claimed(message) for message in messages]
    files = await uploads.listing(user, thread, [*chain(*names)]) if uploads is not None and any(names) else ()
    listed = [_new_and_old(files, each).new for each in names]
    return [_with_block(message, new) if new else message for message, new in zip(messages, listed, strict=True)]


def _with_block(message: Message, new: Sequence[Upload]) -> Message:
    content, length = _prefixed(_bare(message.get("content", "")), block(Listed(new)))
    return {**message, "content": content, "additional_kwargs": {**_kwargs(message), UPLOADS_BLOCK: length}}


async def _recalled(values: Json, history: Sequence[Message], recall: Recall) -> Json:
    messages, removed = _standing(values.get("messages"))
    last = next((message for message in reversed(messages.values()) if message["type"] == "human"), None)
    if last is None:
        return {}
    earlier = () if REMOVE_ALL in removed else history
    replaced = removed | messages.keys()
    before = [message for message in earlier if str(message.get("id")) not in replaced]
    return await recall(text_of(_bare(last.get("content", ""))), before)


def _slim(patch: Json, values: Json) -> Json:
    """Returns the patch with only the changed fields of each message: the input has the others."""
    messages, _ = _standing(values.get("messages"))
    new = [(message, messages[str(message.get("id"))]) for message in patch["messages"]]
    slim = [{"id": m["id"], **{key: value for key, value in m.items() if old.get(key) != value}} for m, old in new]
    return {**patch, "messages": slim}


def last_text(values: Json) -> str:
    """Returns the text of the last message of an input if it is a person's, as they wrote it; else ""."""
    messages, _ = _standing(values.get("messages"))
    last = next(reversed(messages.values()), None)
    return text_of(_bare(last.get("content", ""))) if last is not None and last["type"] == "human" else ""


def claimed(values: Json) -> list[str] | None:
    """Returns the names of the files that the client attached; None if the last message is not a person's."""
    messages, _ = _standing(values.get("messages"))
    last = next(reversed(messages.values()), None)
    return None if last is None or last["type"] != "human" else _claimed(last)


def prepared(
    values: Json,
    *,
    run: str,
    at: str,
    history: Sequence[Message] = (),
    files: Sequence[Upload] = (),
    guidance: Sequence[InstructionFile] = (),
    records: Mapping[str, Any] = MappingProxyType({}),
) -> Json:
    """Returns the human messages of an input that must change, as they become, and `uploaded_files`. Pure.

    `values` is the input and `history` the messages before it. `at` is ISO 8601 in UTC; `files` are all uploads of
    the thread, and `records` what the last message records by its key.
    """
    messages, removed = _standing(values.get("messages"))
    last = next((message for message in reversed(messages.values()) if message["type"] == "human"), None)
    if last is None:
        return {}
    before = [] if REMOVE_ALL in removed else history
    others = [message for message in messages.values() if message["type"] == "human" and message is not last]
    honest = _honest(others, before)
    replaced = removed | messages.keys()
    earlier = chain(reversed(honest), (m for m in reversed(before) if str(m.get("id")) not in replaced))
    extra: Json = {"run_id": run, "timestamp": at}
    if reminder := _next_reminder([*_reminders(earlier)], date.fromisoformat(at[:10]), guidance):
        extra[REMINDER] = reminder
    extra |= records
    patch: Json = {"messages": [new for old, new in zip(others, honest, strict=True) if new is not old]}
    content = _bare(last.get("content", ""))
    listed = _new_and_old(files, _claimed(last)) if last is next(reversed(messages.values())) else NOTHING
    if listed.new or listed.old:
        content, extra[UPLOADS_BLOCK] = _prefixed(content, block(listed))
        patch["uploaded_files"] = [_as_state(file) for file in listed.new]
    kwargs = {key: value for key, value in _kwargs(last).items() if key not in RESERVED} | extra
    patch["messages"].append(
        {**last, "content": content, "name": last.get("name") or NAME, "additional_kwargs": kwargs}
    )
    return patch


# ── messages ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _standing(entries: object) -> tuple[dict[str, Message], set[str]]:
    """Returns the messages of an input by id after its removals, and the removed ids."""
    messages: dict[str, Message] = {}
    removed: set[str] = set()
    for message in entries if isinstance(entries, list) else ():
        if not isinstance(message, dict) or not isinstance(message.get("type"), str):
            continue
        identity = str(message.get("id"))
        if message["type"] != "remove":
            messages[identity] = message
            continue
        removed.add(identity)
        if identity == REMOVE_ALL:
            messages.clear()
        messages.pop(identity, None)
    return messages, removed


def _honest(messages: Sequence[Message], history: Sequence[Message]) -> list[Message]:
    """Returns the messages without the keys that only the server may set.

    A message that a client sends back with unchanged content keeps the values that the server set.
    """
    recorded = {message.get("id"): message for message in history} if messages else {}
    return [_as_recorded(message, recorded.get(message.get("id"), {})) for message in messages]


def _as_recorded(message: Message, before: Message) -> Message:
    claims, own = _kwargs(message), dict[str, object]()
    if before.get("type") == "human" and before.get("content") == message.get("content"):
        own = {key: value for key, value in _kwargs(before).items() if key in RESERVED}
    honest = {key: value for key, value in claims.items() if key not in RESERVED} | own
    return message if honest == claims else {**message, "additional_kwargs": honest}


def _kwargs(message: Message) -> Json:
    kwargs = message.get("additional_kwargs")
    return kwargs if isinstance(kwargs, dict) else {}


# ── the reminder ────────────────────────────────────────────────────────────────────────────────────────────────────


def _reminders(messages: Iterable[Message]) -> Iterator[str]:
    """Yields the reminders of messages, in their order."""
    for message in messages:
        if message["type"] == "human" and isinstance(reminder := _kwargs(message).get(REMINDER), str):
            yield reminder


def _next_reminder(earlier: Sequence[str], today: date, files: Sequence[InstructionFile]) -> str | None:
    """Returns a reminder of what differs from the earlier ones, which come newest first; None if nothing does."""
    line = f"<current_date>{today.isoformat()}, {WEEKDAYS[today.weekday()]}</current_date>"
    dated = next((reminder for reminder in earlier if "<current_date>" in reminder), "")
    parts = [instructions.change(files, earlier), "" if line in dated else line]
    text = "\n".join(filter(None, parts))
    return f"<system-reminder>\n{text}\n</system-reminder>" if text else None


# ── uploads ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class Listed(NamedTuple):
    """The files that come with a message, and the earlier ones."""

    new: Sequence[Upload] = ()
    old: Sequence[Upload] = ()


NOTHING = Listed()


def _claimed(message: Message) -> list[str]:
    files = _kwargs(message).get("files")
    names = [file.get("filename") for file in files if isinstance(file, dict)] if isinstance(files, list) else []
    return [name for name in dict.fromkeys(names) if isinstance(name, str) and name]


def _new_and_old(files: Sequence[Upload], names: Collection[str]) -> Listed:
    """Splits files into new and old. Leaves out converted texts, which are named with their documents."""
    by_name = {file.name: file for file in files}
    new = [by_name[name] for name in names if name in by_name]
    texts = {file.markdown for file in files if PurePath(file.name).suffix.lower() in KINDS}
    return Listed(new, [file for file in files if file.name not in names and file.name not in texts])


def _without(files: Sequence[Upload], names: Collection[str]) -> Sequence[Upload]:
    """Leaves out files, and the texts that documents among them were converted to."""
    texts = {file.markdown for file in files if file.name in names and PurePath(file.name).suffix.lower() in KINDS}
    return [file for file in files if file.name not in names and file.name not in texts]


def block(listed: Listed) -> str:
    """Returns the `<uploaded_files>` block (DeerFlow's middleware Uploads)."""
    parts = ["New in this message:", *(map(_entry, listed.new) if listed.new else ("(empty)",))]
    if listed.old:
        parts += ["", "From previous messages:", *map(_entry, listed.old[:MOST_OLD_FILES])]
    if (left := len(listed.old) - MOST_OLD_FILES) > 0:
        parts.append(f"… and {left} more")
    body = "\n".join([*parts, "", _HINTS])
    return f"<uploaded_files>\n{neutralised(body)}\n</uploaded_files>"


def _entry(file: Upload) -> str:
    lines = [f"- {file.name} ({size(file.size)})", f"  Path: {_path(file.name)}"]
    if file.markdown not in (None, file.name):
        lines.append(f"  Text: {_path(str(file.markdown))}")
    if (outline := file.outline) and outline.headings:
        lines += ["  Headings:", *(f"    line {line}: {title}" for line, title in outline.headings)]
        lines += [f"    (only the first {len(outline.headings)}; find others with `grep`)"] if outline.more else []
    elif outline and outline.preview:
        lines += ["  Begins:", *(f"    {line}" for line in outline.preview)]
    return "\n".join(lines)


def size(count: int) -> str:
    """Formats bytes in KB with one decimal, above 1024 KB in MB."""
    kilobytes = count / 1024
    return f"{kilobytes:.1f} KB" if kilobytes <= 1024 else f"{kilobytes / 1024:.1f} MB"


def _bare(content: str | list[object]) -> str | list[object]:
    """Returns the content without its leading block of an earlier turn, which a client may have sent back."""
    match content:
        case str():
            block = _OLD_BLOCK.match(content)
            return content[block.end() :] if block else content
        case [{"type": "text", "text": str(text)}, *rest] if _OLD_BLOCK.fullmatch(text):
            return rest
    return content


def _prefixed(content: str | list[object], text: str) -> tuple[str | list[object], int]:
    """Returns the content with the text before it, and the length of that prefix."""
    if isinstance(content, str):
        text += "\n\n"
        return text + content, len(text)
    return [{"type": "text", "text": text}, *content], len(text)


def _as_state(file: Upload) -> Json:
    """Returns the entry of an upload in the thread's state (DeerFlow's thread state)."""
    outline = file.outline or Outline()
    return {
        "filename": file.name,
        "size": file.size,
        "path": _path(file.name),
        "extension": PurePath(file.name).suffix,
        "outline": [{"line": line, "title": title} for line, title in outline.headings],
        "outline_preview": list(outline.preview),
    }


def _path(name: str) -> str:
    return f"{USER_DATA}/uploads/{name}"

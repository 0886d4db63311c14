"""What the server adds to a run's input: when it was said, which files there are, and what day it is.

It is part of `run.started`, and written right after the input: messages of the same id replace.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from datetime import date
from itertools import chain
from pathlib import PurePath
from typing import NamedTuple

from core.control import neutralised
from core.events import Json, Message, RunRequested
from core.ids import now
from core.paths import USER_DATA
from core.ports.documents import KINDS
from core.thread.messages import REMINDER, RESERVED, UPLOADS_BLOCK
from core.thread.state import REMOVE_ALL, ThreadState
from core.thread.uploads import Outline, Upload, Uploads

NAME = "user-input"
"""Of the last human message of a turn, unless it has one (contract runtime §4)."""
MOST_OLD_FILES = 100
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")

_HINTS = f"""\
To work with these files:
- Read what you need with `read_file`: long ones by line ranges (`start_line` and `end_line`).
- Search in them with `grep`, and find others with `glob` in {USER_DATA}/uploads.
- Search the web only if the answer is not in them.\
"""
_OLD_BLOCK = re.compile(r"\s*<uploaded_files>.*?</uploaded_files>\s*", re.DOTALL)


async def prepare(run: str, request: RunRequested, state: ThreadState, thread: str, uploads: Uploads) -> Json:
    """What is `prepared` for the first attempt at a run of this thread. Files are only looked for if they matter."""
    given = request.input or {}
    base = state.head if request.base is None else state.commit_at(request.base)
    names = claimed(given)
    files = [] if names is None else await uploads.listing(state.user, thread, names)
    history = state.values_at(base).get("messages", ())
    found = prepared(given, run=run, at=now(), history=history, files=files)
    return _slim(found, given) if found else found


def _slim(found: Json, given: Json) -> Json:
    """The same, with of each message only what is new: the rest is in the input already."""
    messages, _ = _standing(given.get("messages"))
    new = [(message, messages[str(message.get("id"))]) for message in found["messages"]]
    slim = [{"id": m["id"], **{key: value for key, value in m.items() if old.get(key) != value}} for m, old in new]
    return {**found, "messages": slim}


def claimed(given: Json) -> list[str] | None:
    """Names of the files that come with an input, as the client says. None if its last message is no person's."""
    messages, _ = _standing(given.get("messages"))
    last = next(reversed(messages.values()), None)
    return None if last is None or last["type"] != "human" else _claimed(last)


def prepared(
    given: Json,
    *,
    run: str,
    at: str,
    history: Sequence[Message] = (),
    files: Sequence[Upload] = (),
) -> Json:
    """The human messages of an input as they are to be, where that differs, and `uploaded_files`. Pure.

    `at`: ISO 8601 in UTC. `history`: the messages before. `files`: all uploads of the thread.
    """
    messages, gone = _standing(given.get("messages"))
    last = next((message for message in reversed(messages.values()) if message["type"] == "human"), None)
    if last is None:
        return {}
    before = [] if REMOVE_ALL in gone else history
    others = [message for message in messages.values() if message["type"] == "human" and message is not last]
    honest = _honest(others, before)
    gone |= messages.keys()
    earlier = chain(reversed(honest), (one for one in reversed(before) if str(one.get("id")) not in gone))
    extra: Json = {"run_id": run, "timestamp": at}
    if reminder := _due(_newest_reminder(earlier), date.fromisoformat(at[:10])):
        extra[REMINDER] = reminder
    patch: Json = {"messages": [new for old, new in zip(others, honest, strict=True) if new is not old]}
    content = _bare(last.get("content", ""))
    listed = _listed(files, _claimed(last)) if last is next(reversed(messages.values())) else NOTHING
    if listed.new or listed.old:
        content, extra[UPLOADS_BLOCK] = _prefixed(content, block(listed))
        patch["uploaded_files"] = [_as_state(file) for file in listed.new]
    kwargs = {key: value for key, value in _kwargs(last).items() if key not in RESERVED} | extra
    patch["messages"].append(
        {**last, "content": content, "name": last.get("name") or NAME, "additional_kwargs": kwargs}
    )
    return patch


# ── messages ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _standing(given: object) -> tuple[dict[str, Message], set[str]]:
    """The messages of an input by id, as they are at its end, and the ids that it removes."""
    found: dict[str, Message] = {}
    gone: set[str] = set()
    for message in given if isinstance(given, list) else ():
        if not isinstance(message, dict) or not isinstance(message.get("type"), str):
            continue
        identity = str(message.get("id"))
        if message["type"] != "remove":
            found[identity] = message
            continue
        gone.add(identity)
        if identity == REMOVE_ALL:
            found.clear()
        found.pop(identity, None)
    return found, gone


def _honest(messages: Sequence[Message], history: Sequence[Message]) -> list[Message]:
    """The messages without what only the server says. One that a client sends back as it was keeps what the server
    said of it.
    """
    known = {message.get("id"): message for message in history} if messages else {}
    return [_as_known(message, known.get(message.get("id"), {})) for message in messages]


def _as_known(message: Message, before: Message) -> Message:
    said, own = _kwargs(message), dict[str, object]()
    if before.get("type") == "human" and before.get("content") == message.get("content"):
        own = {key: value for key, value in _kwargs(before).items() if key in RESERVED}
    honest = {key: value for key, value in said.items() if key not in RESERVED} | own
    return message if honest == said else {**message, "additional_kwargs": honest}


def _kwargs(message: Message) -> Json:
    kwargs = message.get("additional_kwargs")
    return kwargs if isinstance(kwargs, dict) else {}


# ── the reminder ────────────────────────────────────────────────────────────────────────────────────────────────────


def _newest_reminder(messages: Iterable[Message]) -> str | None:
    """Of messages that come newest first."""
    for message in messages:
        if message["type"] == "human" and isinstance(found := _kwargs(message).get(REMINDER), str):
            return found
    return None


def _due(last: str | None, today: date) -> str | None:
    """Returns the reminder that the model has to get: the date, unless the newest reminder has it already."""
    line = f"<current_date>{today.isoformat()}, {WEEKDAYS[today.weekday()]}</current_date>"
    if last is not None and line in last:
        return None
    return f"<system-reminder>\n{line}\n</system-reminder>"


# ── uploads ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class Listed(NamedTuple):
    """Files that come with a message, and those from before."""

    new: Sequence[Upload] = ()
    old: Sequence[Upload] = ()


NOTHING = Listed()


def _claimed(message: Message) -> list[str]:
    files = _kwargs(message).get("files")
    names = [file.get("filename") for file in files if isinstance(file, dict)] if isinstance(files, list) else []
    return [name for name in dict.fromkeys(names) if isinstance(name, str) and name]


def _listed(files: Sequence[Upload], names: Collection[str]) -> Listed:
    """The text of a document is named with the document."""
    known = {file.name: file for file in files}
    new = [known[name] for name in names if name in known]
    texts = {file.markdown for file in files if PurePath(file.name).suffix.lower() in KINDS}
    return Listed(new, [file for file in files if file.name not in names and file.name not in texts])


def block(listed: Listed) -> str:
    """The `<uploaded_files>` block (contract runtime §5.2)."""
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
    if (found := file.outline) and found.headings:
        lines += ["  Headings:", *(f"    line {line}: {title}" for line, title in found.headings)]
        lines += [f"    (only the first {len(found.headings)}; find others with `grep`)"] if found.more else []
    elif found and found.preview:
        lines += ["  Begins:", *(f"    {line}" for line in found.preview)]
    return "\n".join(lines)


def size(count: int) -> str:
    """Bytes as people read them: KB with one decimal, MB above 1024 KB."""
    kilobytes = count / 1024
    return f"{kilobytes:.1f} KB" if kilobytes <= 1024 else f"{kilobytes / 1024:.1f} MB"


def _bare(content: str | list[object]) -> str | list[object]:
    """Content without a block that an earlier turn began with: a client may send a message again."""
    match content:
        case str():
            found = _OLD_BLOCK.match(content)
            return content[found.end() :] if found else content
        case [{"type": "text", "text": str(text)}, *rest] if _OLD_BLOCK.fullmatch(text):
            return rest
    return content


def _prefixed(content: str | list[object], text: str) -> tuple[str | list[object], int]:
    """The content with the block before it, and how much of it, or of its first block, that is."""
    if isinstance(content, str):
        text += "\n\n"
        return text + content, len(text)
    return [{"type": "text", "text": text}, *content], len(text)


def _as_state(file: Upload) -> Json:
    """As the state has it (contract runtime §4)."""
    found = file.outline or Outline()
    return {
        "filename": file.name,
        "size": file.size,
        "path": _path(file.name),
        "extension": PurePath(file.name).suffix,
        "outline": [{"line": line, "title": title} for line, title in found.headings],
        "outline_preview": list(found.preview),
    }


def _path(name: str) -> str:
    return f"{USER_DATA}/uploads/{name}"

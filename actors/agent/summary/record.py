"""Takes from a conversation what a summary must not lose, without a model: the person's messages, files, skills, what
subagents found, what failed, and where results lie. Pure.

The record of a summary is a field of its message, so that the next summary begins with it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from actors.agent.summary.sizes import fitted, tokens_of
from core.events import Json, Message
from core.ports.sandbox import RESULTS
from core.thread.earlier import SEARCH
from core.thread.messages import text_of
from core.thread.subagents import TOOLS
from core.thread.usage import SUMMARY

RECORD = "record"
"""Key of `additional_kwargs` of a summary's message."""
WRITES = re.compile(r"write|replace|edit|patch|create|append|save", re.IGNORECASE)
PRESENTS = re.compile(r"present", re.IGNORECASE)
READS = re.compile(r"read|view|cat\b|open", re.IGNORECASE)
PATHS = ("path", "file_path", "filepath", "file", "paths", "filepaths", "files")
"""Arguments of tools that name files."""
SECTIONS: Mapping[str, tuple[str, int]] = {
    "requests": ("What the person wrote, in order", 60),
    "files": ("Files that were written", 80),
    "presented": ("Files that were shown to the person", 40),
    "results": ("Results that lie in files", 40),
    "subagents": ("Results of subagents", 40),
    "skills": ("Skills that were read", 20),
    "failed": ("Calls that failed", 20),
    "read": ("Files that were read", 40),
}
"""Heading of each section, and how many entries are kept of it."""
REQUEST_CHARACTERS, RESULT_CHARACTERS, LINE_CHARACTERS = 4000, 1200, 200
REQUESTS_SHARE = 0.5
"""The part of the room that the person's messages may take."""
_RESULT = re.compile(re.escape(RESULTS) + r"/[\w.-]+")
ADVICE = (
    f"The above lists are from the log. {SEARCH} finds every earlier message and result by its words: search there, or "
    "read a file again, for what is not in this summary; ask the person only for what is nowhere."
)


def record_of(messages: Sequence[Message], skills: str) -> Json:
    """Returns the record of messages that are summarised, earlier summaries among them. `skills`: their directory."""
    record: dict[str, list[str]] = {name: [] for name in SECTIONS}
    calls: dict[str, Json] = {}
    for message in messages:
        if message.get("name") == SUMMARY:
            for name, entries in _earlier(message):
                record[name] += entries
        elif message["type"] == "human" and (text := _of_person(message)):
            record["requests"].append(_clip(text, REQUEST_CHARACTERS))
        elif message["type"] == "ai":
            calls.update((str(call["id"]), call) for call in message.get("tool_calls", ()))
        elif message["type"] == "tool":
            for name, entry in _of_result(message, calls.get(str(message.get("tool_call_id"))), skills):
                record[name].append(entry)
    return {name: _newest(entries, SECTIONS[name][1], first=name == "requests") for name, entries in record.items()}


def text_of_record(record: Mapping[str, Sequence[str]], todos: Sequence[Json], goal: str, tokens: int) -> str:
    """Returns the record as text within so many tokens: what the person wrote first, then the other sections."""
    parts, room = [f"Goal: {goal}"] if goal else [], tokens
    if todos:
        parts.append("Todos:\n" + "\n".join(f"- [{todo['status']}] {todo['content']}" for todo in todos))
    room -= sum(map(tokens_of, parts)) + tokens_of(ADVICE)
    for name, (heading, _) in SECTIONS.items():
        entries, share = record.get(name) or (), room * (REQUESTS_SHARE if name == "requests" else 0.6)
        if entries and share > tokens_of(heading) * 2:
            parts.append(_section(heading, entries, int(share)))
            room -= tokens_of(parts[-1])
    return "\n\n".join([*parts, ADVICE]) if parts else ""


def _section(heading: str, entries: Sequence[str], tokens: int) -> str:
    lines = [f"- {entry}" for entry in entries]
    first = [] if tokens_of(lines[0]) > tokens // 2 else lines[:1]
    return "\n".join([f"{heading}:", *first, *fitted(lines[len(first) :], tokens - sum(map(tokens_of, first)))])


def _earlier(message: Message) -> Iterator[tuple[str, list[str]]]:
    record = (message.get("additional_kwargs") or {}).get(RECORD)
    for name, entries in record.items() if isinstance(record, dict) else ():
        if name in SECTIONS and isinstance(entries, list):
            yield name, [entry for entry in entries if isinstance(entry, str)]


def _of_person(message: Message) -> str:
    extra = message.get("additional_kwargs")
    if isinstance(extra, dict) and extra.get("hide_from_ui"):
        return ""
    return text_of(message.get("content", "")).strip()


def _of_result(message: Message, call: Json | None, skills: str) -> Iterator[tuple[str, str]]:
    """Yields what a result adds to the record, as (section, entry)."""
    if call is None:
        return
    text, name = text_of(message.get("content", "")).strip(), str(call["name"])
    if name in TOOLS:
        about = next((str(call["args"][key]) for key in ("description", "prompt") if call["args"].get(key)), name)
        yield "subagents", f"{_line(about)}: {_clip(text, RESULT_CHARACTERS)}"
    if message.get("status") == "error":
        yield "failed", f"{line_of_call(call)}: {_line(text)}"
        return
    if path := _RESULT.search(text):
        yield "results", f"{line_of_call(call)}: {path[0]}"
    for path_ in _paths(call["args"]):
        if path_.startswith(f"{skills}/"):
            yield "skills", path_
        elif PRESENTS.search(name):
            yield "presented", path_
        elif WRITES.search(name):
            yield "files", path_
        elif READS.search(name):
            yield "read", path_


def line_of_call(call: Json) -> str:
    """Returns a call as one short line."""
    args = ", ".join(f"{name}={' '.join(str(value).split())[:80]}" for name, value in call["args"].items())
    return f"{call['name']}({args[:LINE_CHARACTERS]})"


def _paths(args: Mapping[str, Any]) -> Iterator[str]:
    for name in PATHS:
        value = args.get(name)
        for path in value if isinstance(value, list) else [value]:
            if isinstance(path, str) and path:
                yield path


def _newest(entries: Iterable[str], most: int, *, first: bool) -> list[str]:
    """Returns the newest different entries in order; with `first`, also the oldest."""
    different = list(dict.fromkeys(reversed(list(entries))))[::-1]
    if len(different) <= most:
        return different
    return [different[0], *different[1 - most :]] if first else different[-most:]


def _line(text: str) -> str:
    return " ".join(text.split())[:LINE_CHARACTERS]


def _clip(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most * 2 // 3]} […] {text[len(text) - most // 3 :]}"

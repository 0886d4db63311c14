"""Frames of a run as text for a person. Nothing here reads or writes; the same frames give the same text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from channels.terminal.pen import Pen
from channels.terminal.questions import Question, form_text, options_of, questions_of
from channels.terminal.text import Style, about, clean, is_done, one_line, todo_line
from core.previews import text_of

RESULT_LINES = 6
PROGRESS_LINES = 40
INDENT = "    "
_SILENT = ("write_todos",)
"""Tools whose effect is shown otherwise."""
_ASKS = ("ask_clarification",)
"""Tools whose result is meant for the person."""


@dataclass(slots=True)
class _Call:
    """A tool call as far as it is known."""

    name: str = ""
    raw: str = ""
    announced: bool = False
    answered: bool = False
    lines: int = 0
    """Lines of progress that were shown."""
    shown: str = ""
    """The progress that was shown."""
    expected: str = ""
    """What the command may write again from its beginning, after the connection was broken."""
    held: str = ""
    """What it wrote since, as far as it is that."""


class Transcript:
    """What a person has been shown of one turn, also if it takes several runs. `feed` returns what is to be written
    next.
    """

    def __init__(self, style: Style, locate: Callable[[str], str] = str) -> None:
        self.questions: list[Question] = []
        """What the run is paused at."""
        self.asks = False
        """Whether the person was asked something in words."""
        self.options: list[str] = []
        """What they may choose from."""
        self._style = style
        self._locate = locate
        """Where a file of the agent is for the person."""
        self._pen = Pen()
        self._begun = False
        self._seen: set[str] = set()
        self._said: dict[str, int] = {}
        self._calls: dict[str, _Call] = {}
        self._by_place: dict[tuple[str, int], str] = {}
        self._todos: Any = None
        self._artifacts: list[str] = []

    def feed(self, event: str, data: Any) -> str:
        match event, data:
            case "messages", [dict() as chunk, *_]:
                return self._message(chunk)
            case "values", dict():
                return self._values(data)
            case "custom", dict():
                return self._custom(data)
            case "reconnected", _:
                for call in self._calls.values():
                    call.expected, call.held = call.shown, ""
            case "gap", _:
                return self._pen.line("gap", "(a part of the stream is missing here)", self._style.yellow)
        return ""

    def reopen(self, values: Mapping[str, Any]) -> str:
        """A clarification at the end of a state, which waits for its answer."""
        last = (values.get("messages") or [{}])[-1]
        asks = last.get("type") == "tool" and last.get("name") in _ASKS and last.get("status") != "error"
        return self._result(last) if asks else ""

    def close(self) -> str:
        """Ends the line that was being written."""
        return self._pen.turn_to("")

    # ── messages ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _message(self, message: Mapping[str, Any]) -> str:
        kind = str(message.get("type", "")).removesuffix("MessageChunk").lower()
        if kind == "tool":
            return self._result(message)
        return self._delta(message) if kind == "ai" else ""

    def _delta(self, chunk: Mapping[str, Any]) -> str:
        identity = str(chunk.get("id"))
        shown = ""
        if reasoning := (chunk.get("additional_kwargs") or {}).get("reasoning_content"):
            shown += self._pen.write(f"{identity} thinks", str(reasoning), paint=self._style.dim)
        if text := text_of(chunk.get("content", "")):
            self._said[identity] = self._said.get(identity, 0) + len(text)
            shown += self._pen.write(identity, text)
        for part in chunk.get("tool_call_chunks") or ():
            shown += self._call_part(identity, part)
        if not chunk.get("tool_call_chunks"):
            shown += self._announce_all(chunk)
        return shown

    def _call_part(self, message: str, part: Mapping[str, Any]) -> str:
        place = (message, int(part.get("index") or 0))
        if part.get("id"):
            self._by_place[place] = str(part["id"])
        call_id = self._by_place.get(place)
        if call_id is None:
            return ""
        call = self._call(call_id, part.get("name"))
        call.raw += part.get("args") or ""
        args = _parsed(call.raw)
        return "" if args is None else self._announce(call_id, args)

    def _announce_all(self, message: Mapping[str, Any]) -> str:
        shown = ""
        for call in message.get("tool_calls") or ():
            if call.get("id") and call.get("name"):
                self._call(str(call["id"]), call["name"])
                shown += self._announce(str(call["id"]), call.get("args") or {})
        return shown

    # ── state ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _values(self, values: Mapping[str, Any]) -> str:
        """What the state has and was not shown. The first state of a turn is where the turn begins."""
        messages = values.get("messages") or ()
        artifacts = values.get("artifacts") or []
        shown = ""
        if self._begun:
            for message in messages:
                if str(message.get("id")) not in self._seen:
                    shown += self._catch_up(message)
            shown += self._checklist(values.get("todos"))
            for path in artifacts:
                if path not in self._artifacts:
                    shown += self._pen.line(
                        path, f"▸ artifact: {one_line(self._locate(str(path)), 300)}", self._style.bold
                    )
        self._begun = True
        self.questions = questions_of(values.get("__interrupt__"))
        self._seen.update(str(message.get("id")) for message in messages)
        self._todos = values.get("todos") or self._todos
        self._artifacts = list(artifacts)
        return shown

    def _catch_up(self, message: Mapping[str, Any]) -> str:
        if message.get("type") == "tool":
            return self._result(message)
        if message.get("type") != "ai":
            return ""
        identity = str(message.get("id"))
        text = text_of(message.get("content", ""))
        rest = text[self._said.get(identity, 0) :]
        self._said[identity] = len(text)
        return self._pen.write(identity, rest) + self._announce_all(message)

    def _checklist(self, todos: Any) -> str:
        if not todos or todos == self._todos:
            return ""
        lines = []
        for todo in todos:
            line = f"  {todo_line(todo)}"
            lines.append(self._style.dim(line) if is_done(todo) else line)
        return self._pen.turn_to("todos") + "".join(f"{line}\n" for line in lines)

    # ── tools ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _call(self, call_id: str, name: str | None = None) -> _Call:
        call = self._calls.setdefault(call_id, _Call())
        call.name = call.name or name or ""
        return call

    def _announce(self, call_id: str, args: Mapping[str, Any]) -> str:
        call = self._calls[call_id]
        if call.announced:
            return ""
        call.announced = True
        if call.name in _SILENT + _ASKS:
            return ""
        subject = about(args, 100)
        text = f"▸ {one_line(call.name, 60) or 'tool'}" + (f": {subject}" if subject else "")
        return self._pen.line(call_id, text, self._style.dim)

    def _progress(self, call_id: str, name: str, text: str) -> str:
        call = self._call(call_id, name)
        shown = self._announce(call_id, _parsed(call.raw) or {})
        if call.lines >= PROGRESS_LINES:
            return shown
        text = _unseen(call, text)
        kept = "\n".join(text.split("\n")[: PROGRESS_LINES - call.lines])
        call.lines += kept.count("\n")
        call.shown += kept
        shown += self._pen.write(call_id, kept, INDENT, self._style.dim)
        if call.lines + 1 >= PROGRESS_LINES:
            call.lines = PROGRESS_LINES
            shown += self._pen.turn_to("") + self._pen.line(call_id, f"{INDENT}…", self._style.dim)
        return shown

    def _result(self, message: Mapping[str, Any]) -> str:
        call_id = str(message.get("tool_call_id"))
        call = self._call(call_id, message.get("name"))
        if call.answered:
            return ""
        call.answered = True
        shown = self._announce(call_id, _parsed(call.raw) or {})
        text = text_of(message.get("content", "")).strip("\n")
        if call.name in _ASKS:
            return shown + self._question(call_id, text, message.get("artifact"))
        failed = message.get("status") == "error"
        if not text or (not failed and (call.lines or self._pen.is_in_line_of(call_id) or call.name in _SILENT)):
            return shown
        lines = text.split("\n")
        kept = lines[:RESULT_LINES]
        if len(lines) > RESULT_LINES:
            kept.append(f"… {len(lines) - RESULT_LINES} more lines")
        paint = self._style.red if failed else self._style.dim
        body = "\n".join(one_line(line, 200) if len(line) > 200 else line for line in kept)
        return shown + self._pen.turn_to("") + self._pen.write(call_id, body + "\n", INDENT, paint)

    def _question(self, call_id: str, text: str, artifact: Any) -> str:
        """A clarification, in full: the text has the options, but not the fields of a form."""
        card = artifact.get("human_input") if isinstance(artifact, Mapping) else None
        self.asks, self.options = True, options_of(card)
        whole = "\n".join(part for part in (text, form_text(card)) if part)
        return self._pen.turn_to("") + self._pen.write(call_id, whole + "\n")

    # ── what tools and policies write ───────────────────────────────────────────────────────────────────────────────

    def _custom(self, data: Mapping[str, Any]) -> str:
        task = f"task {data.get('task_id')}"
        match data.get("type"):
            case "tool_progress":
                call_id = str(data.get("tool_call_id") or data.get("call_id"))
                text = data.get("text") or data.get("content") or ""
                return self._progress(call_id, str(data.get("name") or ""), str(text))
            case "llm_retry":
                return self._pen.line("retry", f"  {retry_text(data)}", self._style.yellow)
            case "task_started":
                subject = one_line(str(data.get("description", "")), 100)
                return self._pen.line(task, f"▸ subagent: {subject}", self._style.dim)
            case "task_running":
                said = text_of((data.get("message") or {}).get("content", ""))
                return self._pen.line(task, INDENT + one_line(said, 110), self._style.dim) if said.strip() else ""
            case "task_failed" | "task_cancelled" | "task_timed_out" as ended:
                reason = one_line(str(data.get("error") or ended), 110)
                return self._pen.line(task, f"{INDENT}{reason}", self._style.red)
        return ""


def _unseen(call: _Call, text: str) -> str:
    """Progress without what was shown before a break: a server that takes a command up again sends all it wrote."""
    if not call.expected:
        return text
    held = call.held + text
    if call.expected.startswith(held):
        call.held = held
        return ""
    again, call.expected, call.held = held.startswith(call.expected), "", ""
    return held[len(call.shown) :] if again else held


def retry_text(data: Mapping[str, Any]) -> str:
    """A `llm_retry` event in words."""
    seconds = int(data.get("wait_ms") or 0) / 1000
    tries = f"try {data.get('attempt')} of {data.get('max_attempts')}"
    return f"the model does not answer ({one_line(str(data.get('reason', '')), 40)}): {tries}, again in {seconds:g} s"


def failure(data: Any) -> str:
    """An `error` frame in words; both wire forms are known."""
    if not isinstance(data, Mapping):
        return one_line(str(data), 500)
    kind = data.get("error") or data.get("name") or "error"
    return clean(f"{kind}: {data.get('message') or data.get('text') or ''}".rstrip(": "))


def _parsed(raw: str) -> dict[str, Any] | None:
    """Arguments, once they are complete."""
    if not raw.rstrip().endswith("}"):
        return None
    try:
        return msgspec.json.decode(raw, type=dict[str, Any])
    except msgspec.DecodeError:
        return None

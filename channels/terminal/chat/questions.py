"""Questions of paused runs as text, and the person's answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from channels.terminal.text import clean, one_line
from core import forms
from core.errors import Invalid

INDENT = "    "
_WORDS = {
    "y": "approve",
    "yes": "approve",
    "approve": "approve",
    "n": "reject",
    "no": "reject",
    "reject": "reject",
    "e": "edit",
    "edit": "edit",
}
_KEYS = {"approve": "[y]es", "reject": "[n]o", "edit": "[e]dit"}

Read = Callable[[str], Awaitable[str | None]]
"""Reads a line after a prompt; None leaves the question open."""


class Question(NamedTuple):
    """An interrupt of a paused run: an approval of a tool call, or a tool's own question."""

    id: str
    value: Any

    @property
    def approval(self) -> str | None:
        """The approval's id, if it is one."""
        match self.value:
            case {"type": "approval", "approval_id": str(approval), "action_requests": [*_]}:
                return approval
        return None

    @property
    def form(self) -> Mapping[str, Any] | None:
        """The form to be filled in, if it is one."""
        form = self.value.get("form") if self.approval else None
        return form if isinstance(form, Mapping) else None

    @property
    def calls(self) -> list[Mapping[str, Any]]:
        """The tool calls that wait: `name`, `args`, `description`."""
        return [call for call in self.value["action_requests"] if isinstance(call, Mapping)]

    @property
    def allowed(self) -> list[str]:
        """The allowed decisions, of approve, reject, edit."""
        match self.value.get("review_configs"):
            case [{"allowed_decisions": [*allowed]}, *_]:
                return [decision for decision in _KEYS if decision in allowed]
        return list(_KEYS)


def questions_of(interrupts: Any) -> list[Question]:
    """Returns the questions of a list of `{id, value}`."""
    items = interrupts if isinstance(interrupts, list) else []
    return [
        Question(str(item["id"]), item.get("value")) for item in items if isinstance(item, Mapping) and "id" in item
    ]


# ── questions ────────────────────────────────────────────────────────────────────────────────────────────────────────


def question_lines(question: Question, place: str = "") -> tuple[str, list[str]]:
    """Returns a question's title, and the lines below it. `place` is its number, where several wait."""
    title, lines = _approval(question) if question.approval else ("the agent asks", _value_lines(question.value))
    return f"▸ {title}{place}", [f"{INDENT}{line}".rstrip() for line in lines]


def _approval(question: Question) -> tuple[str, list[str]]:
    names = ", ".join(one_line(str(call.get("name")), 200) for call in question.calls)
    lines: list[str] = []
    for call in question.calls:
        lines += clean(str(call.get("description") or "")).splitlines()
        lines += _value_lines(call.get("args"))
    if deadline := question.value.get("deadline"):
        until = one_line(str(deadline), 40).replace("T", " ").replace(".000000", "").replace("+00:00", " UTC")
        lines.append(f"until {until}, then it counts as rejected")
    if (form := question.form) is not None:
        lines += [f"- {one_line(field.line, 600)}" for field in forms.fields(form)]
    if error := question.value.get("error"):
        lines.append(f"the last answer does not count: {one_line(str(error), 500)}")
    waits = "your answer" if question.form is not None else "your approval"
    return f"{names or 'a tool'} waits for {waits}", lines


def _value_lines(value: Any) -> list[str]:
    """Returns the lines of a value. Several lines are indented below their name, so that none can pass for another
    name.
    """
    if not isinstance(value, Mapping):
        return list(_lines(value))
    rows: list[str] = []
    for name, part in value.items():
        label, lines = one_line(str(name), 200), list(_lines(part))
        rows += [f"{label}: {lines[0]}"] if len(lines) == 1 else [f"{label}:", *(INDENT + line for line in lines)]
    return rows or ["(no arguments)"]


def _lines(value: Any) -> Iterator[str]:
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    if not isinstance(value, str) and len(text) > 100:
        text = msgspec.json.format(text, indent=2)
    cleaned = clean(text)
    yield from cleaned.split("\n")
    if cleaned != text:
        yield "(control characters in it are not shown)"


def options_of(card: Any) -> list[str]:
    """Returns the options of DeerFlow's clarification card, or of its field, in their order."""
    options = card.get("options") if isinstance(card, Mapping) else None
    return [str(option["label"]) for option in options or () if isinstance(option, Mapping) and "label" in option]


def form_of(card: Any) -> Mapping[str, Any] | None:
    """Returns the form of a clarification card as a schema of `core.forms`, if it has one."""
    listed = card.get("fields") if isinstance(card, Mapping) else None
    fields = [field for field in listed or () if isinstance(field, Mapping) and field.get("name")]
    if not fields:
        return None
    required = [str(field["name"]) for field in fields if field.get("required")]
    return {
        "type": "object",
        "properties": {str(field["name"]): _schema(field) for field in fields},
        "required": required,
    }


def _schema(field: Mapping[str, Any]) -> dict[str, Any]:
    options = {"enum": options_of(field)} if options_of(field) else {}
    kinds: dict[str, dict[str, Any]] = {
        "number": {"type": "number"},
        "checkbox": {"type": "boolean"},
        "multi_select": {"type": "array", "items": {"type": "string", **options}} if options else {"type": "string"},
        "date": {"type": "string", "format": "date"},
    }
    return {**kinds.get(str(field.get("type")), {"type": "string", **options}), "title": str(field.get("label"))}


def form_text(card: Any) -> str:
    """Returns the fields of a clarification card, one a line."""
    form = form_of(card)
    return "" if form is None else "\n".join(f"  - {one_line(field.line, 300)}" for field in forms.fields(form))


async def card_answer(form: Mapping[str, Any], read: Read, notice: Callable[[str], None]) -> str | None:
    """Reads the fields of a clarification's form; returns a message with a line for each, None if it is left open."""
    body = await _filled(form, read, notice)
    if body is None or "args" not in body:
        return None
    labels = {field.name: field.label for field in forms.fields(form)}
    return "\n".join(f"{labels[name]}: {_plain(value)}" for name, value in body["args"].items())


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


# ── answers ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def decision(question: Question, read: Read, notice: Callable[[str], None]) -> dict[str, Any] | None:
    """Reads a decision about an approval. Returns the body of the request; None if it is left open."""
    if (form := question.form) is not None:
        return await _filled(form, read, notice)
    prompt = f"approve? {', '.join(_KEYS[decision] for decision in question.allowed)}: "
    while (line := await read(prompt)) is not None:
        word = _WORDS.get(line.strip().lower())
        if word is None or word not in question.allowed:
            if line.strip():
                notice(f"(not an answer here: {one_line(line, 60)})")
        elif word == "approve":
            return {"decision": word}
        elif word == "reject":
            reason = await read("reason (may be empty): ")
            return None if reason is None else {"decision": word} | ({"message": reason} if reason.strip() else {})
        elif (body := await _edited(question, read, notice)) is not None:
            return body
    return None


async def _filled(form: Mapping[str, Any], read: Read, notice: Callable[[str], None]) -> dict[str, Any] | None:
    """Reads the fields of a form; `decline` in the place of a value declines it. Returns None if it is left open."""
    content: dict[str, Any] = {}
    for field in forms.fields(form):
        while True:
            line = await read(f"{one_line(field.line, 200)} (or decline): ")
            if line is None:
                return None
            if line.strip().casefold() in forms.DECLINED:
                return {"decision": "reject"}
            try:
                if (value := forms.value_of(field, line)) is not None:
                    content[field.name] = value
                elif field.required and "default" not in field.schema:
                    raise Invalid(f"{field.name}: is required")
                break
            except Invalid as error:
                notice(f"({one_line(str(error), 200)})")
    return {"decision": "edit", "args": content}


async def _edited(question: Question, read: Read, notice: Callable[[str], None]) -> dict[str, Any] | None:
    """Reads edited arguments; returns None if there are none."""
    arguments = [call.get("args") for call in question.calls]
    notice(clean(msgspec.json.encode(arguments[0] if arguments else {}).decode()))
    line = await read("all arguments, as one line of JSON: ")
    if line is None or not line.strip():
        return None
    try:
        return {"decision": "edit", "args": msgspec.json.decode(line, type=dict[str, Any])}
    except (msgspec.DecodeError, UnicodeError) as error:
        notice(f"(not a JSON object: {one_line(str(error), 200)})")
        return None


async def answer(read: Read) -> str | None:
    """Reads the answer to a tool's own question; returns None if it is left open."""
    while (line := await read("answer: ")) is not None:
        if line.strip():
            return line
    return None

"""Builds a question to a person: its text, and a card for clients (DeerFlow's clarification card)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from core.events import Json

ICONS = {
    "missing_info": "❓",
    "ambiguous_requirement": "🤔",
    "approach_choice": "🔀",
    "risk_confirmation": "⚠️",
    "suggestion": "💡",
}
"""By `clarification_type` (DeerFlow's middleware Clarification)."""
USUAL = "missing_info"
SOURCE = "ask_clarification"
FIELD_TYPES = ("text", "textarea", "number", "select", "multi_select", "checkbox", "date")
CHOICES = ("select", "multi_select")
MAX_FIELDS = 16
MAX_OPTIONS = 24
MAX_TEXT = 200
"""Characters of a label, a name, an option, a placeholder."""
MAX_FORM_BYTES = 16_384


def type_of(value: Any) -> str:
    """Returns the type of a question; unknown types count as `missing_info`."""
    return value if isinstance(value, str) and value in ICONS else USUAL


def options_of(value: Any) -> list[str]:
    """Returns the options that a model sent as a list, a single value, either of them as JSON text, or nothing."""
    if isinstance(value, str):
        value = _decoded(value)
    options = value if isinstance(value, list | tuple) else [value]
    return [text for text in map(_option_text, options) if text]


def question_text(kind: str, question: str, context: str = "", options: Sequence[str] = ()) -> str:
    """Returns the question as text, for people and the model."""
    first = [f"{ICONS[kind]} {context}", "", question] if context else [f"{ICONS[kind]} {question}"]
    numbered = ["", *(f"  {number}. {option}" for number, option in enumerate(options, 1))] if options else []
    return "\n".join([*first, *numbered])


def card(
    request_id: str,
    kind: str,
    question: str,
    *,
    context: str = "",
    options: Sequence[str] = (),
    fields: Any = None,
    call_id: str = "",
) -> Json:
    """Returns the card of a question: a form of valid fields, else a choice of valid options, else free text."""
    form = form_of(fields)
    listed = [] if form else choices(options)
    mode = "form" if form else "choice_with_other" if listed else "free_text"
    fixed: Json = {
        "version": 2 if form else 1,
        "kind": "human_input_request",
        "source": SOURCE,
        "request_id": request_id,
        "clarification_type": kind,
        "question": question,
        "input_mode": mode,
    }
    more = {"tool_call_id": call_id, "context": context, "options": listed, "fields": form}
    return fixed | {name: value for name, value in more.items() if value}


def choices(options: Sequence[str]) -> list[Json]:
    """Returns the options of a card; none if one of them is too long, or there are too many."""
    if len(options) > MAX_OPTIONS or not all(map(_is_text, options)):
        return []
    return [{"id": f"option-{n}", "label": option, "value": option} for n, option in enumerate(options, 1)]


def form_of(value: Any) -> list[Json]:
    """Returns the fields of a form; none if one of them is invalid."""
    entries = _decoded(value) if isinstance(value, str) else value
    if not isinstance(entries, list) or len(entries) > MAX_FIELDS:
        return []
    fields = [field for field in map(_field, entries) if field is not None]
    names = {field["name"] for field in fields}
    if len(names) < len(entries) or len(msgspec.json.encode(fields)) > MAX_FORM_BYTES:
        return []
    return fields


def is_option(card: Any, response: Any, text: str) -> bool:
    """Tells whether a response (`human_input_response`) is an option of a card, and the message only its text."""
    if not isinstance(card, Mapping) or not isinstance(response, Mapping):
        return False
    expected = {"version": 1, "kind": "human_input_response", "response_kind": "option", "source": card.get("source")}
    expected |= {"request_id": card.get("request_id"), "value": text}
    choice = (response.get("option_id"), text)
    options = card.get("options")
    listed = [option for option in options if isinstance(option, Mapping)] if isinstance(options, list) else []
    return all(response.get(name) == value for name, value in expected.items()) and any(
        choice == (option.get("id"), option.get("value")) for option in listed
    )


def _field(entry: Any) -> Json | None:
    """Returns a field of a card; None if the entry is invalid."""
    if not isinstance(entry, Mapping):
        return None
    name, label, kind = entry.get("name"), entry.get("label"), entry.get("type")
    required, placeholder = entry.get("required") or False, entry.get("placeholder") or ""
    if not (_is_text(name) and _is_text(label) and isinstance(required, bool)):
        return None
    if kind not in FIELD_TYPES or not (placeholder == "" or _is_text(placeholder)):
        return None
    texts = entry.get("options") or []
    valid = isinstance(texts, list) and all(map(_is_text, texts)) and len(set(texts)) == len(texts)
    options = choices(texts) if valid else []
    if bool(options) != (kind in CHOICES) or len(options) != len(texts):
        return None
    field = {"name": name, "label": label, "type": kind, "required": required}
    more = {"options": options, "placeholder": placeholder}
    return field | {name: value for name, value in more.items() if value}


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip()) and len(value) <= MAX_TEXT


def _decoded(text: str) -> Any:
    """Returns the JSON value of a text; the text itself if it is not JSON, or an object."""
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return text
    return text if isinstance(value, dict) else value


def _option_text(option: Any) -> str:
    """Returns the text of an option, "" for null."""
    if isinstance(option, str):
        return option.strip()
    if option is None:
        return ""
    if isinstance(option, Mapping):
        for name in ("label", "value", "text"):
            if isinstance(text := option.get(name), str):
                return text.strip()
    return msgspec.json.encode(option, enc_hook=str).decode()

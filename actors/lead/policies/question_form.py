"""A question to a person: in words, and as a card that programs can show (contract http §8.4)."""

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
"""By `clarification_type` (contract runtime §5.19)."""
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
    """The type of a question; what is no such counts as `missing_info`."""
    return value if isinstance(value, str) and value in ICONS else USUAL


def options_of(value: Any) -> list[str]:
    """The options, in whatever form a model gives them: a list, one value, either of them as JSON text, or nothing."""
    if isinstance(value, str):
        value = _decoded(value)
    given = value if isinstance(value, list | tuple) else [value]
    return [text for text in map(_spoken, given) if text]


def question_text(kind: str, question: str, context: str = "", options: Sequence[str] = ()) -> str:
    """What people and the model read."""
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
    """The question as a program shows it: with a form if there are fields without fault, else with the options if they
    keep the limits, else for an answer in words.
    """
    form = form_of(fields)
    shown = [] if form else choices(options)
    mode = "form" if form else "choice_with_other" if shown else "free_text"
    found: Json = {
        "version": 2 if form else 1,
        "kind": "human_input_request",
        "source": SOURCE,
        "request_id": request_id,
        "clarification_type": kind,
        "question": question,
        "input_mode": mode,
    }
    more = {"tool_call_id": call_id, "context": context, "options": shown, "fields": form}
    return found | {name: value for name, value in more.items() if value}


def choices(options: Sequence[str]) -> list[Json]:
    """Options as a card has them; none if one of them is too long, or there are too many."""
    if len(options) > MAX_OPTIONS or not all(map(_is_text, options)):
        return []
    return [{"id": f"option-{n}", "label": option, "value": option} for n, option in enumerate(options, 1)]


def form_of(value: Any) -> list[Json]:
    """The fields of a form; none at all if anything about one of them is wrong."""
    given = _decoded(value) if isinstance(value, str) else value
    if not isinstance(given, list) or len(given) > MAX_FIELDS:
        return []
    found = [field for field in map(_field, given) if field is not None]
    names = {field["name"] for field in found}
    if len(names) < len(given) or len(msgspec.json.encode(found)) > MAX_FORM_BYTES:
        return []
    return found


def chosen(card: Any, response: Any, text: str) -> bool:
    """Whether a response (`human_input_response`) takes an option of a card, and the message says nothing else."""
    if not isinstance(card, Mapping) or not isinstance(response, Mapping):
        return False
    expected = {"version": 1, "kind": "human_input_response", "response_kind": "option", "source": card.get("source")}
    expected |= {"request_id": card.get("request_id"), "value": text}
    given = (response.get("option_id"), text)
    options = card.get("options")
    listed = [option for option in options if isinstance(option, Mapping)] if isinstance(options, list) else []
    return all(response.get(name) == wanted for name, wanted in expected.items()) and any(
        given == (option.get("id"), option.get("value")) for option in listed
    )


def _field(given: Any) -> Json | None:
    """One field as a card has it; None if something about it is wrong."""
    if not isinstance(given, Mapping):
        return None
    name, label, kind = given.get("name"), given.get("label"), given.get("type")
    required, placeholder = given.get("required") or False, given.get("placeholder") or ""
    if not (_is_text(name) and _is_text(label) and isinstance(required, bool)):
        return None
    if kind not in FIELD_TYPES or not (placeholder == "" or _is_text(placeholder)):
        return None
    given_options = given.get("options") or []
    strings = isinstance(given_options, list) and all(map(_is_text, given_options))
    options = choices(given_options) if strings and len(set(given_options)) == len(given_options) else []
    if bool(options) != (kind in CHOICES) or len(options) != len(given_options):
        return None
    field = {"name": name, "label": label, "type": kind, "required": required}
    more = {"options": options, "placeholder": placeholder}
    return field | {name: value for name, value in more.items() if value}


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip()) and len(value) <= MAX_TEXT


def _decoded(text: str) -> Any:
    """What a text is as JSON; itself if it is none, or an object."""
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return text
    return text if isinstance(value, dict) else value


def _spoken(option: Any) -> str:
    """One option in words; "" for none."""
    if isinstance(option, str):
        return option.strip()
    if option is None:
        return ""
    if isinstance(option, Mapping):
        for name in ("label", "value", "text"):
            if isinstance(said := option.get(name), str):
                return said.strip()
    return msgspec.json.encode(option, enc_hook=str).decode()

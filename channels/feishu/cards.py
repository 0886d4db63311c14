"""Messages as cards (JSON 2.0): the platform's only messages with Markdown, buttons and later changes. Pure."""

from __future__ import annotations

import hashlib
from typing import Any

from channels.markup import feishu as markup
from core.chat.facts import Button, Target
from core.chat.port import Content

ANSWER = "answer"
STATUS = "status"
"""Ids of the elements that grow."""
BLANK = "…"
NOTHING = "\u200b"
"""In place of an empty answer and of an empty status: the platform takes no empty text."""
TYPING = {"print_frequency_ms": {"default": 30}, "print_step": {"default": 8}, "print_strategy": "fast"}
"""The pace at which clients show what was added: 8 characters every 30 ms. By default it is one every 70 ms."""
LONG = 20_000
"""Characters from which on Markdown is read in a thread."""


def message(content: Content, target: Target, key: str = "") -> dict[str, Any]:
    """Returns the card of a message. It carries its key, by which it can be recognised later."""
    elements: list[dict[str, Any]] = list(markup.elements(content.text))
    if content.status:
        elements.append(_status(content.status))
    if content.buttons:
        elements.append(_buttons(content, target))
    if not elements:
        elements.append(_status(BLANK))
    if key:
        elements[0] = {**elements[0], "element_id": mark_of(key)}
    return _card(elements, streaming=False)


def growing(content: Content, target: Target, *, streaming: bool = True) -> dict[str, Any]:
    """Returns the card of an answer that is being made. `streaming`: its elements may be changed one by one."""
    answer = {"tag": "markdown", "element_id": ANSWER, "content": answer_of(content.text)}
    return _card([answer, _status(content.status), _buttons(content, target)], streaming=streaming)


def answer_of(text: str) -> str:
    """Returns the content of the element `ANSWER`."""
    return markup.markdown(text) or BLANK


def status_of(text: str) -> str:
    """Returns the content of the element `STATUS`."""
    return markup.markdown(text) or NOTHING


def key_of(key: str) -> str:
    """Returns a key in the platform's form: at most 50 characters. A message with the same one is posted once within an
    hour."""
    return hashlib.blake2b(key.encode(), digest_size=16).hexdigest()


def mark_of(key: str) -> str:
    """Returns a key as the id of an element: at most 20 characters, the first a letter."""
    return f"k{key_of(key)[:19]}"


def _card(elements: list[dict[str, Any]], *, streaming: bool) -> dict[str, Any]:
    config: dict[str, Any] = {"update_multi": True, "width_mode": "fill", "streaming_mode": streaming}
    if streaming:
        config |= {"streaming_config": TYPING, "summary": {"content": ""}}
    return {"schema": "2.0", "config": config, "body": {"elements": elements}}


def _status(text: str) -> dict[str, Any]:
    return {"tag": "markdown", "element_id": STATUS, "content": status_of(text), "text_size": "notation"}


def _buttons(content: Content, target: Target) -> dict[str, Any]:
    columns = [
        {"tag": "column", "width": "auto", "elements": [_button(button, content.plan, target)]}
        for button in content.buttons
    ]
    return {"tag": "column_set", "flex_mode": "flow", "columns": columns}


def _button(button: Button, plan: str, target: Target) -> dict[str, Any]:
    """The value comes back when the button is pressed; the platform then names message, chat and person only."""
    value = {
        "plan": plan,
        "button": button.id,
        "topic": target.topic,
        "kind": target.kind,
        "reply_to": target.reply_to,
    }
    return {
        "tag": "button",
        "text": {"tag": "plain_text", "content": button.label},
        "type": button.style or "default",
        "behaviors": [{"type": "callback", "value": value}],
    }

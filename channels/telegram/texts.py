"""The content of messages: text with entities, and inline keyboards."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from telegram import InlineKeyboardButton, InlineKeyboardMarkup, MessageEntity

from channels.markup.telegram import LIMIT, entities, parts, units
from core.chat.facts import Button, Choice
from core.chat.port import Content, Rejected

CALLBACK_BYTES = 64
"""Most bytes of `callback_data` (Bot API, InlineKeyboardButton)."""
GROWING = 2000
"""Characters of an unfinished answer of which the end is shown: at most 4000 UTF-16 units."""
_FENCE = re.compile(r"^ {0,3}(?:```|~~~)", re.MULTILINE)
ROW = 24
"""Characters of labels up to which buttons share a row."""


class Text(NamedTuple):
    """A rendered text. Offsets of entities are UTF-16 units."""

    text: str
    entities: Sequence[MessageEntity] = ()


def rendered(source: str, status: str = "") -> Text:
    """Renders Markdown, with a status line in italics below if it fits."""
    text, marks = entities(source)
    if status:
        gap = "\n\n" if text else ""
        if units(text) + units(gap) + units(status) <= LIMIT:
            marks = [*marks, {"type": "italic", "offset": units(text + gap), "length": units(status)}]
            text = text + gap + status
    return Text(text, _entities(marks))


def growing(source: str, status: str) -> Text:
    """Renders an unfinished answer. Of one that is too long, it shows the end: splitting all of it at each step would
    cost more than it is worth."""
    end = source if units(source) <= LIMIT else _end(source)
    pages = parts(end)
    return rendered(pages[-1], status) if pages else Text(status or "…")


def _end(source: str) -> str:
    """Returns the last lines of a long text, and opens the code fence again that the cut goes through."""
    start = len(source) - GROWING
    cut = source.find("\n", start, start + GROWING // 2) + 1 or start
    head, tail = source[:cut], source[cut:]
    opened = len(_FENCE.findall(head)) % 2
    return f"```\n{tail}" if opened else tail


def _entities(marks: Sequence[dict[str, Any]]) -> Sequence[MessageEntity]:
    return MessageEntity.de_list(list(marks), None)


def keyboard(content: Content) -> InlineKeyboardMarkup | None:
    """Returns the buttons of a message. Raises `Rejected` if the plan's id leaves no room for a button's."""
    if not content.buttons:
        return None
    buttons = [
        InlineKeyboardButton(
            button.label,
            callback_data=_callback_data(content.plan, button),
            style=button.style or None,
        )
        for button in content.buttons
    ]
    if sum(len(button.text) for button in buttons) <= ROW:
        return InlineKeyboardMarkup([buttons])
    return InlineKeyboardMarkup([[button] for button in buttons])


def _callback_data(plan: str, button: Button) -> str:
    data = f"{plan}:{button.id}"
    if len(data.encode()) > CALLBACK_BYTES:
        raise Rejected(f"button {button.id!r} of plan {plan!r}: Telegram takes at most {CALLBACK_BYTES} bytes for both")
    return data


def choice_of(data: str) -> Choice | None:
    """Returns the pressed button, None if the data are none of `keyboard`."""
    plan, colon, button = data.rpartition(":")
    return Choice(plan, button) if colon and plan and button else None

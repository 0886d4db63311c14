"""Our messages in Discord's form: content, buttons, and the key by which a repeated post is recognised."""

from __future__ import annotations

import hashlib
from typing import Any

import anyio.to_thread

from channels.discord.inbound import custom_id
from channels.markup.discord import LIMIT, markdown, parts
from core.chat.facts import Target
from core.chat.port import Content, Rejected

GROWING = 1500
"""Characters of an unfinished answer of which the end is shown."""
STATUS = 200
LABEL = 80
CUSTOM_ID = 100
PER_ROW = 5
IN_THREAD = 2000
_NO_PREVIEWS = 1 << 2
_STYLES = {"": 2, "primary": 1, "danger": 4}
NOBODY = {"parse": [], "replied_user": False}
"""Mentions that ping: none, whatever a text has."""


def nonce(key: str) -> str:
    """Returns the key of a post, which Discord knows for some minutes: at most 25 characters."""
    return hashlib.blake2b(key.encode(), digest_size=12).hexdigest()


async def body_of(target: Target, content: Content) -> dict[str, Any]:
    """Returns what a message and its change have in common. Raises `Rejected`."""
    if len(content.text) < IN_THREAD:
        text = _text(content)
    else:
        text = await anyio.to_thread.run_sync(_text, content)
    return {
        "content": text,
        "allowed_mentions": NOBODY,
        "flags": _NO_PREVIEWS,
        "components": _rows(target, content),
    }


def growing(text: str, status: str) -> str:
    """Returns as much of the end of an unfinished answer as certainly fits, with the line of its status."""
    if len(text) > GROWING:
        text = text[-GROWING:].partition("\n")[2] or text[-GROWING:]
    pages = parts(text, LIMIT - STATUS)
    return pages[-1] if pages else ""


def _text(content: Content) -> str:
    text = markdown(content.text)
    if content.status:
        small = f"-# {' '.join(content.status.split())[: STATUS - 10]}"
        text = f"{text}\n{small}" if text and len(text) + len(small) < LIMIT else text or small
    return text or "…"


def _rows(target: Target, content: Content) -> list[dict[str, Any]]:
    buttons = []
    for button in content.buttons:
        identity = custom_id(content.plan, button.id, target.topic)
        if len(identity) > CUSTOM_ID:
            raise Rejected(
                f"button {button.id!r} of plan {content.plan!r}: Discord takes at most {CUSTOM_ID} characters"
            )
        style = _STYLES[button.style]
        buttons.append({"type": 2, "style": style, "label": button.label[:LABEL] or "…", "custom_id": identity})
    rows = [buttons[start : start + PER_ROW] for start in range(0, len(buttons), PER_ROW)]
    return [{"type": 1, "components": row} for row in rows]

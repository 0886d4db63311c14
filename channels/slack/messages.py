"""What our messages look like to Slack: blocks, the text of notifications, and the key by which they are recognised."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from channels.markup import slack as markup
from channels.slack.inbound import BUTTON, value_of
from core.chat.facts import Target
from core.chat.port import Content

EVENT_TYPE = "sika_delivery"
"""Type of the metadata of our messages."""
FALLBACK = 3000
"""Characters of `text` beside blocks, which notifications show. Over 4000, `chat.update` may refuse (research §2.1)."""
SECTION = 3000
LABEL = 75
PER_ROW = 5
STATUS = 300


def rendered(target: Target, content: Content) -> dict[str, Any]:
    """Returns `blocks` and `text` of a message."""
    return {"blocks": [*markup.blocks(content.text), *_below(target, content)], "text": fallback(content)}


def plainly(target: Target, content: Content) -> dict[str, Any]:
    """Returns the same without `markdown` blocks, for workspaces that do not know them."""
    sections = [
        {"type": "section", "text": {"type": "mrkdwn", "text": markup.mrkdwn(part)}}
        for part in markup.parts(content.text, SECTION)
    ]
    return {"blocks": [*sections, *_below(target, content)], "text": fallback(content)}


def fallback(content: Content) -> str:
    """Returns the text of notifications. Never empty, as Slack demands one."""
    beginning = markup.parts(content.text, FALLBACK)[:1]
    return (markup.mrkdwn(beginning[0]) if beginning else content.status) or "…"


def _below(target: Target, content: Content) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    if content.status:
        blocks.append({"type": "context", "elements": [{"type": "plain_text", "text": content.status[:STATUS]}]})
    elements = [
        {
            "type": "button",
            "action_id": f"{BUTTON}{button.id}",
            "text": {"type": "plain_text", "text": button.label[:LABEL] or "…"},
            "value": value_of(content.plan, button.id, target.topic),
            **({"style": button.style} if button.style else {}),
        }
        for button in content.buttons
    ]
    rows = [elements[start : start + PER_ROW] for start in range(0, len(elements), PER_ROW)]
    return [*blocks, *({"type": "actions", "elements": row} for row in rows)]


def payload_of(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the payload of a message's metadata, empty if it is none of ours."""
    metadata = message.get("metadata") or {}
    return (metadata.get("event_payload") or {}) if metadata.get("event_type") == EVENT_TYPE else {}


def block_id(key: str) -> str:
    """Returns the `block_id` below a file: at most 255 characters."""
    return f"sika-{hashlib.blake2b(key.encode(), digest_size=16).hexdigest()}"

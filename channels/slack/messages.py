"""Our messages in Slack's form: blocks, the text of notifications, and the key by which they are recognised."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from typing import Any

import anyio
import anyio.to_thread
import msgspec

from channels.markup import slack as markup
from channels.slack.inbound import BUTTON, value_of
from core.chat.facts import BAD, GOOD, Button, Target
from core.chat.port import Content

EVENT_TYPE = "sika_delivery"
"""Type of the metadata of our messages."""
FALLBACK = 500
"""Characters of Markdown that become `text`, which notifications show. Over 4000, `chat.update` may refuse (research
im-platforms §2.1); escapes make five characters of one."""
GROWING = 6000
"""Characters of an answer that still grows."""
MOST = 12_000
"""Characters of a `markdown` block, with escapes."""
IN_THREAD = 2000
"""Characters from which on rendering would hold up other conversations."""
SECTION = 3000
LABEL = 75
PER_ROW = 5
STATUS = 300
_MENTION = re.compile(r"<(?=[!@#])|@(?=(channel|everyone|here|group)\b)", re.IGNORECASE)
_UNFINISHED = re.compile(r"(<|@\w*)\Z")


async def rendered(target: Target, content: Content) -> dict[str, Any]:
    """Returns `blocks` and `text` of a message."""
    return await _in_thread(_rendered, target, content)


async def plainly(target: Target, content: Content) -> dict[str, Any]:
    """Returns the same without `markdown` blocks and thumbs, for workspaces that do not know them."""
    return await _in_thread(_plainly, target, content)


async def _in_thread(
    render: Callable[[Target, Content], dict[str, Any]], target: Target, content: Content
) -> dict[str, Any]:
    if len(content.text) < IN_THREAD:
        return render(target, content)
    return await anyio.to_thread.run_sync(render, target, content)


def _rendered(target: Target, content: Content) -> dict[str, Any]:
    return {"blocks": [*markup.blocks(content.text), *_below(target, content)], "text": _notification(content)}


def _plainly(target: Target, content: Content) -> dict[str, Any]:
    sections = [
        {"type": "section", "text": {"type": "mrkdwn", "text": markup.mrkdwn(part)}}
        for part in markup.parts(content.text, SECTION)
    ]
    content = msgspec.structs.replace(content, buttons=_without_ratings(content))
    return {"blocks": [*sections, *_below(target, content)], "text": _notification(content)}


def _notification(content: Content) -> str:
    """Returns `text`. Never empty, as Slack demands one."""
    return markup.mrkdwn(content.text[:FALLBACK]) or content.status or "…"


def growing(text: str) -> str:
    """Returns as much of the beginning of an answer as certainly fits."""
    text = text[:GROWING]
    return text if len(text) + 4 * sum(map(text.count, "&<>")) < MOST else text[: GROWING // 3]


def streamable(text: str) -> str:
    """Returns the beginning of an answer for a native stream: it mentions nobody, and only grows while the text does,
    so the word at its end waits if it may become a mention."""
    text = _UNFINISHED.sub("", text[:GROWING])
    return _MENTION.sub(lambda mention: f"{mention[0]}\u200b", text)


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
        for button in _without_ratings(content)
    ]
    rows = [elements[start : start + PER_ROW] for start in range(0, len(elements), PER_ROW)]
    blocks += [{"type": "actions", "elements": row} for row in rows]
    return [*blocks, *([_ratings(target, content)] if GOOD in content.buttons else [])]


def _without_ratings(content: Content) -> tuple[Button, ...]:
    return tuple(button for button in content.buttons if button not in (GOOD, BAD))


def _ratings(target: Target, content: Content) -> dict[str, Any]:
    """Returns Slack's own thumbs."""
    buttons = {
        side: {
            "text": {"type": "plain_text", "text": button.label},
            "value": value_of(content.plan, button.id, target.topic),
        }
        for side, button in (("positive_button", GOOD), ("negative_button", BAD))
    }
    return {
        "type": "context_actions",
        "elements": [{"type": "feedback_buttons", "action_id": f"{BUTTON}rating", **buttons}],
    }


def key_of(message: Mapping[str, Any]) -> str:
    """Returns the key in a message's metadata, empty if there is none of ours."""
    metadata = message.get("metadata") or {}
    payload = metadata.get("event_payload") or {}
    return str(payload.get("key") or "") if metadata.get("event_type") == EVENT_TYPE else ""


def block_id(key: str) -> str:
    """Returns the `block_id` below a file: at most 255 characters."""
    return f"sika-{hashlib.blake2b(key.encode(), digest_size=16).hexdigest()}"

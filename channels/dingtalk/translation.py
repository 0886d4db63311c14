"""Translates what DingTalk sends into facts: messages of people and pressed buttons."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec
import structlog
from cachetools import FIFOCache

from core.chat.facts import Attachment, Button, ChatReceived, Choice, Quoted, Target
from core.chat.people import MOST_MENTIONS, mention

log = structlog.get_logger(__name__)
COLORS = {"": "gray", "primary": "blue", "danger": "red"}


class _Content(msgspec.Struct, frozen=True, rename="camel"):
    """`content` of a message that is not text; each kind has some of these."""

    download_code: str = ""
    file_name: str = ""
    recognition: str = ""
    video_type: str = ""
    rich_text: list[dict[str, Any]] = []


class _Text(msgspec.Struct, frozen=True, rename="camel"):
    content: str = ""
    replied_msg: Any = None
    """The message that is quoted; its content is that of its kind."""


class _Mentioned(msgspec.Struct, frozen=True, rename="camel"):
    """Somebody whom a message mentions, the bot, too."""

    dingtalk_id: str = ""
    staff_id: str | None = None


class _Message(msgspec.Struct, frozen=True, rename="camel"):
    msg_id: str
    conversation_id: str
    conversation_type: Literal["1", "2"]
    msgtype: str = msgspec.field(name="msgtype")
    sender_id: str = ""
    sender_staff_id: str | None = None
    sender_nick: str = ""
    chatbot_user_id: str = ""
    is_in_at_list: bool = False
    at_users: list[_Mentioned] = []
    create_at: int = 0
    """Milliseconds since 1970."""
    text: _Text = _Text()
    content: _Content = _Content()


class _Press(msgspec.Struct, frozen=True, rename="camel"):
    """A pressed button. `content`: JSON, with the ids of the actions."""

    out_track_id: str
    user_id: str
    content: str = "{}"


class _Action(msgspec.Struct, frozen=True, array_like=True):
    """The content of a button's id. The platform hands it back as it was; its own card has room for nothing else."""

    plan: str
    button: str
    chat: str
    topic: str
    kind: Literal["private", "group"]


def message(data: Mapping[str, Any], people: FIFOCache[str, str] | None = None) -> ChatReceived | None:
    """Returns a message; None if it is to be ignored: without a sender in the organisation, of a bot, or of a kind that
    has neither text nor file, nor a mention of the bot. `people`: names by id, to which the sender's is added. Raises
    `msgspec.ValidationError`."""
    people = FIFOCache(1) if people is None else people
    raw = msgspec.convert(data, _Message, strict=False)
    if not raw.sender_staff_id or (raw.sender_id and raw.sender_id == raw.chatbot_user_id):
        log.info("message ignored", reason="no sender of the organisation", message=raw.msg_id)
        return None
    if raw.sender_nick:
        people[raw.sender_staff_id] = raw.sender_nick
    text, attachments = _text_and_files(raw)
    others = [each.staff_id for each in raw.at_users if each.staff_id and each.dingtalk_id != raw.chatbot_user_id]
    text = _with_mentions(text, others[:MOST_MENTIONS], people)
    group = raw.conversation_type == "2"
    mentioned = not group or raw.is_in_at_list
    if not text and not attachments and not (mentioned and raw.msgtype == "text"):
        log.warning("message ignored", reason=f"kind {raw.msgtype!r} has no text", message=raw.msg_id)
        return None
    target = Target(
        chat=raw.conversation_id if group else raw.sender_staff_id,
        topic=raw.msg_id if group else "",  # as in DeerFlow: each message of a group begins a thread
        kind="group" if group else "private",
        reply_to=f"{raw.msg_id} {raw.conversation_id}",
        sender=raw.sender_staff_id,
    )
    return ChatReceived(
        message=raw.msg_id,
        target=target,
        sender=raw.sender_staff_id,
        sender_name=raw.sender_nick,
        text=text,
        attachments=tuple(attachments),
        mentioned=mentioned,
        quoted=_quoted(raw.text.replied_msg),
        sent_at=datetime.fromtimestamp(raw.create_at / 1000, UTC).isoformat() if raw.create_at else "",
    )


def _with_mentions(text: str, others: Sequence[str], people: Mapping[str, str]) -> str:
    """Returns a text with the names of those whom it mentions, at its beginning where it does not have them: the
    platform tells their ids, and takes mentions out of some texts."""
    before: list[str] = []
    for person in others:
        name = people.get(person, "")
        if name and (at := f"@{name}") in text:
            text = text.replace(at, mention(name, person), 1)
        else:
            before.append(mention(name, person))
    return " ".join([*before, text]) if before and text else text


def _quoted(replied: Any) -> Quoted | None:
    """Returns a quoted message; None if it has no words."""
    content = replied.get("content") if isinstance(replied, dict) else None
    if not isinstance(content, dict):
        return None
    pieces = content.get("richText")
    texts = [content, *(pieces if isinstance(pieces, list) else ())]
    text = "".join(str(each["text"]) for each in texts if isinstance(each, dict) and each.get("text"))
    return Quoted(text, str(replied.get("senderNick") or "")) if text.strip() else None


def answered(target: Target) -> tuple[str, str]:
    """Returns the message that is answered and its conversation, which a private chat's id does not tell."""
    message, _, conversation = target.reply_to.partition(" ")
    return message, conversation


def _text_and_files(raw: _Message) -> tuple[str, list[Attachment]]:
    content, code = raw.content, raw.content.download_code
    match raw.msgtype:
        case "text":
            return raw.text.content.strip(), []  # in groups, a blank is left of the mention
        case "richText":
            return _rich(content.rich_text)
        case "picture" if code:
            return "", [Attachment(code, "image.jpg", "image")]
        case "file" if code:
            return "", [Attachment(code, content.file_name or "file")]
        case "audio" if code or content.recognition:
            return "", [Attachment(code, "voice.amr", "voice", transcript=content.recognition)]
        case "video" if code:
            return "", [Attachment(code, f"video.{content.video_type or 'mp4'}", "video")]
    return "", []


def _rich(pieces: list[dict[str, Any]]) -> tuple[str, list[Attachment]]:
    """Returns the texts, joined as they were typed, and the pictures."""
    text = "".join(str(piece["text"]) for piece in pieces if piece.get("text"))
    codes = [str(piece["downloadCode"]) for piece in pieces if piece.get("downloadCode")]
    return text.strip(), [Attachment(code, f"image-{n}.jpg", "image") for n, code in enumerate(codes, 1)]


def press(data: Mapping[str, Any]) -> ChatReceived | None:
    """Returns a pressed button; None if it is not one of ours. Presses of several people are told apart: one by
    somebody who may not decide hides nobody else's. Raises `msgspec.ValidationError`."""
    raw = msgspec.convert(data, _Press, strict=False)
    ids = _action_ids(raw.content)
    action = next((known for known in map(_action, ids) if known is not None), None)
    if action is None or not raw.user_id:
        log.info("press ignored", card=raw.out_track_id)
        return None
    return ChatReceived(
        message=f"{raw.out_track_id}/{raw.user_id}",
        target=Target(action.chat, action.topic, action.kind, sender=raw.user_id),
        sender=raw.user_id,
        mentioned=True,
        choice=Choice(action.plan, action.button),
    )


def _action_ids(content: str) -> list[str]:
    try:
        ids = json.loads(content)["cardPrivateData"]["actionIds"]
        return [id_ for id_ in ids if isinstance(id_, str)]
    except (ValueError, KeyError, TypeError):
        return []


def buttons(plan: str, target: Target, choices: tuple[Button, ...]) -> list[dict[str, Any]]:
    """Returns the buttons of a card. Each id says where it belongs, as a press says only which card and who."""
    return [
        {
            "text": choice.label,
            "color": COLORS[choice.style],
            "id": _action_id(plan, choice.id, target),
            "request": True,
        }
        for choice in choices
    ]


def _action_id(plan: str, button: str, target: Target) -> str:
    action = _Action(plan, button, target.chat, target.topic, target.kind)
    return base64.urlsafe_b64encode(msgspec.json.encode(action)).decode()


def _action(id_: str) -> _Action | None:
    try:
        return msgspec.json.decode(base64.urlsafe_b64decode(id_.encode()), type=_Action)
    except (binascii.Error, msgspec.DecodeError, ValueError):
        return None


def numbered(text: str, choices: tuple[Button, ...]) -> str:
    """Returns a text with its options below, for where there are no buttons. Most questions end with them already."""
    options = [f"{n}. {choice.label}" for n, choice in enumerate(choices, 1)]
    if not options or [line.strip() for line in text.splitlines()][-len(options) :] == options:
        return text
    return "\n\n".join((*([text] if text else []), "\n".join(options)))

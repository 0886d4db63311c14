"""Events of Feishu as facts of conversations. Pure.

Conversations: a private chat is one; in groups, the messages below one root are one, as in DeerFlow.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Literal

from cachetools import FIFOCache

from core.chat.facts import Attachment, ChatReceived, Choice, Quoted, Target
from core.chat.people import MOST_MENTIONS, mention

ALBUM_MILLISECONDS = 750
"""Longest pause between files that a person sends at once; each is a message (DeerFlow's pause)."""
ALBUMS = 1000
MENTION = re.compile(r"@_user_\d+|@_all")

Json = Mapping[str, Any]


def received(
    event: Json, bot: str, to_bot: bool, names: Mapping[str, str] = MappingProxyType({})
) -> ChatReceived | None:
    """Returns a message as a fact; None if no person wrote it. `event`: the body of `im.message.receive_v1`. `bot`: the
    bot's open id. `to_bot`: the message replies to one of the bot's. `names`: of people whose ids a rich text has."""
    message = event["message"]
    if event["sender"].get("sender_type") != "user":
        return None
    private = message.get("chat_type") == "p2p"
    mentions = message.get("mentions") or []
    text, attachments = _content(message, names)
    return ChatReceived(
        message=message["message_id"],
        target=Target(
            chat=message["chat_id"],
            topic="" if private else message.get("root_id") or message["message_id"],
            kind="private" if private else "group",
            reply_to=message["message_id"],
            sender=sender_of(event),
        ),
        sender=sender_of(event),
        text=_mentions_resolved(text, mentions, bot).strip(),
        attachments=tuple(attachments),
        mentioned=private or to_bot or mentions_bot(event, bot),
        sent_at=_time(message.get("create_time")),
    )


def sender_of(event: Json) -> str:
    return str(event["sender"]["sender_id"]["open_id"])


def mentions_bot(event: Json, bot: str) -> bool:
    """Tells whether a message names the bot. `@all` does not."""
    mentions = event["message"].get("mentions") or []
    return any(_id_of(each) == bot for each in mentions)


def addresses_bot(event: Json, bot: str) -> bool:
    """Tells whether a message is for the bot by itself: in a private chat, or as it names the bot."""
    return event["message"].get("chat_type") == "p2p" or mentions_bot(event, bot)


def unnamed(event: Json) -> list[str]:
    """Returns the ids of people whom a rich text mentions without a name."""
    ids: dict[str, None] = {}
    if event["message"].get("message_type") == "post":
        for piece in _pieces_of(json.loads(event["message"].get("content") or "{}")):
            person = str(piece.get("user_id") or "")
            if piece.get("tag") == "at" and not piece.get("user_name") and person.startswith("ou_"):
                ids[person] = None
    return list(ids)[:MOST_MENTIONS]


def _pieces_of(post: Json) -> Iterator[Json]:
    for line in _body(post).get("content", ()):
        yield from line


def parent_of(event: Json) -> str:
    """Returns the message to which a message replies; empty if to none."""
    return event["message"].get("parent_id") or ""


def quoted(item: Json, author: str) -> Quoted | None:
    """Returns what a person wrote, as it was read from the platform; None if it has no words. `item`: of the answer of
    `im/v1/messages`. The platform returns cards without their text."""
    kind = item.get("msg_type", "")
    if kind not in ("text", "post"):
        return None
    text, _ = _content({"message_type": kind, "content": (item.get("body") or {}).get("content")}, {})
    text = _mentions_resolved(text, item.get("mentions") or [], "").strip()
    return Quoted(text, author) if text else None


def pressed(event: Json) -> ChatReceived | None:
    """Returns a pressed button as a fact; None if it is not of one of our messages. `event`: the body of
    `card.action.trigger`. Presses of several people are told apart: one by somebody who may not decide hides nobody
    else's."""
    value = event["action"].get("value")
    if not isinstance(value, dict) or not {"plan", "button"} <= value.keys():
        return None
    context, person = event["context"], event["operator"]["open_id"]
    kind: Literal["private", "group"] = "group" if value.get("kind") == "group" else "private"
    return ChatReceived(
        message=f"{context['open_message_id']}/{person}",
        target=Target(
            chat=context["open_chat_id"],
            topic=str(value.get("topic", "")),
            kind=kind,
            reply_to=str(value.get("reply_to", "")),
            sender=person,
        ),
        sender=person,
        mentioned=True,
        choice=Choice(str(value["plan"]), str(value["button"])),
    )


class Albums:
    """Names what was sent at once: files of one person, each at most `ALBUM_MILLISECONDS` after the one before."""

    def __init__(self) -> None:
        self._newest: FIFOCache[tuple[str, str, str], tuple[int, str]] = FIFOCache(ALBUMS)

    def of(self, event: Json, message: ChatReceived) -> str:
        """Returns the album of a message: the id of its first one; empty if the message is no file."""
        if event["message"].get("message_type") not in ("image", "file", "audio", "media"):
            return ""
        key = (message.target.chat, message.target.topic, message.sender)
        time = int(event["message"].get("create_time") or 0)
        last, album = self._newest.get(key, (0, ""))
        if abs(time - last) > ALBUM_MILLISECONDS:
            album = message.message
        self._newest[key] = (max(time, last), album)
        return album


def _content(message: Json, names: Mapping[str, str]) -> tuple[str, list[Attachment]]:
    """Returns text and files. Kinds of messages without a text are named by one."""
    kind = message.get("message_type", "")
    content = json.loads(message.get("content") or "{}")
    match kind:
        case "text":
            return content.get("text", ""), []
        case "post":
            return _post(content, names)
        case "image":
            return "", [_image(content["image_key"])]
        case "file" | "audio" | "media":
            return "", [_file(content, kind)]
        case "location":
            return f"[location: {content.get('name', '')} {content.get('latitude')}, {content.get('longitude')}]", []
    return f"[{kind}]", []


def _body(post: Json) -> Json:
    """Returns a rich text, of which there may be several in different languages."""
    if "content" in post:
        return post
    return next((body for body in post.values() if isinstance(body, dict) and "content" in body), {})


def _post(content: Json, names: Mapping[str, str]) -> tuple[str, list[Attachment]]:
    """Reads a rich text: paragraphs joined by blank lines, as in DeerFlow, files by placeholders."""
    content = _body(content)
    attachments: list[Attachment] = []
    paragraphs = [content.get("title", "")]
    for line in content.get("content", ()):
        paragraphs.append("".join(_pieces(line, attachments, names)))
    return "\n\n".join(text for text in paragraphs if text.strip()), attachments


def _pieces(line: Sequence[Json], attachments: list[Attachment], names: Mapping[str, str]) -> Iterator[str]:
    for piece in line:
        match piece.get("tag"):
            case "a":
                yield f"[{piece.get('text', '')}]({piece.get('href', '')})"
            case "at":
                yield _mentioned(piece, names)
            case "img":
                attachments.append(_image(piece["image_key"]))
                yield "[image]"
            case "media" | "file":
                attachments.append(_file(piece, str(piece["tag"])))
                yield "[file]"
            case "code_block":
                yield f"```{str(piece.get('language', '')).lower()}\n{piece.get('text', '').rstrip()}\n```"
            case "emotion":
                yield f":{piece.get('emoji_type', '')}:"
            case "hr":
                yield "---"
            case _:
                yield str(piece.get("text", ""))


def _mentioned(piece: Json, names: Mapping[str, str]) -> str:
    """Returns a mention in a rich text: the placeholder of one that the message lists, else the person."""
    person = str(piece.get("user_id") or "")
    if MENTION.fullmatch(person) or not person:
        return person
    return "@all" if person == "all" else mention(str(piece.get("user_name") or names.get(person, "")), person)


def _image(key: str) -> Attachment:
    return Attachment(key, f"{key[:40]}.png", "image", "image/png")


def _file(content: Json, kind: str) -> Attachment:
    key = content["file_key"]
    if kind == "audio":
        return Attachment(key, f"{key[:40]}.opus", "voice", "audio/ogg")
    return Attachment(key, content.get("file_name") or key, "video" if kind == "media" else "document")


def _mentions_resolved(text: str, mentions: Sequence[Json], bot: str) -> str:
    """Replaces the placeholders of mentions by names, and the bot's by nothing. `bot`: empty if it keeps its name."""
    names = {"@_all": "@all"}
    for each in mentions:
        person = _id_of(each)
        is_bot = bot and person == bot
        names[each.get("key", "")] = "" if is_bot else mention(str(each.get("name") or ""), person)
    # Both at once, so that a name that looks like a placeholder stays what it is; the blank after a removed one goes.
    return re.sub(MENTION.pattern + r" ?", lambda match: _named(match[0], names), text)


def _id_of(mentioned: Json) -> str:
    """Returns the open id of who is mentioned: events have all kinds of ids, messages that are read have one."""
    ids = mentioned.get("id")
    return str(ids.get("open_id") or "") if isinstance(ids, dict) else str(ids or "")


def _named(placeholder: str, names: Mapping[str, str]) -> str:
    key = placeholder.rstrip(" ")
    name = names.get(key, key)
    return name + placeholder[len(key) :] if name else ""


def _time(milliseconds: Any) -> str:
    try:
        return datetime.fromtimestamp(int(milliseconds) / 1000, UTC).isoformat(timespec="milliseconds")
    except (TypeError, ValueError, OverflowError, OSError):
        return ""

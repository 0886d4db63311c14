"""Translation of what Discord sends into messages. Pure.

A conversation is a direct chat, a thread, or in a channel the messages that answer each other, from the one on that
began it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from core.chat.commands import umbrella
from core.chat.facts import Attachment, ChatReceived, Choice, Quoted, Target
from core.chat.people import MOST_MENTIONS, mention

COMMAND = "sika"
OPTION = "text"
BUTTON = "sika:"
"""Begins the `custom_id` of our buttons."""
THREAD = "thread:"
"""Begins the topic of a conversation in a thread; another topic is the message that began a chain of replies."""
THREADS = frozenset({10, 11, 12})
"""Types of channels that are threads."""
_WRITTEN = frozenset({0, 19})
"""Types of messages that people write: others are notices, as of who joined."""
_FORWARDED = 1
_ENTITY = re.compile(r"<(@!?|@&|#)(\d+)>|<a?(:\w+:)\d+>")


class Place(NamedTuple):
    """A channel: `parent` is that of a thread, else empty."""

    chat: str
    parent: str = ""

    @property
    def topic(self) -> str:
        return f"{THREAD}{self.chat}" if self.parent else ""


def channel_of(target: Target) -> str:
    """Returns the channel in which something is said."""
    return target.topic.removeprefix(THREAD) if target.topic.startswith(THREAD) else target.chat


def place_of(channel: Mapping[str, Any]) -> Place:
    """Returns the place that a channel object describes."""
    is_thread = channel.get("type") in THREADS
    return Place(str(channel["id"]), str(channel.get("parent_id") or "") if is_thread else "")


def written(message: Mapping[str, Any], place: Place, bot: str) -> ChatReceived | None:
    """Returns a message for the agent; None if there is none. `bot`: its id. Raises `KeyError`, `TypeError` or
    `ValueError` for one that is not as documented."""
    author = message["author"]
    if author.get("bot") or message.get("webhook_id") or message.get("type", 0) not in _WRITTEN:
        return None
    raw, answered = str(message.get("content") or ""), message.get("referenced_message") or {}
    of_bot = re.compile(rf"[ \t]*<@!?{re.escape(bot)}>[ \t]*")
    text = _readable(of_bot.sub(" ", raw), message.get("mentions") or ()).strip()
    attachments = tuple(_attachment(file, str(message["channel_id"])) for file in message.get("attachments") or ())
    to_bot = str((answered.get("author") or {}).get("id", "")) == bot
    named = to_bot or any(str(user.get("id")) == bot for user in message.get("mentions") or ())
    quoted = _quoted(message, answered, to_bot=to_bot)
    if not (text or attachments or named or quoted):
        return None
    private = not message.get("guild_id")
    root = str(answered.get("id") or message["id"])
    return ChatReceived(
        message=str(message["id"]),
        target=Target(
            chat=place.parent or place.chat,
            topic="" if private else place.topic or root,
            kind="private" if private else "group",
            reply_to=str(message["id"]),
            sender=str(author["id"]),
        ),
        sender=str(author["id"]),
        sender_name=_name(author, message.get("member")),
        text=text,
        attachments=attachments,
        quoted=quoted,
        mentioned=private or named,
        edited=str(message.get("edited_timestamp") or ""),
        sent_at=str(message.get("timestamp") or ""),
    )


def invoked(interaction: Mapping[str, Any], shown: str) -> ChatReceived | None:
    """Returns the message that a slash command is, None if it is not ours. `shown`: the message of ours that stands for
    it in the channel."""
    if interaction["data"].get("name") != COMMAND:
        return None
    options = {option["name"]: option.get("value") for option in interaction["data"].get("options") or ()}
    users = list(((interaction["data"].get("resolved") or {}).get("users") or {}).values())
    place, kind, sender, name = _who_and_where(interaction)
    return ChatReceived(
        message=f"command-{interaction['id']}",
        target=Target(
            chat=place.parent or place.chat,
            topic="" if kind == "private" else place.topic or str(interaction["id"]),
            kind=kind,
            reply_to=shown,
            sender=sender,
        ),
        sender=sender,
        sender_name=name,
        text=umbrella(_readable(str(options.get(OPTION) or ""), users).strip()),
        mentioned=True,
    )


def pressed(interaction: Mapping[str, Any]) -> ChatReceived | None:
    """Returns the press of a button of ours, None if it is not. Raises as `written`."""
    custom_id = str(interaction["data"].get("custom_id") or "")
    if not custom_id.startswith(BUTTON):
        return None
    plan, button, topic = json.loads(custom_id.removeprefix(BUTTON))
    place, kind, sender, name = _who_and_where(interaction)
    return ChatReceived(
        message=str(interaction["id"]),
        target=Target(
            chat=place.parent or place.chat,
            topic=str(topic),
            kind=kind,
            reply_to=str(interaction["message"]["id"]),
            sender=sender,
        ),
        sender=sender,
        sender_name=name,
        mentioned=True,
        choice=Choice(str(plan), str(button)),
    )


def custom_id(plan: str, button: str, topic: str) -> str:
    """Returns the id of a button, which comes back when it is pressed."""
    return BUTTON + json.dumps([plan, button, topic], separators=(",", ":"))


def _who_and_where(interaction: Mapping[str, Any]) -> tuple[Place, Literal["private", "group"], str, str]:
    """Returns the place of an interaction, its kind, and the id and name of its person."""
    member = interaction.get("member")
    user = member["user"] if member else interaction["user"]
    place = place_of(interaction["channel"])
    return place, "group" if interaction.get("guild_id") else "private", str(user["id"]), _name(user, member)


def _readable(text: str, people: Sequence[Mapping[str, Any]]) -> str:
    """Returns a text with the names of those whom it mentions, and of emojis."""
    names = {str(user["id"]): _name(user, user.get("member")) for user in people[:MOST_MENTIONS]}

    def replaced(entity: re.Match[str]) -> str:
        kind, identity, emoji = entity.groups()
        if emoji:
            return str(emoji)
        return mention(names.get(identity, ""), identity) if kind in ("@", "@!") else f"{kind[0]}{identity}"

    return _ENTITY.sub(replaced, text)


def _name(user: Mapping[str, Any], member: Mapping[str, Any] | None) -> str:
    return str((member or {}).get("nick") or user.get("global_name") or user.get("username") or "")


def _quoted(message: Mapping[str, Any], answered: Mapping[str, Any], *, to_bot: bool) -> Quoted | None:
    """Returns the message of a person that is answered, or the one that is forwarded."""
    if (message.get("message_reference") or {}).get("type") == _FORWARDED:
        snapshots = [each.get("message") or {} for each in message.get("message_snapshots") or ()]
        text = "\n\n".join(_readable(str(each.get("content") or ""), each.get("mentions") or ()) for each in snapshots)
        return Quoted(text) if text else None
    text = _readable(str(answered.get("content") or ""), answered.get("mentions") or ())
    return Quoted(text, _name(answered["author"], None)) if text and not to_bot else None


def _attachment(file: Mapping[str, Any], channel: str) -> Attachment:
    """Returns an attachment. Its id names the channel, too: its address expires, so it is asked for anew."""
    mime = str(file.get("content_type") or "").partition(";")[0]
    name, size = str(file.get("filename") or file["id"]), int(file.get("size") or 0)
    kind: Literal["image", "document", "voice", "video"] = "document"
    if "waveform" in file or mime.startswith("audio/"):
        kind = "voice"
    elif mime.startswith("image/"):
        kind = "image"
    elif mime.startswith("video/"):
        kind = "video"
    return Attachment(f"{channel}/{file['id']}", name, kind, mime, size)

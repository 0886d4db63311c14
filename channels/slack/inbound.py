"""Translation of what Slack delivers into messages: envelopes of Socket Mode to `ChatReceived`. Pure.

A message in a channel that mentions the bot arrives twice, as `message` and as `app_mention`, with the same `ts` and in
any order: both become the same message, so the inbox keeps one.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, NamedTuple

from core.chat.commands import umbrella
from core.chat.facts import Attachment, ChatReceived, Choice, Quoted, Target
from core.chat.people import MOST_MENTIONS, mention

_SUBTYPES = frozenset({"file_share", "thread_broadcast", "me_message"})
"""Subtypes of messages that people write; others are notices, as `channel_join`."""
_UMBRELLA = re.compile(r"/sika(-[\w-]*)?")
"""Slash commands whose first argument is the command: Slack has a `/status` of its own."""
_ENTITY = re.compile(r"<([^<>\n]+)>")
_PERSON = re.compile(r"<@([A-Z0-9]+)(?:\|[^<>\n]*)?>")
BUTTON = "sika:"
"""Begins the `action_id` of our buttons."""


class Identity(NamedTuple):
    """The bot: the results of `auth.test`."""

    team: str
    user: str
    bot: str


def chat_of(envelope: Mapping[str, Any]) -> str:
    """Returns the channel that an envelope is about, empty if none."""
    payload = _mapping(envelope.get("payload"))
    event = _mapping(payload.get("event"))
    pane = _mapping(event.get("assistant_thread")).get("channel_id")
    channel = event.get("channel") or pane or payload.get("channel_id") or payload.get("channel")
    return str(channel.get("id", "") if isinstance(channel, Mapping) else channel or "")


def opened(envelope: Mapping[str, Any]) -> tuple[str, str] | None:
    """Returns the channel and the thread of a conversation that a person has begun in the assistant pane. What channel
    they look at meanwhile (`assistant_thread_context_changed`) is not for the agent: it reads none that did not ask."""
    event = _mapping(_mapping(envelope.get("payload")).get("event"))
    if event.get("type") != "assistant_thread_started":
        return None
    thread = _mapping(event.get("assistant_thread"))
    return str(thread.get("channel_id") or ""), str(thread.get("thread_ts") or "")


def is_pane(message: Mapping[str, Any]) -> bool:
    """Tells whether a message is the one with which Slack begins a thread of the assistant pane."""
    return message.get("subtype") == "assistant_app_thread"


def translate(
    envelope: Mapping[str, Any], bot: Identity, names: Mapping[str, str] = MappingProxyType({})
) -> ChatReceived | None:
    """Returns the message or the pressed button in an envelope. None: there is none for the agent. `names`: of people
    who are mentioned, by id.

    Raises `KeyError`, `TypeError` or `ValueError` for an envelope that is not as documented.
    """
    payload = envelope["payload"]
    match envelope.get("type"):
        case "events_api":
            return _event(payload["event"], bot, names)
        case "slash_commands":
            return _slash(payload, names)
        case "interactive" if payload.get("type") == "block_actions":
            return _press(payload)
    return None


def mentioned(envelope: Mapping[str, Any], bot: Identity) -> list[str]:
    """Returns the ids of the people whom an envelope's message mentions, without the bot."""
    payload = _mapping(envelope.get("payload"))
    event = _mapping(payload.get("event"))
    message = _mapping(event.get("message")) or event
    shared = [_mapping(each).get("text") for each in message.get("attachments") or ()]
    return [person for person in people_in(message.get("text"), payload.get("text"), *shared) if person != bot.user]


def people_in(*texts: Any) -> list[str]:
    """Returns the ids of the people whom Slack's texts mention, each once."""
    ids = (match[1] for text in texts if isinstance(text, str) for match in _PERSON.finditer(text))
    return list(dict.fromkeys(ids))[:MOST_MENTIONS]


def _event(event: Mapping[str, Any], bot: Identity, names: Mapping[str, str]) -> ChatReceived | None:
    if event["type"] not in ("message", "app_mention"):
        return None
    message, edited = event, ""
    if _is_deletion(event):
        return _deleted(event, bot)
    if event.get("subtype") == "message_changed":
        message = event["message"]
        edited = str(_mapping(message.get("edited")).get("ts", ""))
        # Also sent when a link is unfurled, and for each of our own updates.
        if not edited or message.get("text") == _mapping(event.get("previous_message")).get("text"):
            return None
    if not _is_written(message, bot):
        return None
    sender, chat, ts = message["user"], event["channel"], message["ts"]
    private = is_private(chat)
    of_bot = re.compile(rf"[ \t]*<@{re.escape(bot.user)}(\|[^<>]*)?>[ \t]*")
    raw = str(message.get("text") or "")
    text = readable(of_bot.sub(" ", raw), names).strip()
    attachments = tuple(_attachment(file) for file in message.get("files") or () if file.get("id"))
    quoted = _shared(message, names)
    named = event["type"] == "app_mention" or of_bot.search(raw) is not None
    if not (text or attachments or quoted or named):
        return None
    return ChatReceived(
        message=ts,
        target=_target(chat, message),
        sender=sender,
        sender_name=_name(_mapping(message.get("user_profile"))),
        text=text,
        attachments=attachments,
        quoted=quoted,
        mentioned=private or named or message.get("parent_user_id") == bot.user,
        edited=edited,
        sent_at=_at(ts),
    )


def _is_deletion(event: Mapping[str, Any]) -> bool:
    """Tells whether a message is gone; one with a thread below it is shown as its tombstone from then on."""
    tombstone = _mapping(event.get("message")).get("subtype") == "tombstone"
    return event.get("subtype") == "message_deleted" or (event.get("subtype") == "message_changed" and tombstone)


def _deleted(event: Mapping[str, Any], bot: Identity) -> ChatReceived | None:
    message = _mapping(event.get("previous_message"))
    if not message or not _is_written(message, bot):
        return None
    target = _target(event["channel"], message)
    return ChatReceived(message=message["ts"], target=target, sender=target.sender, deleted=True)


def _target(chat: str, message: Mapping[str, Any]) -> Target:
    """Returns where a message stands."""
    root, ts, private = message.get("thread_ts") or "", message["ts"], is_private(chat)
    return Target(
        chat=chat,
        topic=root if private else root or ts,
        kind="private" if private else "group",
        reply_to=ts,
        sender=message["user"],
    )


def _is_written(message: Mapping[str, Any], bot: Identity) -> bool:
    """Tells whether a person has written a message."""
    subtype, sender = message.get("subtype"), message.get("user") or ""
    if subtype and subtype not in _SUBTYPES:
        return False
    return not (message.get("bot_id") or message.get("bot_profile") or sender in ("", bot.user, "USLACKBOT"))


def _slash(payload: Mapping[str, Any], names: Mapping[str, str]) -> ChatReceived:
    """Slash commands do not work in threads, so they belong to the channel itself. What follows the umbrella command is
    a command of ours, or words.
    """
    command, text = str(payload["command"]), readable(str(payload.get("text") or ""), names).strip()
    if _UMBRELLA.fullmatch(command):
        command, text = "", umbrella(text)
    private = is_private(payload["channel_id"])
    return ChatReceived(
        message=f"command-{payload['trigger_id']}",
        target=Target(
            chat=payload["channel_id"], kind="private" if private else "group", sender=str(payload["user_id"])
        ),
        sender=str(payload["user_id"]),
        sender_name=str(payload.get("user_name") or ""),
        text=f"{command} {text}".strip(),
        mentioned=True,
    )


def _press(payload: Mapping[str, Any]) -> ChatReceived | None:
    [action] = payload["actions"]
    if not str(action.get("action_id", "")).startswith(BUTTON):
        return None
    plan, button, topic = parse_value(str(action["value"]))
    chat, user = payload["channel"]["id"], payload["user"]
    return ChatReceived(
        message=str(action["action_ts"]),
        target=Target(
            chat=chat,
            topic=topic,
            kind="private" if is_private(chat) else "group",
            reply_to=str(_mapping(payload.get("message")).get("ts", "")),
            sender=str(user["id"]),
        ),
        sender=str(user["id"]),
        sender_name=str(user.get("name") or user.get("username") or ""),
        mentioned=True,
        choice=Choice(plan, button),
        sent_at=_at(str(action["action_ts"])),
    )


def value_of(plan: str, button: str, topic: str) -> str:
    """Returns the value of a button, which comes back when it is pressed."""
    return json.dumps([plan, button, topic], separators=(",", ":"))


def parse_value(value: str) -> tuple[str, str, str]:
    """Returns plan, button and topic of a button's value. Raises `ValueError`."""
    plan, button, topic = json.loads(value)
    return str(plan), str(button), str(topic)


def quoted(message: Mapping[str, Any], author: str, names: Mapping[str, str]) -> Quoted | None:
    """Returns a message as it was read from Slack; None if it has no words."""
    text = readable(str(message.get("text") or ""), names).strip()
    return Quoted(text, author) if text else None


def is_private(chat: str) -> bool:
    """Returns whether a channel is a conversation of one person with the bot."""
    return chat.startswith("D")


def readable(text: str, names: Mapping[str, str]) -> str:
    """Returns a message's text without Slack's escapes: links, people and channels as a reader sees them."""
    return html.unescape(_ENTITY.sub(lambda entity: _written(entity[1], names), text))


def _written(entity: str, names: Mapping[str, str]) -> str:
    address, _, label = entity.partition("|")
    match address[:1]:
        case "@":
            name = names.get(address[1:]) or html.unescape(label.lstrip("@"))
            return html.escape(mention(name, address[1:]), quote=False)
        case "#":
            return f"#{label.lstrip('#') or address[1:]}"
        case "!":
            kind = address[1:].split("^")[0]
            return label or f"@{kind}"
    if not label or label in (address, address.removeprefix("mailto:").removeprefix("tel:")):
        return label or address
    return f"[{label}]({address})"


def _shared(message: Mapping[str, Any], names: Mapping[str, str]) -> Quoted | None:
    """Returns the messages that a person shares; links that Slack unfurls are none."""
    shared = [_mapping(each) for each in message.get("attachments") or ()]
    shared = [each for each in shared if (each.get("is_share") or each.get("is_msg_unfurl")) and each.get("text")]
    if not shared:
        return None
    authors = dict.fromkeys(str(each.get("author_name") or "") for each in shared)
    return Quoted("\n\n".join(readable(str(each["text"]), names) for each in shared), ", ".join(filter(None, authors)))


def _attachment(file: Mapping[str, Any]) -> Attachment:
    mime = str(file.get("mimetype") or "")
    transcription = _mapping(file.get("transcription"))
    return Attachment(
        id=str(file["id"]),
        name=str(file.get("name") or file.get("title") or file["id"]),
        kind=_kind(mime, str(file.get("subtype") or "")),
        mime=mime,
        size=int(file.get("size") or 0),
        transcript=str(_mapping(transcription.get("preview")).get("content") or ""),
    )


def _kind(mime: str, subtype: str) -> Any:
    if mime.startswith("image/"):
        return "image"
    if subtype == "slack_audio" or mime.startswith("audio/"):
        return "voice"
    return "video" if mime.startswith("video/") else "document"


def _name(profile: Mapping[str, Any]) -> str:
    return str(profile.get("display_name") or profile.get("real_name") or "")


def _at(ts: str) -> str:
    return datetime.fromtimestamp(float(ts), UTC).isoformat()


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}

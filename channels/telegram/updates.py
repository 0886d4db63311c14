"""The translation of updates to messages. A topic is one of DeerFlow's, or one of a forum."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal

from cachetools import FIFOCache
from telegram import CallbackQuery, Chat, Message, MessageEntity, Update, User

from channels.telegram.texts import choice_of
from channels.telegram.traits import COMMANDS
from core.chat.facts import Attachment, ChatReceived, Quoted, Target
from core.chat.people import mention

ALLOWED = ("message", "edited_message", "callback_query", "stopped_message_generation")
"""The updates that the bot asks for. Telegram remembers them, and sends the last one only to who asks for it."""
FORUM = "forum:"
"""The mark of a forum's topic in `Target.topic`; without it, a topic is the message that begins a chain of replies."""
_SPACE = " ".encode("utf-16-le")
_COMMAND = re.compile(r"/(\w+)(?:@(\w+))?(?=\s|$)")


def received(update: Update, bot: User, people: FIFOCache[str, User] | None = None) -> ChatReceived | None:
    """Returns the message of an update. None: it says nothing, or comes from a bot. `people`: by user name in lower
    case, those who were seen; those of the update are added."""
    people = FIFOCache(1) if people is None else people
    if update.callback_query:
        return _pressed(update.callback_query)
    if message := update.edited_message or update.message:
        _note(message, people)
        return _written(message, bot, people)
    stopped = update.api_kwargs.get("stopped_message_generation")
    return _stopped(stopped) if stopped else None


def thread_of(topic: str) -> int | None:
    """Returns the `message_thread_id` of a topic, None outside of forums."""
    return int(topic.removeprefix(FORUM)) if topic.startswith(FORUM) else None


def _note(message: Message, people: FIFOCache[str, User]) -> None:
    """Notes the people of a message: Telegram has no way to look for one by the user name that mentions them."""
    replied = message.reply_to_message
    for user in (message.from_user, replied.from_user if replied else None, *message.new_chat_members):
        if user is not None and user.username:
            people[user.username.lower()] = user


def _written(message: Message, bot: User, people: Mapping[str, User]) -> ChatReceived | None:
    sender = message.from_user
    if sender is None or sender.is_bot or message.is_automatic_forward or _is_for_another_bot(message, bot):
        return None
    text, mentioned = _words(message, bot, people)
    attachment = _attachment(message)
    if not text and attachment is None and not mentioned:
        return None
    answers = _replied_to(message)
    mentioned = mentioned or (answers is not None and answers.from_user is not None and answers.from_user.id == bot.id)
    private = message.chat.type == Chat.PRIVATE
    return ChatReceived(
        message=str(message.message_id),
        target=Target(
            chat=str(message.chat.id),
            topic=_topic(message, answers),
            kind="private" if private else "group",
            reply_to=str(message.message_id),
            sender=str(sender.id),
        ),
        sender=str(sender.id),
        sender_name=sender.full_name,
        text=text,
        attachments=(attachment,) if attachment else (),
        album=message.media_group_id or "",
        mentioned=private or mentioned,
        quoted=_quoted(message, answers, people),
        edited=message.edit_date.isoformat() if message.edit_date else "",
        sent_at=message.date.isoformat(),
    )


def _pressed(query: CallbackQuery) -> ChatReceived | None:
    """Each press has an id of its own, so that one by somebody who may not decide hides nobody else's."""
    choice = choice_of(query.data or "")
    if choice is None or query.message is None or query.from_user.is_bot:
        return None
    message = query.message
    private = message.chat.type == Chat.PRIVATE
    topic = _topic(message, message) if isinstance(message, Message) else str(message.message_id)
    return ChatReceived(
        message=query.id,
        target=Target(
            chat=str(message.chat.id),
            topic="" if private and not topic.startswith(FORUM) else topic,
            kind="private" if private else "group",
            reply_to=str(message.message_id),
            sender=str(query.from_user.id),
        ),
        sender=str(query.from_user.id),
        sender_name=query.from_user.full_name,
        mentioned=True,
        choice=choice,
    )


def _stopped(stopped: Mapping[str, Any]) -> ChatReceived:
    """Returns the command that the stop button of a draft stands for. Drafts are shown in private chats only, whose id
    is the person's."""
    chat = str(stopped["chat"]["id"])
    thread = stopped.get("message_thread_id")
    return ChatReceived(
        message=f"stop-{stopped['draft_id']}",
        target=Target(chat=chat, topic=f"{FORUM}{thread}" if thread else "", sender=chat),
        sender=chat,
        text="/stop",
        mentioned=True,
    )


def _replied_to(message: Message) -> Message | None:
    """Returns the message that this one answers. In a forum, messages answer the one that began the topic, unless a
    person chose another."""
    answered = message.reply_to_message
    return None if answered is None or answered.forum_topic_created else answered


def _quoted(message: Message, answers: Message | None, people: Mapping[str, User]) -> Quoted | None:
    """Returns the part that a person chose of a message that they answer, else all of it."""
    text = message.quote.text if message.quote else ""
    if not text and answers:
        entities = answers.entities or answers.caption_entities
        text = _replaced(answers.text or answers.caption or "", entities, people) or _description(answers)
    if not text:
        return None
    sender, chat = (answers.from_user, answers.sender_chat) if answers else (None, None)
    author = chat.effective_name if chat else sender.full_name if sender else ""
    return Quoted(text, author or "")


def _topic(message: Message, answers: Message | None) -> str:
    if message.is_topic_message and message.message_thread_id:
        return f"{FORUM}{message.message_thread_id}"
    if message.chat.type == Chat.PRIVATE:
        return ""
    return str((answers or message).message_id)


def _words(message: Message, bot: User, people: Mapping[str, User]) -> tuple[str, bool]:
    """Returns the text without mentions of the bot and with people's names, and whether it mentions the bot or is
    a command to it."""
    text = message.text or message.caption or ""
    entities = message.entities or message.caption_entities
    pieces = [(entity, _without_bot(entity, words, bot)) for entity, words in _entities(text, entities)]
    addresses = [(entity, rest) for entity, rest in pieces if rest is not None]
    instead = {id(entity): rest for entity, rest in addresses}
    text = _replaced(text, entities, people, instead).strip()
    addressed = any(entity.offset == 0 and not rest for entity, rest in addresses)
    return (text.lstrip(",: ") if addressed else text) or _description(message), bool(addresses)


def _entities(text: str, entities: Sequence[MessageEntity]) -> Iterator[tuple[MessageEntity, str]]:
    """Yields the entities of a text, the last first, and their words. Offsets are UTF-16 units."""
    units = text.encode("utf-16-le")
    for entity in sorted(entities, key=lambda entity: -entity.offset):
        begin, end = 2 * entity.offset, 2 * (entity.offset + entity.length)
        yield entity, units[begin:end].decode("utf-16-le", "replace")


def _replaced(
    text: str,
    entities: Sequence[MessageEntity],
    people: Mapping[str, User],
    instead: Mapping[int, str] = MappingProxyType({}),
) -> str:
    """Returns a text with the names of those whom it mentions, and the addresses of links. `instead`: what entities
    become, by `id`; the blank after one that becomes nothing goes."""
    units = text.encode("utf-16-le")
    for entity, words in _entities(text, entities):
        begin, end = 2 * entity.offset, 2 * (entity.offset + entity.length)
        rest, replacement = units[end:], instead.get(id(entity))
        if replacement is None:
            replacement = _named(entity, words, people)
        elif not replacement:
            rest = rest.removeprefix(_SPACE)
        units = units[:begin] + replacement.encode("utf-16-le") + rest
    return units.decode("utf-16-le", "replace")


def _named(entity: MessageEntity, words: str, people: Mapping[str, User]) -> str:
    """Returns an entity that is not about the bot, as the agent reads it."""
    if entity.type == MessageEntity.TEXT_LINK and entity.url and entity.url != words:
        return f"{words} ({entity.url})"
    user = entity.user if entity.type == MessageEntity.TEXT_MENTION else None
    if entity.type == MessageEntity.MENTION:
        user = people.get(words.removeprefix("@").lower())
    return mention(user.full_name, str(user.id)) if user else words


def _without_bot(entity: MessageEntity, words: str, bot: User) -> str | None:
    """Returns what is left of an entity that addresses the bot, None if it does not."""
    name = (bot.username or "").lower()
    if entity.type == MessageEntity.MENTION and words.lower() == f"@{name}":
        return ""
    if entity.type == MessageEntity.TEXT_MENTION and entity.user and entity.user.id == bot.id:
        return ""
    if entity.type == MessageEntity.BOT_COMMAND and (match := _COMMAND.fullmatch(words)):
        command, addressee = match.groups()
        if addressee is None:
            return words if entity.offset == 0 and command.lower() in COMMANDS else None
        return f"/{command}" if addressee.lower() == name else None
    return None


def _is_for_another_bot(message: Message, bot: User) -> bool:
    """Tells whether a message in a group begins with a command that names its bot: `/stop@other_bot`."""
    command = _COMMAND.match(message.text or message.caption or "")
    if command is None or message.chat.type == Chat.PRIVATE:
        return False
    return (command[2] or bot.username or "").lower() != (bot.username or "").lower()


def _attachment(message: Message) -> Attachment | None:
    stem = str(message.message_id)
    if message.photo:
        largest = message.photo[-1]
        return Attachment(largest.file_id, f"photo-{stem}.jpg", "image", "image/jpeg", largest.file_size or 0)
    if document := message.animation or message.document:
        mime = document.mime_type or ""
        name = document.file_name or f"file-{stem}"
        kind: Literal["image", "document"] = "image" if mime.startswith("image/") else "document"
        return Attachment(document.file_id, name, kind, mime, document.file_size or 0)
    if voice := message.voice:
        return Attachment(voice.file_id, f"voice-{stem}.ogg", "voice", voice.mime_type or "", voice.file_size or 0)
    if audio := message.audio:
        name = audio.file_name or f"audio-{stem}"
        return Attachment(audio.file_id, name, "document", audio.mime_type or "", audio.file_size or 0)
    if video := message.video:
        name = video.file_name or f"video-{stem}.mp4"
        return Attachment(video.file_id, name, "video", video.mime_type or "", video.file_size or 0)
    if note := message.video_note:
        return Attachment(note.file_id, f"video-{stem}.mp4", "video", "video/mp4", note.file_size or 0)
    return None


def _description(message: Message) -> str:
    """Returns words for what has none: stickers, places, contacts, polls, dice."""
    if message.sticker:
        return message.sticker.emoji or "Sticker"
    if venue := message.venue:
        return f"{venue.title}, {venue.address} ({venue.location.latitude}, {venue.location.longitude})"
    if message.location:
        return f"Location: {message.location.latitude}, {message.location.longitude}"
    if contact := message.contact:
        return " ".join(filter(None, ("Contact:", contact.first_name, contact.last_name, contact.phone_number)))
    if poll := message.poll:
        return "\n".join((f"Poll: {poll.question}", *(f"- {option.text}" for option in poll.options)))
    if message.dice:
        return f"{message.dice.emoji} {message.dice.value}"
    return ""

"""Slack behind the port of chat platforms: what an account can say and show.

Every message carries its key in its metadata, so one whose answer was lost is looked for (`find`) and not posted twice.
Files cannot have metadata: their key is the `block_id` of the line below them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from time import monotonic
from typing import Any
from weakref import WeakSet

import anyio
import msgspec
import structlog
from cachetools import FIFOCache

from channels.chat.sockets import PING_SECONDS
from channels.markup import slack as markup
from channels.slack import inbound
from channels.slack.draft import SlackDraft
from channels.slack.inbound import Identity
from channels.slack.messages import EVENT_TYPE, STATUS, block_id, key_of, plainly, rendered
from channels.slack.socket import listen
from channels.slack.traits import TRAITS
from channels.slack.web import Web, code_of
from core.chat.facts import Attachment, ChatReceived, Target
from core.chat.people import Names
from core.chat.port import (
    DRAFT,
    ChatGone,
    Content,
    CredentialsDead,
    File,
    Finding,
    Receive,
    Rejected,
    Report,
    Traits,
)
from core.chat.sizes import too_large
from core.errors import Invalid, Unavailable

log = structlog.get_logger("sika.channels.slack")

BASE_URL = "https://slack.com/api/"
PAGES = 10
PAGE = 200
"""Messages that `find` looks through: at most `PAGES * PAGE`."""
LOOK_UP_SECONDS = 0.8
"""Most time to ask for names, or for the beginning of a thread, which makes three in a row: Slack waits 3 s for an
acknowledgement."""
STATUS_SECONDS = 60.0
"""Slack clears a status that is not renewed after two minutes."""
REMEMBERED = 1000
"""People, threads and channels."""
MOST_FILES = 10
"""Files of a message: as many as the elements of the `context` block below them, which names them."""
PROMPTS = (
    "What can you do?",
    "Find something out on the web, with its sources",
    "Make a table or a chart of a file that I send",
)
"""First questions that the assistant pane offers."""
MOST_PROMPTS = 4
TITLE = 80
"""Characters of the title of a conversation."""
PROBES = 5
"""Messages that may be an open stream, of which Slack is asked."""
KEYS_SCOPE = "metadata.message:read"
_BLOCKS_REFUSED = ("invalid_blocks", "msg_blocks_too_long")
SCOPES: Mapping[str, str] = {
    "app_mentions:read": "to be mentioned in channels",
    "assistant:write": "to show that it works, and to offer first questions",
    "channels:history": "to read in public channels",
    "chat:write": "to answer",
    "commands": "for /sika",
    "files:read": "to take files",
    "files:write": "to send files",
    "groups:history": "to read in private channels",
    "im:history": "to read direct messages",
    KEYS_SCOPE: "to see which of its messages have arrived",
    "mpim:history": "to read group messages",
    "reactions:write": "to show that it works where there is no status",
    "users:read": "to know the names of people",
}
"""Scopes of the bot token, and what for. The manifest in the documentation has the same."""


def connect(settings: Mapping[str, Any]) -> SlackPlatform:
    """Returns the platform for an account's settings. Raises `Invalid` for missing or mistaken credentials."""
    tokens = []
    for key, prefix in (("bot_token", "xoxb-"), ("app_token", "xapp-")):
        token = settings.get(key)
        if not isinstance(token, str) or not token.strip().startswith(prefix):
            raise Invalid(f"{key}: expected a token that begins with {prefix}")
        tokens.append(token.strip())
    prompts = settings.get("suggested_prompts", PROMPTS)
    if not isinstance(prompts, list | tuple) or len(prompts) > MOST_PROMPTS or not all(map(_is_prompt, prompts)):
        raise Invalid(f"suggested_prompts: expected a list of at most {MOST_PROMPTS} texts")
    return SlackPlatform(*tokens, base_url=str(settings.get("base_url") or BASE_URL), prompts=prompts)


def _is_prompt(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


class SlackPlatform:
    """One account of Slack. Implements `core.chat.port.Platform`."""

    traits: Traits = TRAITS

    def __init__(
        self,
        bot_token: str,
        app_token: str,
        *,
        base_url: str = BASE_URL,
        ping_seconds: float = PING_SECONDS,
        prompts: Sequence[str] = (),
    ) -> None:
        self.web = Web(bot_token, app_token, base_url)
        self._ping_seconds = ping_seconds
        self._known_bot: Identity | None = None
        self._names = Names(REMEMBERED)
        self._names_are_allowed = True
        self._known_roots: FIFOCache[tuple[str, str], None] = FIFOCache(REMEMBERED)
        """Channels and threads of which the agent has read the beginning."""
        self._prompts = prompts
        self._untitled: FIFOCache[tuple[str, str], None] = FIFOCache(REMEMBERED)
        """Conversations of the assistant pane in which nothing was written yet."""
        self._working: FIFOCache[tuple[str, str, str], tuple[str, float]] = FIFOCache(REMEMBERED)
        self._status_is_allowed = True
        self._drafts: WeakSet[SlackDraft] = WeakSet()
        self._streamless: FIFOCache[str, None] = FIFOCache(REMEMBERED)
        """Channels in which native streams were refused."""
        self._perhaps_closed: FIFOCache[str, None] = FIFOCache(REMEMBERED)
        """Messages that were streams, if a look has closed them whose answer was lost."""

    async def bot(self) -> Identity:
        """Returns who the bot is. Raises `CredentialsDead` and `Unavailable`."""
        return self._known_bot or await self._authorise()

    async def _authorise(self) -> Identity:
        answer = await self.web.call("auth.test")
        self._known_bot = Identity(str(answer["team_id"]), str(answer["user_id"]), str(answer.get("bot_id") or ""))
        return self._known_bot

    async def check(self) -> Sequence[Finding]:
        findings = []
        try:
            answer = await self.web.call("auth.test")
            findings.append(Finding(True, f"bot token: {answer.get('user')} in {answer.get('team')}"))
            for scope, purpose in SCOPES.items():
                if scope not in self.web.granted:
                    advice = "OAuth & Permissions → Bot Token Scopes → add it, then reinstall the app"
                    findings.append(Finding(False, f"scope {scope} is missing ({purpose})", advice))
        except (Invalid, Unavailable) as error:
            findings.append(
                Finding(False, f"bot token: {error}", "OAuth & Permissions → Bot User OAuth Token (xoxb-…)")
            )
        try:
            await self.web.socket_url()
            findings.append(Finding(True, "app token: Socket Mode is on"))
        except (Invalid, Unavailable) as error:
            advice = "Basic Information → App-Level Tokens → a token with connections:write; Socket Mode → enable"
            findings.append(Finding(False, f"app token: {error}", advice))
        return findings

    async def listen(self, receive: Receive, report: Report) -> None:
        async def handle(envelope: Mapping[str, Any]) -> None:
            bot = await self.bot()
            if (pane := inbound.opened(envelope)) is not None:
                return await self._suggest(*pane)
            try:
                event = inbound.translate(envelope, bot)
                if event is not None:
                    event = await self._with_names(event, envelope, bot)
            except (KeyError, TypeError, ValueError) as error:
                # It would be the same at each delivery.
                log.warning(
                    "an event of Slack is not as documented", type=envelope.get("type"), error=type(error).__name__
                )
                return
            if event is not None:
                await receive(await self._with_root(event))
                if event.mentioned:
                    self._known_roots[event.target.chat, event.target.topic] = None
                await self._title(event)

        await listen(self.web, handle, report, authorise=self._authorise, ping_seconds=self._ping_seconds)

    async def _suggest(self, chat: str, thread: str) -> None:
        """Offers the first questions of a conversation in the assistant pane."""
        self._known_roots[chat, thread] = self._untitled[chat, thread] = None
        if not self._prompts:
            return
        prompts = [{"title": prompt, "message": prompt} for prompt in self._prompts]
        await self._decorate(
            "assistant.threads.setSuggestedPrompts", channel_id=chat, thread_ts=thread, prompts=prompts
        )

    async def _title(self, event: ChatReceived) -> None:
        """Names a conversation of the assistant pane by its first words: Slack lists it by that."""
        target = event.target
        if (target.chat, target.topic) not in self._untitled or not (title := " ".join(event.text.split())[:TITLE]):
            return
        del self._untitled[target.chat, target.topic]
        await self._decorate("assistant.threads.setTitle", channel_id=target.chat, thread_ts=target.topic, title=title)

    async def _decorate(self, method: str, **arguments: Any) -> None:
        """Makes a call of which nothing depends."""
        try:
            with anyio.fail_after(LOOK_UP_SECONDS):
                await self.web.call(method, **arguments)
        except (Invalid, Unavailable, TimeoutError) as error:
            log.info("the assistant pane was not changed", method=method, reason=str(error))

    async def _with_root(self, event: ChatReceived) -> ChatReceived:
        """Returns a message for the agent with the one that its thread began with, if the agent has not read that."""
        target = event.target
        begins = target.topic in ("", event.message) or (target.chat, target.topic) in self._known_roots
        if begins or event.quoted is not None or event.choice is not None or not event.mentioned:
            return event
        try:
            with anyio.fail_after(LOOK_UP_SECONDS):
                answer = await self.web.call("conversations.replies", channel=target.chat, ts=target.topic, limit=1)
            [root, *_] = [message for message in answer["messages"] if not inbound.is_pane(message)]
        except (Invalid, Unavailable, TimeoutError, ValueError):
            return event
        author = str(root.get("user") or "")
        names = await self._names_of([author, *inbound.people_in(root.get("text"))])
        return msgspec.structs.replace(event, quoted=inbound.quoted(root, names[author], names))

    async def _with_names(self, event: ChatReceived, envelope: Mapping[str, Any], bot: Identity) -> ChatReceived:
        """Returns the message of an envelope with the names of its sender and of those whom it mentions."""
        people = inbound.mentioned(envelope, bot)
        names = await self._names_of([event.sender, *people] if not event.sender_name else people)
        event = inbound.translate(envelope, bot, names) or event
        return msgspec.structs.replace(event, sender_name=event.sender_name or names.get(event.sender, ""))

    async def _names_of(self, people: Sequence[str]) -> dict[str, str]:
        """Returns the names of people by id, as far as Slack tells them at once."""
        names: dict[str, str] = dict.fromkeys(people, "")

        async def read(person: str) -> None:
            names[person] = await self._name_of(person)

        with anyio.move_on_after(LOOK_UP_SECONDS):
            async with anyio.create_task_group() as tasks:
                for person in names:
                    tasks.start_soon(read, person)
        return names

    async def _name_of(self, person: str) -> str:
        """Returns a person's name; empty if Slack does not tell it at once."""
        known = self._names.of(person)
        if known is not None or not person or not self._names_are_allowed:
            return known or ""
        try:
            with anyio.fail_after(LOOK_UP_SECONDS):
                answer = await self.web.call("users.info", user=person)
        except Rejected as error:
            self._names_are_allowed = code_of(error) != "missing_scope"
            return ""
        except (Invalid, Unavailable, TimeoutError):
            return self._names.get(person, ("", 0.0))[0]
        user = answer.get("user") or {}
        profile = user.get("profile") or {}
        name = str(profile.get("display_name") or user.get("real_name") or user.get("name") or "")
        self._names.note(person, name)
        return name

    def parts(self, text: str) -> Sequence[str]:
        return markup.parts(text)

    def draft(self, target: Target, key: str, message: str = "") -> SlackDraft:
        draft = SlackDraft(self, target, key, message)
        self._drafts.add(draft)
        return draft

    async def post(self, target: Target, content: Content, key: str) -> str:
        metadata = {"event_type": EVENT_TYPE, "event_payload": {"key": key}}
        place = {"channel": target.chat, "thread_ts": target.topic or None}
        body = {**place, "metadata": metadata, "unfurl_links": False, "unfurl_media": False}
        try:
            answer = await self.web.call("chat.postMessage", **body, **await rendered(target, content))
        except Rejected as error:
            if code_of(error) not in _BLOCKS_REFUSED:
                raise
            answer = await self.web.call("chat.postMessage", **body, **await plainly(target, content))
        return str(answer["ts"])

    async def edit(self, target: Target, message: str, content: Content) -> None:
        await self.edit_with(target, message, content, None)

    async def edit_with(self, target: Target, message: str, content: Content, key: str | None) -> None:
        """Changes a message, and its key if there is one."""
        metadata = None if key is None else {"event_type": EVENT_TYPE, "event_payload": {"key": key}}
        body: dict[str, Any] = {"channel": target.chat, "ts": message, "metadata": metadata}
        try:
            await self.web.call("chat.update", **body, **await rendered(target, content))
        except Rejected as error:
            if code_of(error) not in _BLOCKS_REFUSED:
                raise
            await self.web.call("chat.update", **body, **await plainly(target, content))

    async def find(self, target: Target, key: str, since: datetime) -> str | None:
        label = block_id(key)
        messages = await self._own_messages(target, since.timestamp())
        for message in messages:
            if key_of(message) == key or any(block.get("block_id") == label for block in message.get("blocks") or ()):
                return str(message["ts"])
        if key.endswith(DRAFT) and self.has_streams(target) and (stream := await self._open_stream(target, messages)):
            return stream
        if KEYS_SCOPE not in self.web.granted:
            # It may be there: to say that it is not would post it twice.
            raise Rejected(f"the app may not read the keys of its messages: the scope {KEYS_SCOPE} is missing")
        return None

    async def _open_stream(self, target: Target, messages: Sequence[Mapping[str, Any]]) -> str | None:
        """Returns the id of a native stream that no draft of this process is at work on. An open one has no metadata
        yet, and can be stopped."""
        known = {draft.message for draft in self._drafts}
        candidates = [
            str(message["ts"])
            for message in messages
            if not (message.get("metadata") or message.get("subtype") or message.get("files"))
        ]
        for ts in sorted(candidates, reverse=True)[:PROBES]:
            if ts in known:
                continue
            in_doubt, self._perhaps_closed[ts] = ts in self._perhaps_closed, None
            was_open = await self.stop_stream(target, ts)
            del self._perhaps_closed[ts]
            if was_open or in_doubt:
                return ts
        return None

    async def stop_stream(self, target: Target, message: str) -> bool:
        """Closes a native stream. Returns whether it was open."""
        try:
            await self.web.call("chat.stopStream", channel=target.chat, ts=message)
        except Rejected:
            # `message_not_in_streaming_state`, or a workspace without streams.
            return False
        except ChatGone as error:
            if code_of(error) != "message_not_found":
                raise
            return False
        return True

    def has_streams(self, target: Target) -> bool:
        """Returns whether native streams are possible, as far as is known: they need a thread."""
        return bool(target.topic) and target.chat not in self._streamless

    async def _own_messages(self, target: Target, since: float) -> Sequence[Mapping[str, Any]]:
        """Returns our messages in a conversation. `since`: Unix time in seconds. Raises `Unavailable` if there are more
        messages than it looks through."""
        bot = await self.bot()
        return [
            message
            async for message in self._messages(target, since)
            if message.get("user") == bot.user or (bot.bot and message.get("bot_id") == bot.bot)
        ]

    async def _messages(self, target: Target, since: float) -> AsyncIterator[Mapping[str, Any]]:
        method = "conversations.replies" if target.topic else "conversations.history"
        # Clocks differ by seconds: Slack's decides on `oldest`.
        options: dict[str, Any] = {"oldest": f"{max(0.0, since - 60):.6f}", "limit": PAGE, "include_all_metadata": 1}
        for _ in range(PAGES):
            answer = await self.web.call(method, channel=target.chat, ts=target.topic or None, **options)
            for message in answer.get("messages") or ():
                yield message
            options["cursor"] = str((answer.get("response_metadata") or {}).get("next_cursor") or "")
            if not options["cursor"]:
                return
        raise Unavailable(f"{target.chat}: more than {PAGES * PAGE} messages to look through")

    async def upload(self, target: Target, file: Path, name: str, key: str) -> str:
        [message] = await self.upload_bundle(target, [File(file, name, file.stat().st_size)], key)
        return message

    def bundle(self, files: Sequence[File]) -> int:
        return min(len(files), MOST_FILES)

    async def upload_bundle(self, target: Target, files: Sequence[File], key: str) -> Sequence[str]:
        uploaded = []
        for file in files:
            place = await self.web.call("files.getUploadURLExternal", filename=file.name, length=file.size)
            await self.web.send_bytes(str(place["upload_url"]), file.path)
            uploaded.append({"id": str(place["file_id"]), "title": file.name})
        names = [{"type": "plain_text", "text": file.name[:STATUS]} for file in files]
        line = {"type": "context", "block_id": block_id(key), "elements": names}
        place = {"channel_id": target.chat, "thread_ts": target.topic or None}
        await self.web.call("files.completeUploadExternal", files=uploaded, blocks=[line], **place)
        # Slack shares the files afterwards: their message has no id yet.
        return [""] * len(files)

    async def fetch(self, attachment: Attachment, message: str, into: Path, limit: int) -> None:
        file = (await self.web.call("files.info", file=attachment.id))["file"]
        if file.get("mode") in ("external", "tombstone", "hidden_by_limit"):
            raise Rejected(f"{attachment.name}: a file that Slack does not hold ({file['mode']})")
        if int(file.get("size") or 0) > limit:
            raise too_large(attachment.name, int(file["size"]), limit)
        url = file.get("url_private_download") or file.get("url_private")
        if not url:
            raise Rejected(f"{attachment.name}: Slack offers no download")
        await self.web.load_bytes(str(url), attachment, into, limit)

    async def working(self, target: Target, on: bool) -> None:
        way, at = self._working.get(_place(target), ("", 0.0))
        if on and (way == "reaction" or (way and monotonic() - at < STATUS_SECONDS)):
            return
        if on:
            if not await self.show_status(target, "is working…") and await self._reaction(target, True):
                self._working[_place(target)] = ("reaction", monotonic())
            return
        self._working.pop(_place(target), None)
        if way == "reaction":
            await self._reaction(target, False)
        elif way:
            await self.show_status(target, "")

    async def whisper(self, target: Target, text: str) -> None:
        place = {"channel": target.chat, "user": target.sender, "thread_ts": target.topic or None}
        content = await plainly(target, Content(text))
        await self.web.call("chat.postEphemeral", **place, **content)

    async def show_status(self, target: Target, text: str) -> bool:
        """Shows what is being done below a thread; an empty text takes it away, also where there is no room for more.
        Returns whether it did: it is an extra, of which nothing depends."""
        if not target.topic or not self._status_is_allowed:
            return False
        if text and not self.web.has_room("assistant.threads.setStatus"):
            return False
        place = {"channel_id": target.chat, "thread_ts": target.topic}
        try:
            await self.web.call("assistant.threads.setStatus", **place, status=text[:STATUS])
        except CredentialsDead:
            raise
        except Rejected as error:
            self._status_is_allowed = code_of(error) not in ("missing_scope", "unknown_method")
            return False
        except (Invalid, Unavailable):
            return False
        if text:
            self._working[_place(target)] = ("status", monotonic())
        return True

    async def _reaction(self, target: Target, on: bool) -> bool:
        if not target.reply_to:
            return False
        method = "reactions.add" if on else "reactions.remove"
        try:
            await self.web.call(method, channel=target.chat, timestamp=target.reply_to, name="eyes")
        except Rejected as error:
            return code_of(error) in ("already_reacted", "no_reaction")
        return True

    def refuse_streams(self, chat: str) -> None:
        """Notes that a channel does not take native streams."""
        self._streamless[chat] = None

    async def delete(self, target: Target, message: str) -> None:
        """Takes back a message of ours; one that is not there any more is gone already."""
        with suppress(ChatGone):
            await self.web.call("chat.delete", channel=target.chat, ts=message)

    async def close(self) -> None:
        await self.web.rest.close()


def _place(target: Target) -> tuple[str, str, str]:
    return target.chat, target.topic, target.reply_to

"""Discord behind the port of chat platforms: what an account can say and show.

A post carries a number made of its key (`nonce`), by which Discord recognises it for some minutes: the same again
within them answers with the message that is there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import structlog
import yarl
from anyio.abc import TaskGroup
from cachetools import LRUCache, TTLCache

from channels.chat.edited import EditedDraft
from channels.chat.lanes import Lanes, custody
from channels.chat.reconnecting import Ended, stay_connected
from channels.chat.rest import check_transfer
from channels.discord import inbound
from channels.discord.api import BASE_URL, Api
from channels.discord.content import NOBODY, body_of, growing, nonce
from channels.discord.gateway import (
    DIRECT_MESSAGES,
    GUILD_MESSAGES,
    GUILDS,
    MESSAGE_CONTENT,
    NO_CONTENT,
    Gateway,
)
from channels.discord.inbound import COMMAND, OPTION, Place, channel_of
from channels.discord.notes import REMEMBERED, Progress
from channels.discord.traits import TRAITS
from channels.markup import discord as markup
from core.chat.facts import Attachment, ChatReceived, Target
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
    unfinished,
)
from core.chat.sizes import too_large
from core.errors import Invalid, Unavailable

NONCES_LIVE = timedelta(minutes=7)
"""Discord knows a number for “the past few minutes”, here two of them; `find` is asked for what was sent within five
minutes more than the truth."""
TOKEN_SECONDS = 14 * 60.0
"""Discord takes answers to an interaction for 15 minutes."""
ACKNOWLEDGE_SECONDS = 2.5
"""Discord waits 3 s for the first answer to an interaction."""
NOTE_SECONDS = 1.0
"""Between notes of how far the events are in custody. After a kill, those of this time come again."""
MOST_FILES = 10
"""Attachments of a message."""
CATCH_UP = 100
"""Messages of a channel that are read after a session that could not be resumed."""
DEFERRED, DEFERRED_UPDATE, EPHEMERAL = 5, 6, 1 << 6
WHISPER = 2000
PERMISSIONS = 0x4000198C40
"""To see channels, send messages, also in threads, add files and reactions, read histories."""
_CONTENT_FLAGS = 1 << 18 | 1 << 19
_HANDLED_AT_ONCE = 64


class Gap(NamedTuple):
    """The messages of a channel after one, written while there was no session."""

    channel: str
    newest: str
    guild: str


class Deletion(NamedTuple):
    """A message that is gone: Discord names nothing else of it."""

    message: str


Delivery = Mapping[str, Any] | ChatReceived | Gap | Deletion
"""A message as Discord sends it, an interaction that is translated already, messages that are to be read, or one that
is gone."""

log = structlog.get_logger("sika.channels.discord")


class Bot(NamedTuple):
    """The bot's ids: its user, and its application."""

    user: str
    app: str


def connect(settings: Mapping[str, Any]) -> DiscordPlatform:
    """Returns the account of a bot. Raises `Invalid` for missing or mistaken settings."""
    token = str(settings.get("bot_token") or "").strip().removeprefix("Bot ")
    if token.count(".") != 2:
        raise Invalid("bot_token: expected the token of a bot, three parts with dots between them")
    content = settings.get("message_content", True)
    if not isinstance(content, bool):
        raise Invalid("message_content: expected true or false")
    guilds = settings.get("allowed_guilds") or ()
    ids = frozenset(str(each).strip() for each in (guilds if isinstance(guilds, list | tuple) else [guilds]))
    return DiscordPlatform(token, str(settings.get("base_url") or BASE_URL), message_content=content, guilds=ids)


class DiscordPlatform:
    """One bot. Implements `core.chat.port.Platform` and `Whispering`."""

    traits = TRAITS

    def __init__(
        self, token: str, base_url: str, *, message_content: bool = True, guilds: frozenset[str] = frozenset()
    ) -> None:
        self._token = token
        self._guilds = guilds
        """Servers to which it listens; all if empty."""
        self._api = Api(token, base_url)
        self._message_content = message_content
        self._bot: Bot | None = None
        self._progress = Progress()
        self._places: LRUCache[str, Place] = LRUCache(REMEMBERED)
        self._targets: LRUCache[str, Target] = LRUCache(REMEMBERED)
        """Where the messages of people stand, of which Discord tells only that they are gone."""
        self._tokens: TTLCache[tuple[str, str], str] = TTLCache(REMEMBERED, TOKEN_SECONDS)
        """The tokens of interactions that can still be answered, by message and person."""
        self._slots = anyio.Semaphore(_HANDLED_AT_ONCE)

    # ── listening ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def listen(self, receive: Receive, report: Report) -> None:
        async def take(delivery: Delivery) -> None:
            if isinstance(delivery, Gap):
                return await self._read(delivery, receive)
            match delivery:
                case ChatReceived():
                    event: ChatReceived | None = delivery
                case Deletion(message):
                    event = self._deleted(message)
                case _:
                    event = await self._translated(delivery)
            if event is not None:
                await receive(event)

        async with custody("discord", take) as lanes, anyio.create_task_group() as interactions:

            async def connection() -> Ended:
                await self._introduced()
                place = await self._api.call("GET", "/gateway/bot", effect=False)

                def offer(name: str, data: Mapping[str, Any], seq: int) -> bool:
                    return self._offer(name, data, seq, lanes, interactions)

                gateway = Gateway(self._api.rest.session(), self._progress.session, self._intents, offer, report)
                return await gateway.serve(str(place["url"]), self._token)

            interactions.start_soon(self._keep_notes)
            await stay_connected("discord", connection, report)

    def resume(self, notes: Path) -> None:
        self._progress.file = notes

    async def _keep_notes(self) -> None:
        try:
            while True:
                await anyio.sleep(NOTE_SECONDS)
                self._note()
        finally:
            self._note()

    def _note(self) -> None:
        if self._bot is not None:
            self._progress.save(self._bot.user)

    @property
    def _intents(self) -> int:
        return GUILDS | GUILD_MESSAGES | DIRECT_MESSAGES | (MESSAGE_CONTENT if self._message_content else 0)

    async def _introduced(self) -> Bot:
        """Returns who the bot is, once its command is registered, or was refused. Raises `CredentialsDead` and
        `Unavailable`."""
        if self._bot is None:
            try:
                user = await self._api.call("GET", "/users/@me", effect=False)
                app = await self._api.call("GET", "/applications/@me", effect=False)
            except (Rejected, ChatGone) as error:
                raise Unavailable(f"Discord does not tell who the bot is: {error}") from None
            bot = Bot(str(user["id"]), str(app["id"]))
            await self._register(bot)
            self._progress.load(bot.user)
            self._bot = bot
        return self._bot

    async def _register(self, bot: Bot) -> None:
        option = {"type": 3, "name": OPTION, "description": "a question, or a command: new, status, stop, help"}
        command = {"name": COMMAND, "type": 1, "description": "Ask the agent", "options": [option]}
        try:
            await self._api.call("POST", f"/applications/{bot.app}/commands", command, effect=False)
        except (Rejected, ChatGone) as error:
            log.warning("the slash command was not registered", reason=str(error))

    def _offer(
        self, name: str, data: Mapping[str, Any], seq: int, lanes: Lanes[Delivery], interactions: TaskGroup
    ) -> bool:
        """Takes an event of the gateway. Returns False if there is no place for it now."""
        if self._guilds and data.get("guild_id") and str(data["guild_id"]) not in self._guilds:
            return True
        match name:
            case "MESSAGE_CREATE" | "MESSAGE_UPDATE":
                return self._message(data, seq, lanes)
            case "MESSAGE_DELETE":
                return self._offered(str(data.get("channel_id")), Deletion(str(data.get("id"))), seq, lanes)
            case "MESSAGE_DELETE_BULK":
                for gone in data.get("ids") or ():
                    lanes.offer(str(data.get("channel_id")), Deletion(str(gone)), _nothing)
            case "INTERACTION_CREATE":
                try:
                    self._slots.acquire_nowait()
                except anyio.WouldBlock:
                    return False
                self._progress.begin(seq)
                interactions.start_soon(self._interaction, data, seq, lanes)
            case "READY":
                self._catch_up(lanes)
                self._note()  # at once: a process that is killed now leaves a session that can be resumed
        return True

    def _message(self, data: Mapping[str, Any], seq: int, lanes: Lanes[Delivery]) -> bool:
        channel = str(data.get("channel_id"))

        async def then() -> None:
            self._progress.end(seq)
            if not (data.get("author") or {}).get("bot"):
                self._progress.newest[channel] = (str(data.get("id")), str(data.get("guild_id") or ""))

        if not lanes.offer(channel, data, then):
            return False
        self._progress.begin(seq)
        return True

    def _offered(self, channel: str, delivery: Delivery, seq: int, lanes: Lanes[Delivery]) -> bool:
        async def then() -> None:
            self._progress.end(seq)

        if not lanes.offer(channel, delivery, then):
            return False
        self._progress.begin(seq)
        return True

    def _deleted(self, message: str) -> ChatReceived | None:
        target = self._targets.pop(message, None)
        return ChatReceived(message=message, target=target, sender=target.sender, deleted=True) if target else None

    def _catch_up(self, lanes: Lanes[Delivery]) -> None:
        """Has what was written between two sessions read, in the channels in which people have written: before what
        comes from now on."""
        for channel, (newest, guild) in list(self._progress.newest.items()):
            lanes.offer(channel, Gap(channel, newest, guild), _nothing)

    async def _read(self, gap: Gap, receive: Receive) -> None:
        """Takes the messages of a gap. Raises `Unavailable`."""
        params = {"after": gap.newest, "limit": str(CATCH_UP)}
        try:
            missed = await self._api.call("GET", f"/channels/{gap.channel}/messages", effect=False, params=params)
        except Invalid as error:
            log.info("messages of a gap were not read", reason=str(error))
            return
        for message in reversed(missed):
            if (event := await self._translated({**message, "guild_id": gap.guild})) is not None:
                await receive(event)

    async def _translated(self, data: Mapping[str, Any]) -> ChatReceived | None:
        """Returns the message of an event. Raises `Unavailable` if its place cannot be told."""
        assert self._bot is not None
        try:
            event = inbound.written(data, await self._place(data), self._bot.user)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            log.warning("an event of Discord is not as documented", error=type(error).__name__)
            return None
        if event is not None:
            self._targets[event.message] = event.target
        return event

    async def _place(self, message: Mapping[str, Any]) -> Place:
        channel, kind = str(message["channel_id"]), message.get("channel_type")
        if not message.get("guild_id") or (kind is not None and kind not in inbound.THREADS):
            return Place(channel)
        if channel not in self._places:
            try:
                place = inbound.place_of(await self._api.call("GET", f"/channels/{channel}", effect=False))
            except Invalid:
                return Place(channel)
            self._places[channel] = place
        return self._places[channel]

    # ── interactions ────────────────────────────────────────────────────────────────────────────────────────────────

    async def _interaction(self, data: Mapping[str, Any], seq: int, lanes: Lanes[Delivery]) -> None:
        """Acknowledges an interaction at once, then takes it into custody."""
        try:
            is_command = data["type"] == 2
            shown = await self._acknowledge(data, DEFERRED if is_command else DEFERRED_UPDATE)
            event = inbound.invoked(data, shown) if is_command else inbound.pressed(data)
            if event is None:
                return self._progress.end(seq)
            self._tokens[event.target.reply_to, event.sender] = str(data["token"])

            async def then() -> None:
                self._progress.end(seq)
                if is_command and event is not None:
                    await self._show_question(data, event.text)

            if not lanes.offer(str(data["channel"]["id"]), event, then) and is_command:
                await self._show_question(data, "I cannot take messages just now. Please send it again.")
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            log.warning("an interaction of Discord is not as documented", error=type(error).__name__)
            self._progress.end(seq)
        finally:
            self._slots.release()

    async def _acknowledge(self, data: Mapping[str, Any], kind: int) -> str:
        """Tells Discord that an interaction has arrived. Returns the message that stands for it; empty if there is
        none, or it is not known."""
        path = f"/interactions/{data['id']}/{data['token']}/callback"
        answer: Any = None
        with anyio.move_on_after(ACKNOWLEDGE_SECONDS):
            try:
                answer = await self._api.call("POST", path, {"type": kind}, params={"with_response": "true"})
            except (Invalid, Unavailable) as error:
                log.info("an interaction was not acknowledged", reason=str(error))
        return str(((answer or {}).get("interaction") or {}).get("response_message_id") or "")

    async def _show_question(self, data: Mapping[str, Any], text: str) -> None:
        """Puts what was asked by a command where it was asked: Discord shows people the name of the command only."""
        assert self._bot is not None
        path = f"/webhooks/{self._bot.app}/{data['token']}/messages/@original"
        quoted = "\n".join(f"> {line}" for line in text.split("\n"))
        body = {"content": markup.markdown(markup.parts(quoted)[0])}
        with anyio.move_on_after(ACKNOWLEDGE_SECONDS):
            try:
                await self._api.call("PATCH", path, {**body, "allowed_mentions": NOBODY}, effect=False)
            except (Invalid, Unavailable) as error:
                log.info("a command was not shown", reason=str(error))

    async def whisper(self, target: Target, text: str) -> None:
        token = self._tokens.get((target.reply_to, target.sender))
        if token is None or self._bot is None:
            raise Rejected("Discord shows a text to one person only when they press a button or give a command")
        body = {"content": markup.markdown(text)[:WHISPER], "flags": EPHEMERAL, "allowed_mentions": NOBODY}
        await self._api.call("POST", f"/webhooks/{self._bot.app}/{token}", body, effect=False)

    # ── speaking ────────────────────────────────────────────────────────────────────────────────────────────────────

    def parts(self, text: str) -> Sequence[str]:
        return markup.parts(text)

    def draft(self, target: Target, key: str, message: str = "") -> EditedDraft:
        return EditedDraft(self, target, key, message, growing=growing, delete=self._delete)

    async def post(self, target: Target, content: Content, key: str) -> str:
        body = {**await body_of(target, content), **_once(target, key)}
        return str((await self._api.call("POST", f"/channels/{channel_of(target)}/messages", body))["id"])

    async def edit(self, target: Target, message: str, content: Content) -> None:
        path = f"/channels/{channel_of(target)}/messages/{message}"
        await self._api.call("PATCH", path, await body_of(target, content), effect=False)

    async def _delete(self, target: Target, message: str) -> None:
        await self._api.call("DELETE", f"/channels/{channel_of(target)}/messages/{message}", effect=False)

    async def find(self, target: Target, key: str, since: datetime) -> str | None:
        """Returns None: it may be posted again with the same key. A draft is begun here, which tells whether it was
        begun before. Raises `Rejected` once Discord has forgotten the key."""
        if datetime.now(UTC) - since < NONCES_LIVE:
            return await self.post(target, unfinished("", "", key), key) if key.endswith(DRAFT) else None
        if key.endswith(DRAFT):
            return None
        raise Rejected("Discord knows the key of a message for a few minutes only")

    async def upload(self, target: Target, file: Path, name: str, key: str) -> str:
        size = (await anyio.Path(file).stat()).st_size
        if size > self.traits.largest_file:
            raise too_large(name, size, self.traits.largest_file)
        [message] = await self.upload_bundle(target, [File(file, name, size)], key)
        return message

    def bundle(self, files: Sequence[File]) -> int:
        return min(len(files), MOST_FILES)

    async def upload_bundle(self, target: Target, files: Sequence[File], key: str) -> Sequence[str]:
        names = [{"id": number, "filename": file.name} for number, file in enumerate(files)]
        body = {"attachments": names, "allowed_mentions": NOBODY, **_once(target, key)}
        path = f"/channels/{channel_of(target)}/messages"
        message = await self._api.post_files(path, body, files)
        return [str(message["id"])] * len(files)

    async def fetch(self, attachment: Attachment, message: str, into: Path, limit: int) -> None:
        channel, _, identity = attachment.id.partition("/")
        answer = await self._api.call("GET", f"/channels/{channel}/messages/{message}", effect=False)
        file = next((each for each in answer.get("attachments") or () if str(each.get("id")) == identity), None)
        if file is None:
            raise Rejected(f"{attachment.name}: it is not in the message any more")
        if int(file.get("size") or 0) > limit:
            raise too_large(attachment.name, int(file["size"]), limit)
        url = yarl.URL(str(file.get("url") or ""))
        if url.scheme != "https" and url.host != yarl.URL(self._api.rest.base_url).host:
            raise Rejected(f"{attachment.name}: Discord gives no address for it")
        transfer = await self._api.rest.download(str(url), attachment, into, limit)
        check_transfer(transfer, attachment.name, f"{attachment.name}: Discord does not have the file any more")

    async def working(self, target: Target, on: bool) -> None:
        path = f"/channels/{channel_of(target)}/typing"
        if on and not self._api.wait("POST", path):
            await self._api.call("POST", path, effect=False)

    async def close(self) -> None:
        await self._api.rest.close()

    # ── checking ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def check(self) -> Sequence[Finding]:
        try:
            user = await self._api.call("GET", "/users/@me", effect=False)
            app = await self._api.call("GET", "/applications/@me", effect=False)
            servers = await self._api.call("GET", "/users/@me/guilds", effect=False)
            gateway = await self._api.call("GET", "/gateway/bot", effect=False)
        except CredentialsDead as error:
            return [Finding(False, "the bot token", str(error))]
        except (Invalid, Unavailable) as error:
            return [Finding(False, f"the connection to Discord: {error}", "Is the network open to discord.com?")]
        findings = [Finding(True, f"the bot token is that of {user.get('username')}")]
        may_read = int(app.get("flags") or 0) & _CONTENT_FLAGS
        if self._message_content:
            what = "the bot may read messages" if may_read else "the bot may not read messages"
            findings.append(Finding(bool(may_read), what, "" if may_read else NO_CONTENT))
        else:
            findings.append(Finding(True, "in servers, the bot reads only what mentions it or answers it"))
        invite = (
            f"https://discord.com/oauth2/authorize?client_id={app['id']}&scope=bot+applications.commands"
            f"&permissions={PERMISSIONS}"
        )
        findings.append(
            Finding(bool(servers), f"the bot is in {len(servers)} servers", "" if servers else f"Invite it: {invite}")
        )
        left = int((gateway.get("session_start_limit") or {}).get("remaining", 1))
        findings.append(Finding(left > 0, f"the gateway lets it connect {left} times today"))
        return findings


def _once(target: Target, key: str) -> dict[str, Any]:
    """Returns what a new message has besides its content: its key, and in a channel the message that it answers."""
    once: dict[str, Any] = {"nonce": nonce(key), "enforce_nonce": True}
    if target.kind == "group" and target.reply_to:
        once["message_reference"] = {"message_id": target.reply_to, "fail_if_not_exists": False}
    return once


async def _nothing() -> None:
    """There is nothing to acknowledge."""

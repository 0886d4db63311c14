"""Telegram's Bot API with long polling."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import takewhile
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import structlog
from anyio.abc import TaskGroup
from cachetools import FIFOCache
from telegram import User

from channels.chat.presses import Press, Presses
from channels.chat.reconnecting import pause_after
from channels.markup import telegram as markup
from channels.telegram import texts
from channels.telegram.api import Api, Conflict, is_photo
from channels.telegram.drafts import Drafts, TelegramDraft
from channels.telegram.traits import COMMANDS, DOWNLOAD_LIMIT, MOST_IN_ALBUM, TRAITS
from channels.telegram.updates import received
from core.chat.facts import Attachment, ChatReceived, Target
from core.chat.port import (
    ChatGone,
    Content,
    CredentialsDead,
    FateUnknown,
    File,
    Finding,
    Platform,
    RateLimited,
    Receive,
    Rejected,
    Report,
)
from core.errors import Invalid, Unavailable, ungrouped

BASE_URL = "https://api.telegram.org"
PEOPLE = 2000
WHISPER = 200
"""Characters of the text that answers a press (Bot API, answerCallbackQuery)."""
_TOKEN = re.compile(r"\d+:[\w-]+")
log = structlog.get_logger("sika.telegram")


class Timing(NamedTuple):
    """Times of polling, in seconds."""

    poll: int = 30
    """Seconds for which Telegram holds a poll that has nothing to answer."""
    grace: float = 10.0
    """Seconds by which the answer may be late before the connection counts as dead."""
    first_pause: float = 1.0
    """The pause after the first failure; it doubles with each one that follows."""
    longest_pause: float = 15.0
    conflicts: int = 5
    """Conflicts in a row that are normal: Telegram holds the last poll of a process that ended (research §2.2)."""
    quiet: float = 60.0
    """Time without a conflict after which there is no other poller. Two pollers have answers in between."""
    custody: float = 60.0
    """Seconds that the log may take for a message, before it counts as out of reach."""
    acknowledgement: float = 5.0


def connect(settings: Mapping[str, Any], timing: Timing = Timing()) -> Platform:  # noqa: B008 - it is a constant
    """Returns the account of a bot. Settings: `bot_token`, and `base_url` of a Bot API server of one's own."""
    token = settings.get("bot_token")
    if not token:
        raise Invalid("telegram: bot_token is missing")
    if not _TOKEN.fullmatch(str(token)):
        raise CredentialsDead("telegram: bot_token does not look like one: 123456789:AA…, from @BotFather")
    return Telegram(Api(str(token), str(settings.get("base_url") or BASE_URL).rstrip("/")), timing)


class Telegram:
    """The account of a bot. See `core.chat.port.Platform`."""

    traits = TRAITS

    def __init__(self, api: Api, timing: Timing) -> None:
        self._api = api
        self._timing = timing
        self._drafts = Drafts(api)
        self._people: FIFOCache[str, User] = FIFOCache(PEOPLE)
        """People whose messages have come, by user name."""
        self._presses = Presses()

    async def check(self) -> Sequence[Finding]:
        try:
            bot = await self._api.me()
            webhook = await self._api.webhook()
        except CredentialsDead as error:
            return [Finding(False, "the bot token", str(error))]
        except Unavailable as error:
            return [Finding(False, "the connection to Telegram", str(error))]
        findings = [Finding(True, f"the bot token is that of @{bot.username}")]
        if webhook.url:
            advice = "another program has set it: end that program, and call deleteWebhook"
            findings.append(Finding(False, "a webhook is set, so that nothing can be polled", advice))
        else:
            findings.append(Finding(True, "no webhook is set"))
        if not bot.can_join_groups:
            findings.append(Finding(True, "the bot cannot join groups", "allow it with /setjoingroups at @BotFather"))
        elif not bot.can_read_all_group_messages:
            what = "in groups, the bot gets commands, mentions and replies to it"
            findings.append(Finding(True, what, "for all messages, use /setprivacy at @BotFather"))
        return findings

    async def listen(self, receive: Receive, report: Report) -> None:
        try:
            with ungrouped():
                async with anyio.create_task_group() as presses:
                    await self._listen(receive, report, presses)
        finally:
            with anyio.CancelScope(shield=True), anyio.move_on_after(self._timing.acknowledgement):
                await self._api.close_poll()

    async def _listen(self, receive: Receive, report: Report, presses: TaskGroup) -> None:
        bot: User | None = None
        offset = failures = conflicts = 0
        conflicted_at = 0.0
        connected = answered = False
        while True:
            pause = 0.0
            try:
                if bot is None:
                    bot = await self._introduced()
                held = self._timing.poll if answered else 0  # the first answer says at once that there is a connection
                updates = await self._api.updates(offset, held, self._timing.grace)
                answered, failures = True, 0
                report.heard()
                if time.monotonic() - conflicted_at > self._timing.quiet:
                    conflicts = 0
                if not connected and conflicts <= self._timing.conflicts:
                    connected = True
                    report.connected()
                offset, failed = await self._take(updates, bot, receive, offset, presses)
                if failed:
                    log.warning("messages are asked for again", reason=str(failed))
                    pause = self._pause(1)
            except CredentialsDead as error:
                report.disconnected(str(error))
                raise
            except Conflict as error:
                conflicts += 1
                conflicted_at = time.monotonic()
                pause = self._pause(max(1, conflicts - self._timing.conflicts))
                if conflicts > self._timing.conflicts:
                    connected = answered = False
                    report.disconnected(f"another poller or a webhook uses the bot token: {error}")
            except RateLimited as error:
                pause = error.seconds
            except (Unavailable, ChatGone, Rejected) as error:
                failures += 1
                connected = answered = False
                pause = self._pause(failures)
                report.disconnected(str(error))
            if pause:
                await anyio.sleep(pause)

    async def _introduced(self) -> User:
        """Returns who the bot is, once its menu is registered, or was refused."""
        bot = await self._api.me()
        try:
            await self._api.register(COMMANDS)
        except (Unavailable, Rejected, ChatGone) as error:
            log.warning("the menu of commands was not registered", reason=str(error))
        return bot

    def _pause(self, failures: int) -> float:
        return pause_after(failures, self._timing.first_pause, self._timing.longest_pause)

    async def _take(
        self, updates: Sequence[Mapping[str, Any]], bot: User, receive: Receive, offset: int, presses: TaskGroup
    ) -> tuple[int, Exception | None]:
        """Hands over the messages, those of a chat in order. Returns the next offset, which confirms all before the
        first one that was not taken, and why that was not."""
        chats: dict[str, list[tuple[int, ChatReceived]]] = {}
        for update in sorted(updates, key=itemgetter("update_id")):
            number = int(update["update_id"])
            offset = max(offset, number + 1)
            event = self._translated(update, bot)
            if event is not None:
                chats.setdefault(event.target.chat, []).append((number, event))
        errors: dict[int, Exception] = {}

        async def take(events: Sequence[tuple[int, ChatReceived]]) -> None:
            for number, event in events:
                press = self._presses.note(event.target) if event.choice else None
                try:
                    with anyio.fail_after(self._timing.custody):
                        await receive(event)
                except TimeoutError:
                    errors[number] = Unavailable(f"the message was not taken within {self._timing.custody:g} s")
                    return
                except Exception as error:
                    errors[number] = error
                    return
                if press is not None:
                    presses.start_soon(self._acknowledge, event, press)

        async with anyio.create_task_group() as group:
            for events in chats.values():
                group.start_soon(take, events)
        for error in errors.values():
            if not isinstance(error, Unavailable):
                raise error
        if not errors:
            return offset, None
        first = min(errors)
        return first, errors[first]

    def _translated(self, update: Mapping[str, Any], bot: User) -> ChatReceived | None:
        try:
            stopped = update.get("stopped_message_generation")
            if stopped and self._drafts.is_finished(stopped["draft_id"]):
                return None  # the press came too late: it must not stop the next answer
            return received(self._api.parsed(update), bot, self._people)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            log.warning("an update of unknown shape was skipped", update=update.get("update_id"), reason=repr(error))
            return None

    async def _acknowledge(self, event: ChatReceived, waiting: Press) -> None:
        """Ends the waiting sign of a press, with the text that its person gets."""
        text = await self._presses.text(event.target, waiting)
        with anyio.move_on_after(self._timing.acknowledgement):
            try:
                await self._api.acknowledge(event.message, text[:WHISPER])
            except (Unavailable, Invalid) as error:
                log.info("a pressed button was not acknowledged", reason=str(error))

    async def whisper(self, target: Target, text: str) -> None:
        self._presses.whisper(target, text, self.traits.title)

    def parts(self, text: str) -> Sequence[str]:
        return markup.parts(text)

    def draft(self, target: Target, key: str, message: str = "") -> TelegramDraft:
        return self._drafts.begin(target, key, message)

    async def post(self, target: Target, content: Content, key: str) -> str:
        text, buttons = texts.rendered(content.text, content.status), texts.keyboard(content)
        return await self._api.send(target, text, buttons)

    async def edit(self, target: Target, message: str, content: Content) -> None:
        text, buttons = texts.rendered(content.text, content.status), texts.keyboard(content)
        await self._api.edit(target, message, text, buttons)

    async def find(self, target: Target, key: str, since: datetime) -> str | None:
        raise FateUnknown("Telegram has no way to look for a message of a bot")

    async def upload(self, target: Target, file: Path, name: str, key: str) -> str:
        return await self._api.upload(target, file, name)

    def bundle(self, files: Sequence[File]) -> int:
        """Photos and documents are in albums of their own."""
        alike = takewhile(lambda file: is_photo(file) == is_photo(files[0]), files)
        return min(len(list(alike)), MOST_IN_ALBUM)

    async def upload_bundle(self, target: Target, files: Sequence[File], key: str) -> Sequence[str]:
        return await self._api.upload_album(target, files)

    async def fetch(self, attachment: Attachment, message: str, into: Path, limit: int) -> None:
        await self._api.download(attachment, into, min(limit, DOWNLOAD_LIMIT))

    async def working(self, target: Target, on: bool) -> None:
        if on and time.monotonic() >= self._api.flooded_until:  # its caller knows no pauses for a sign
            await self._drafts.keep(target)
            await self._api.typing(target)

    async def close(self) -> None:
        await self._api.close()

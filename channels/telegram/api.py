"""Calls of the Bot API, and what is certain after a failure.

Only calls that repeat without effect (`edit`, `get…`) are tried again by callers; nothing here tries a post twice,
unless Telegram has refused it. The token is part of each address: no error carries the SDK's or HTTP's own.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

import anyio
import httpx
from cachetools import FIFOCache
from telegram import (
    Bot,
    InlineKeyboardMarkup,
    InputFile,
    InputMediaDocument,
    InputMediaPhoto,
    LinkPreviewOptions,
    MessageEntity,
    ReplyParameters,
    Update,
    User,
    WebhookInfo,
)
from telegram.error import TelegramError
from telegram.request import HTTPXRequest

from channels.chat.calls import pause_of
from channels.telegram.texts import Text
from channels.telegram.traits import PHOTO_LIMIT, UPLOAD_LIMIT
from channels.telegram.updates import ALLOWED, thread_of
from core import reasons
from core.chat.download import save
from core.chat.facts import Attachment, Target
from core.chat.port import ChatGone, CredentialsDead, FateUnknown, File, RateLimited, Rejected
from core.chat.sizes import too_large
from core.errors import Unavailable

T = TypeVar("T")

CALL_SECONDS = 30.0
UPLOAD_SECONDS = 240.0
"""50 MB at 210 kB/s."""
FLOOD_SECONDS = 30.0
"""The pause after a 429 that names none, as those of proxies."""
PHOTOS = frozenset({".jpg", ".jpeg", ".png", ".webp"})
_REMEMBERED = 1000
_NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.UnsupportedProtocol)
_GONE = (
    "chat not found",
    "user not found",
    "peer_id_invalid",
    "message to edit not found",
    "message_id_invalid",
    "message can't be edited",
    "message thread not found",
    "topic_closed",
    "topic_deleted",
    "topic_id_invalid",
    "group chat was deactivated",
    "no rights to send",
    "not enough rights to send text",
    "chat_write_forbidden",
    "chat_restricted",
    "bot is not a member",
)
"""Parts of the descriptions of 400 that mean that the chat or the message is out of reach."""


class Conflict(Unavailable):
    """Another poller uses the token, or a webhook is set."""


class ErrorResponse(TelegramError):
    """A response other than 2xx, as it came. The SDK's own errors lose the status, and change the description."""

    def __init__(self, status: int, payload: bytes) -> None:
        try:
            body = json.loads(payload)
        except ValueError:
            body = None
        self.from_telegram = isinstance(body, dict) and "ok" in body
        fields: Mapping[str, Any] = body if isinstance(body, dict) else {}
        super().__init__(str(fields.get("description") or f"HTTP status {status}"))
        self.status = status
        parameters = fields.get("parameters")
        self.parameters: Mapping[str, Any] = parameters if isinstance(parameters, dict) else {}

    def says(self, *words: str) -> bool:
        return any(word in self.message.lower() for word in words)


class _Request(HTTPXRequest):
    async def do_request(self, *arguments: Any, **options: Any) -> tuple[int, bytes]:
        status, payload = await super().do_request(*arguments, **options)
        if not 200 <= status <= 299:
            raise ErrorResponse(status, payload)
        return status, payload


class _Bot(Bot):
    async def raw_updates(self, offset: int, seconds: int, timeout: float) -> list[dict[str, Any]]:
        """Calls getUpdates without making objects of all updates at once: one that the SDK does not understand would
        hide the others for ever."""
        parameters = {"offset": offset, "timeout": seconds, "allowed_updates": list(ALLOWED)}
        updates: list[dict[str, Any]] = await self._post("getUpdates", parameters, read_timeout=timeout)
        return updates


class Api:
    """The calls of one bot. Methods that post raise `FateUnknown` if no answer came; all others `Unavailable`."""

    def __init__(self, token: str, base_url: str) -> None:
        for name in ("httpx", "httpcore", "telegram"):  # they log addresses with the token, and pages that repeat them
            logging.getLogger(name).setLevel(logging.CRITICAL)
        # One connection: a second poll of this process must fail here, not end the first one at Telegram.
        self._polling = _Request(connection_pool_size=1)
        self._calls = _Request(connection_pool_size=64, read_timeout=CALL_SECONDS, pool_timeout=CALL_SECONDS)
        self._files = httpx.AsyncClient(timeout=CALL_SECONDS)
        self._bot = _Bot(
            token,
            base_url=f"{base_url}/bot",
            base_file_url=f"{base_url}/file/bot",
            request=self._calls,
            get_updates_request=self._polling,
        )
        self.flooded_until = 0.0
        """The end of the last pause that Telegram asked for, on the monotonic clock."""
        self._moved: FIFOCache[int, int] = FIFOCache(_REMEMBERED)
        """Groups that became supergroups, whose ids changed."""

    async def close(self) -> None:
        await self.close_poll()
        await self._calls.shutdown()
        await self._files.aclose()

    async def close_poll(self) -> None:
        """Closes the connection of polling, on which a poll may hang. The next poll opens another."""
        await self._polling.shutdown()

    async def me(self) -> User:
        return await self._repeatable("getMe", self._bot.get_me())

    async def webhook(self) -> WebhookInfo:
        return await self._repeatable("getWebhookInfo", self._bot.get_webhook_info())

    async def register(self, commands: Mapping[str, str]) -> None:
        await self._repeatable("setMyCommands", self._bot.set_my_commands(list(commands.items())))

    async def updates(self, offset: int, seconds: int, grace: float) -> list[dict[str, Any]]:
        """Polls for at most `seconds`, and waits `grace` seconds longer for the answer. Raises `Conflict`."""
        await self._polling.initialize()
        timeout = seconds + grace
        return await self._repeatable("getUpdates", self._bot.raw_updates(offset, seconds, timeout), timeout)

    def parsed(self, update: Mapping[str, Any]) -> Update:
        return Update.de_json(dict(update), self._bot)

    async def acknowledge(self, press: str, text: str = "") -> None:
        """Ends the waiting sign of a button, and shows a text to who pressed it."""
        await self._repeatable("answerCallbackQuery", self._bot.answer_callback_query(press, text or None))

    async def send(self, target: Target, text: Text, keyboard: InlineKeyboardMarkup | None = None) -> str:
        """Posts a message. Entities that Telegram refuses are left out."""

        async def send(chat: int, reply: ReplyParameters | None, marks: Sequence[MessageEntity]) -> str:
            message = await self._bot.send_message(
                chat,
                text.text,
                entities=marks,
                message_thread_id=thread_of(target.topic),
                reply_parameters=reply,
                reply_markup=keyboard,
                link_preview_options=LinkPreviewOptions(is_disabled=True),
            )
            return str(message.message_id)

        async def call(chat: int, reply: ReplyParameters | None) -> str:
            return await _or_plain(lambda marks: send(chat, reply, marks), text)

        return await self._posted("sendMessage", self._in_chat(target, call))

    async def edit(
        self, target: Target, message: str, text: Text, keyboard: InlineKeyboardMarkup | None = None
    ) -> None:
        """Changes a message. Without effect if it is like that."""

        async def edit(marks: Sequence[MessageEntity]) -> None:
            await self._bot.edit_message_text(
                text.text,
                self._current(_number(target.chat)),
                _number(message),
                entities=marks,
                reply_markup=keyboard,
                link_preview_options=LinkPreviewOptions(is_disabled=True),
            )

        async def call() -> None:
            try:
                await _or_plain(edit, text)
            except ErrorResponse as error:
                if not error.says("message is not modified"):
                    raise

        await self._repeatable("editMessageText", call())

    async def draft(self, target: Target, draft: int, text: Text) -> None:
        """Shows a draft, which vanishes after 30 s or with the next message. Raises `Rejected` where there are none."""

        async def call() -> None:
            await self._bot.send_message_draft(
                _number(target.chat),
                draft,
                text.text,
                entities=text.entities,
                message_thread_id=thread_of(target.topic),
                api_kwargs={"can_stop": True, "keep_on_stop": True},
            )

        await self._repeatable("sendMessageDraft", call(), absent=True)

    async def delete(self, target: Target, message: str) -> None:
        chat = self._current(_number(target.chat))
        await self._repeatable("deleteMessage", self._bot.delete_message(chat, _number(message)))

    async def typing(self, target: Target) -> None:
        """Shows the sign for 5 s, or until the next message."""
        chat = self._current(_number(target.chat))
        action = self._bot.send_chat_action(chat, "typing", message_thread_id=thread_of(target.topic))
        await self._repeatable("sendChatAction", action)

    async def upload(self, target: Target, file: Path, name: str) -> str:
        """Posts an image as a photo, and as a document if it is too large for that or Telegram cannot show it."""
        size = (await anyio.Path(file).stat()).st_size
        if size > UPLOAD_LIMIT:
            raise too_large(name, size, UPLOAD_LIMIT)
        if is_photo(File(file, name, size)):
            try:
                return await self._upload(target, file, name, photo=True)
            except Rejected:
                pass
        return await self._upload(target, file, name, photo=False)

    async def _upload(self, target: Target, file: Path, name: str, *, photo: bool) -> str:
        async def call(chat: int, reply: ReplyParameters | None) -> str:
            thread = thread_of(target.topic)
            with file.open("rb") as content:
                part = InputFile(content, filename=name, read_file_handle=False)
                if photo:
                    message = await self._bot.send_photo(
                        chat, part, message_thread_id=thread, reply_parameters=reply, read_timeout=UPLOAD_SECONDS
                    )
                else:
                    message = await self._bot.send_document(
                        chat, part, message_thread_id=thread, reply_parameters=reply, read_timeout=UPLOAD_SECONDS
                    )
            return str(message.message_id)

        return await self._posted("sendPhoto" if photo else "sendDocument", self._in_chat(target, call), UPLOAD_SECONDS)

    async def upload_album(self, target: Target, files: Sequence[File]) -> Sequence[str]:
        """Posts two to ten files as an album: photos if the first is one, else documents."""
        kind = InputMediaPhoto if is_photo(files[0]) else InputMediaDocument

        async def call(chat: int, reply: ReplyParameters | None) -> Sequence[str]:
            with ExitStack() as opened:
                media = [
                    kind(InputFile(opened.enter_context(file.path.open("rb")), file.name, True, read_file_handle=False))
                    for file in files
                ]
                messages = await self._bot.send_media_group(
                    chat,
                    media,
                    message_thread_id=thread_of(target.topic),
                    reply_parameters=reply,
                    read_timeout=UPLOAD_SECONDS,
                )
            return [str(message.message_id) for message in messages]

        return await self._posted("sendMediaGroup", self._in_chat(target, call), UPLOAD_SECONDS)

    async def download(self, attachment: Attachment, into: Path, limit: int) -> None:
        """Writes a file. Raises `Rejected` if it is over the limit, has expired, or is a web page."""
        with anyio.fail_after(UPLOAD_SECONDS):
            if attachment.size > limit:
                raise too_large(attachment.name, attachment.size, limit)
            try:
                file = await self._repeatable("getFile", self._bot.get_file(attachment.id))
            except Rejected as error:
                raise too_large(attachment.name, 0, limit) if "too big" in str(error).lower() else error from None
            if (file.file_size or 0) > limit:
                raise too_large(attachment.name, file.file_size or 0, limit)
            failure: Exception
            try:
                async with self._files.stream("GET", file.file_path or "") as response:
                    await _saved(response, attachment, into, limit)
                return
            except httpx.HTTPError as error:
                failure = Unavailable(f"the download of {attachment.name} failed: {reasons.lost(error)}")
        raise failure

    async def _posted(self, method: str, call: Awaitable[T], seconds: float = CALL_SECONDS) -> T:
        return await self._called(method, call, seconds, FateUnknown)

    async def _repeatable(
        self, method: str, call: Awaitable[T], seconds: float = CALL_SECONDS, *, absent: bool = False
    ) -> T:
        """Awaits a call that may be made again. `absent`: the server may be too old to know the method."""
        return await self._called(method, call, seconds, Unavailable, absent=absent)

    async def _called(
        self,
        method: str,
        call: Awaitable[T],
        seconds: float,
        unanswered: type[Unavailable],
        *,
        absent: bool = False,
    ) -> T:
        try:
            return await _called(method, call, seconds, unanswered, absent=absent)
        except RateLimited as error:
            self.flooded_until = time.monotonic() + error.seconds
            raise

    async def _in_chat(self, target: Target, call: Callable[[int, ReplyParameters | None], Awaitable[T]]) -> T:
        """Calls with the chat and the message to reply to. Where the group became a supergroup, it calls again with the
        new id: the first call was refused. The new chat does not have the message to reply to."""
        chat = self._current(_number(target.chat))
        if chat == _number(target.chat):
            try:
                return await call(chat, _reply(target))
            except ErrorResponse as error:
                moved = error.parameters.get("migrate_to_chat_id")
                if not isinstance(moved, int):
                    raise
                self._moved[chat] = chat = moved
        return await call(chat, None)

    def _current(self, chat: int) -> int:
        return self._moved.get(chat, chat)


def is_photo(file: File) -> bool:
    """Tells whether a file is to be shown as a photo."""
    return Path(file.name).suffix.lower() in PHOTOS and file.size <= PHOTO_LIMIT


def _reply(target: Target) -> ReplyParameters | None:
    if not target.reply_to:
        return None
    return ReplyParameters(_number(target.reply_to), allow_sending_without_reply=True)


def _number(identity: str) -> int:
    try:
        return int(identity)
    except ValueError:
        raise ChatGone(f"{identity!r} is no id of Telegram: they are numbers") from None


async def _or_plain(call: Callable[[Sequence[MessageEntity]], Awaitable[T]], text: Text) -> T:
    try:
        return await call(text.entities)
    except ErrorResponse as error:
        if not text.entities or error.status != 400 or not error.says("entit"):
            raise
    return await call(())


async def _saved(response: httpx.Response, attachment: Attachment, into: Path, limit: int) -> None:
    name = attachment.name
    if response.status_code in (400, 404, 410):
        raise Rejected(f"{name}: Telegram does not have the file any more")
    if response.status_code != 200:
        raise Unavailable(f"the download of {name} failed: HTTP status {response.status_code}")
    page = response.headers.get("content-type", "").startswith("text/html")
    if page and attachment.mime != "text/html" and not name.lower().endswith((".html", ".htm")):
        raise Rejected(f"{name}: a web page came instead of the file")
    await save(response.aiter_bytes(), into, limit, name)


async def _called(method: str, call: Awaitable[T], seconds: float, unanswered: type[Unavailable], *, absent: bool) -> T:
    """Awaits a call and raises an error of the port. It is raised outside of `except`, so that it has no context: that
    of the SDK may contain the token."""
    failure: Exception
    try:
        with anyio.fail_after(seconds):
            return await call
    except ErrorResponse as error:
        failure = _meaning(method, error, unanswered, absent=absent)
    except TelegramError as error:
        cause = error.__cause__
        if isinstance(cause, _NOT_SENT):
            busy = isinstance(cause, httpx.PoolTimeout)
            why = "all connections to it are in use" if busy else reasons.lost(cause)
            failure = Unavailable(f"{method}: Telegram cannot be reached: {why}")
        else:
            failure = unanswered(f"{method}: no answer: {reasons.lost(cause or error)}")
    except TimeoutError:
        failure = unanswered(f"{method}: no answer in {seconds:g} s")
    raise failure


def _meaning(method: str, error: ErrorResponse, unanswered: type[Unavailable], *, absent: bool) -> Exception:
    text = f"{method}: {error.message}"
    if error.status == 429:
        return RateLimited(text, pause_of(error.parameters.get("retry_after"), FLOOD_SECONDS))
    if error.status == 413:
        return Rejected(f"{method}: the file is too large for Telegram")
    if error.status >= 500 or not error.from_telegram:
        return unanswered(text)
    if error.status == 401 or (error.status == 404 and not absent):
        return CredentialsDead("Telegram does not accept the bot token: get a new one from @BotFather")
    if error.status == 403 or error.says(*_GONE):
        return ChatGone(text)
    if error.status == 409:
        return Conflict(text)
    return Rejected(text)

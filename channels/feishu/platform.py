"""The account of a bot on Feishu or Lark."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import msgspec
from cachetools import FIFOCache

from channels.chat.presses import Presses
from channels.chat.reconnecting import Ended, stay_connected
from channels.feishu import cards, incoming
from channels.feishu.api import NO_PERMISSION, Api, Endpoint, Refused, Withdrawn
from channels.feishu.connection import Connection
from channels.feishu.draft import CardKit, FeishuDraft, patch, replace
from channels.feishu.traits import DOMAIN, TRAITS
from channels.markup import feishu as markup
from core.chat.facts import Attachment, ChatReceived, Quoted, Target
from core.chat.people import Names
from core.chat.port import (
    DRAFT,
    ChatGone,
    Content,
    CredentialsDead,
    Finding,
    Receive,
    Rejected,
    Report,
)
from core.chat.sizes import too_large
from core.errors import Invalid, Unavailable

PAGES = 100
"""Pages of a chat that are looked through for a message."""
KEYS_LIVE = timedelta(minutes=55)
"""The platform knows the key of a message for an hour."""
REMEMBERED = 2000
"""Messages, by which replies to the bot and read ones are known, reactions that are on, and names of people."""
LARGEST_IMAGE = 10 << 20
IMAGES = frozenset((".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".ico", ".tiff"))
KINDS = {
    ".opus": "opus",
    ".mp4": "mp4",
    ".pdf": "pdf",
    **dict.fromkeys((".doc", ".docx"), "doc"),
    **dict.fromkeys((".xls", ".xlsx", ".csv"), "xls"),
    **dict.fromkeys((".ppt", ".pptx"), "ppt"),
}
"""The platform's names of kinds of files by suffix; others are `stream`."""
NAME_SECONDS = 0.5
QUOTE_SECONDS = 1.0
"""Most time to read a quoted message: the platform waits 3 s for an acknowledgement."""
NAMES_PER_SECOND = 20
"""The platform allows 50."""
WORKING = "Typing"

SCOPES: Sequence[tuple[str, Sequence[str]]] = (
    ("messages in private chats", ("im:message.p2p_msg:readonly", "im:message.p2p_msg")),
    (
        "mentions in groups",
        ("im:message.group_at_msg:readonly", "im:message.group_at_msg", "im:message.group_msg"),
    ),
    ("sending and changing messages, files of messages, reactions", ("im:message",)),
    ("sending files", ("im:resource", "im:resource:upload")),
    ("answers that grow", ("cardkit:card:write",)),
    ("names of people", ("contact:user.base:readonly",)),
)
"""Abilities that the bot needs, and the permissions of which one suffices."""


def connect(settings: Mapping[str, Any]) -> FeishuPlatform:
    """Returns the account of these settings: `app_id`, `app_secret` and `domain`. Raises `Invalid`."""
    for key in ("app_id", "app_secret"):
        if not isinstance(settings.get(key), str) or not settings[key]:
            raise Invalid(f"{key}: missing; see the page of the app in the developer console")
    domain = settings.get("domain") or DOMAIN
    if not isinstance(domain, str) or not domain.startswith(("https://", "http://")):
        raise Invalid(f"domain {domain!r}: a URL, as {DOMAIN} or https://open.larksuite.com")
    return FeishuPlatform(Api(domain, settings["app_id"], settings["app_secret"]))


class FeishuPlatform:
    """One app's bot. See `core.chat.port.Platform`."""

    traits = TRAITS

    def __init__(self, api: Api) -> None:
        self._api = api
        self._cardkit = CardKit(api)
        self._bot = ""
        self._albums = incoming.Albums()
        self._own: FIFOCache[str, bool] = FIFOCache(REMEMBERED)
        """By message whether it is ours."""
        self._known: FIFOCache[str, bool] = FIFOCache(REMEMBERED)
        self._targets: FIFOCache[str, Target] = FIFOCache(REMEMBERED)
        """Where messages of people stand, which the event of a recalled one does not say."""
        """Messages of people that the agent has read, as they addressed it or were quoted."""
        self._reactions: FIFOCache[str, str] = FIFOCache(REMEMBERED)
        """Reactions that are on, by message."""
        self._names = Names(REMEMBERED)
        self._names_read: deque[float] = deque(maxlen=NAMES_PER_SECOND)
        """Times at which names were read."""
        self._may_read_names = True
        self._presses = Presses()
        self._turns: dict[str, tuple[anyio.Lock, int]] = {}
        """Chats whose messages are being taken into custody, and how many."""

    async def check(self) -> Sequence[Finding]:
        try:
            await self._api.token.get()
        except CredentialsDead as error:
            return [Finding(False, "app_id and app_secret", f"{error}. Copy both from the app's page “Credentials”.")]
        findings = [Finding(True, "app_id and app_secret")]
        try:
            name = (await self._api.call("GET", "bot/v3/info"))["bot"]["app_name"]
            findings.append(Finding(True, f"bot {name!r}"))
        except (Rejected, KeyError) as error:
            findings.append(Finding(False, "bot", f"{error}. Add the feature “Bot” to the app and publish a version."))
        findings.extend(await self._check_scopes())
        try:
            await self._api.endpoint()
            findings.append(Finding(True, "long connection"))
        except Unavailable as error:
            advice = "In “Events & callbacks”, choose the long connection for both, and publish a version."
            findings.append(Finding(False, "long connection", f"{error}. {advice}"))
        return findings

    async def listen(self, receive: Receive, report: Report) -> None:
        async def handle(payload: bytes) -> Any:
            return await self._handle(payload, receive)

        async def connection() -> Ended:
            endpoint = await self._endpoint()
            return await Connection(endpoint, handle).serve(self._api.rest.session(), report)

        await stay_connected("feishu", connection, report)

    def parts(self, text: str) -> Sequence[str]:
        return markup.parts(text)

    def draft(self, target: Target, key: str, message: str = "") -> FeishuDraft:
        return FeishuDraft(self._api, self._cardkit, self._send, target, key, message)

    async def post(self, target: Target, content: Content, key: str) -> str:
        return await self._send(target, "interactive", cards.message(content, target, key), key)

    async def edit(self, target: Target, message: str, content: Content) -> None:
        card = cards.message(content, target)
        try:
            await patch(self._api, message, card)
        except Refused:
            card_id = await self._cardkit.card_of(message)
            if not card_id:
                raise
            await replace(self._api, self._cardkit, message, card, card_id)

    async def find(self, target: Target, key: str, since: datetime) -> str | None:
        """Returns the id of a message by its key; None if it may be posted again with the same key.

        Within an hour that is always so: the platform answers a repeated post with the message that it has. A draft is
        begun here, which tells whether it was begun before. Later, the cards in the chat are read for the keys that
        they carry. Raises `Rejected` if that is not permitted, and if the bot sent files since, which carry none.
        """
        lives = datetime.now(UTC) - since < KEYS_LIVE
        if key.endswith(DRAFT):
            return await self.draft(target, key).begin() if lives else None
        if lives:
            return None
        async for message in self._own_messages(target.chat, since):
            content = str((message.get("body") or {}).get("content"))
            if cards.mark_of(key) in content:
                return str(message["message_id"])
            if message.get("msg_type") != "interactive" or not ("element_id" in content or "card_id" in content):
                raise Rejected("Feishu does not tell by which key an older message was sent")
        return None

    async def upload(self, target: Target, file: Path, name: str, key: str) -> str:
        suffix, size = Path(name).suffix.lower(), (await anyio.Path(file).stat()).st_size
        if size > self.traits.largest_file:
            raise too_large(name, size, self.traits.largest_file)
        if suffix in IMAGES and size <= LARGEST_IMAGE:
            image = await self._api.upload("im/v1/images", {"image_type": "message"}, "image", file, name)
            return await self._send(target, "image", {"image_key": image["image_key"]}, key)
        fields = {"file_type": KINDS.get(suffix, "stream"), "file_name": name}
        answer = await self._api.upload("im/v1/files", fields, "file", file, name)
        kind = {".opus": "audio", ".mp4": "media"}.get(suffix, "file")
        return await self._send(target, kind, {"file_key": answer["file_key"]}, key)

    async def fetch(self, attachment: Attachment, message: str, into: Path, limit: int) -> None:
        kind = "image" if attachment.kind == "image" else "file"
        path = f"im/v1/messages/{message}/resources/{attachment.id}"
        await self._api.download(path, {"type": kind}, attachment, into, limit)

    async def working(self, target: Target, on: bool) -> None:
        """Puts a reaction to the message that is answered, and takes it away."""
        message = target.reply_to
        if not message:
            return
        reactions = f"im/v1/messages/{message}/reactions"
        if on and message not in self._reactions:
            answer = await self._api.call("POST", reactions, {"reaction_type": {"emoji_type": WORKING}})
            self._reactions[message] = str(answer["reaction_id"])
        elif not on:
            known = self._reactions.pop(message, "")
            for reaction in [known] if known else await self._reactions_on(reactions):
                await self._api.call("DELETE", f"{reactions}/{reaction}")

    async def close(self) -> None:
        await self._api.rest.close()

    async def _endpoint(self) -> Endpoint:
        """Returns the address of a connection, after the bot's id, by which mentions are known."""
        try:
            if not self._bot:
                self._bot = str((await self._api.call("GET", "bot/v3/info"))["bot"]["open_id"])
            return await self._api.endpoint()
        except (Rejected, ChatGone, KeyError) as error:
            raise Unavailable(f"Feishu does not tell who the bot is: {error}") from None

    async def _handle(self, payload: bytes, receive: Receive) -> Any:
        """Takes custody of an event. Returns what the platform shows of a pressed button."""
        body = json.loads(payload)
        kind, event = body["header"]["event_type"], body["event"]
        if kind == "im.message.receive_v1":
            async with self._turn(event["message"]["chat_id"]):
                await self._received(event, receive)
        elif kind == "im.message.recalled_v1" and (target := self._targets.get(str(event["message_id"]))) is not None:
            gone = ChatReceived(message=event["message_id"], target=target, sender=target.sender, deleted=True)
            async with self._turn(target.chat):
                await receive(gone)
        elif kind == "card.action.trigger" and (choice := incoming.pressed(event)) is not None:
            return await self._pressed(
                msgspec.structs.replace(choice, sender_name=await self._name_of(choice.sender)), receive
            )
        return None

    async def _pressed(self, press: ChatReceived, receive: Receive) -> Any:
        """Takes custody of a press. Returns what is shown to the person: a text at once, or a mark."""
        waiting = self._presses.note(press.target)
        try:
            await receive(press)
            text = await self._presses.text(press.target, waiting)
        finally:
            self._presses.drop(press.target, waiting)
        return {"toast": {"type": "warning", "content": text} if text else {"type": "info", "content": "✓"}}

    async def whisper(self, target: Target, text: str) -> None:
        self._presses.whisper(target, text, self.traits.title)

    @asynccontextmanager
    async def _turn(self, chat: str) -> AsyncIterator[None]:
        """Waits until the earlier messages of a chat are in custody."""
        lock, waiting = self._turns.get(chat) or (anyio.Lock(), 0)
        self._turns[chat] = (lock, waiting + 1)
        try:
            async with lock:
                yield
        finally:
            lock, waiting = self._turns.pop(chat)
            if waiting > 1:
                self._turns[chat] = (lock, waiting - 1)

    async def _received(self, event: Mapping[str, Any], receive: Receive) -> None:
        addressed, parent = incoming.addresses_bot(event, self._bot), incoming.parent_of(event)
        to_bot, quoted = await self._replied(parent, addressed=addressed)
        message = incoming.received(event, self._bot, to_bot)
        if message is None:
            return
        if people := incoming.unnamed(event):
            names = {person: await self._name_of(person) for person in people}
            message = incoming.received(event, self._bot, to_bot, names) or message
        album, name = self._albums.of(event, message), await self._name_of(message.sender)
        await receive(msgspec.structs.replace(message, album=album, sender_name=name, quoted=quoted))
        self._targets[message.message] = message.target
        if message.mentioned:
            self._known[message.message] = True
        if quoted is not None:
            self._known[parent] = True

    async def _replied(self, message: str, *, addressed: bool) -> tuple[bool, Quoted | None]:
        """Tells whether the message that is replied to is the bot's, and returns its words if the agent has not read
        them. `addressed`: the reply is for the bot in any case. Raises `Unavailable` if that must be known."""
        quotes = addressed and not self._own.get(message) and message not in self._known
        if not message or (message in self._own and not quotes):
            return self._own.get(message, False), None
        item: Mapping[str, Any] = {}
        try:
            with anyio.fail_after(QUOTE_SECONDS if addressed else None):
                items = (await self._api.call("GET", f"im/v1/messages/{message}")).get("items")
                item = items[0] if items else item
        except (Rejected, ChatGone):
            return False, None
        except (Unavailable, TimeoutError):
            if not addressed:
                raise
            return False, None
        sender = item.get("sender") or {}
        self._own[message] = sender.get("id") == self._api.app_id
        if not quotes or sender.get("sender_type") != "user":
            return self._own[message], None
        return False, incoming.quoted(item, await self._name_of(str(sender.get("id"))))

    async def _name_of(self, person: str) -> str:
        """Returns a person's name; empty if the app may not read it, or not at once."""
        now = time.monotonic()
        soon = len(self._names_read) == NAMES_PER_SECOND and now - self._names_read[0] < 1
        known = self._names.of(person)
        if known is None and self._may_read_names and not soon:
            self._names_read.append(now)
            try:
                with anyio.move_on_after(NAME_SECONDS):
                    params = {"user_id_type": "open_id"}
                    user = (await self._api.call("GET", f"contact/v3/users/{person}", params=params)).get("user") or {}
                    self._names.note(person, str(user.get("name") or ""))
            except Refused as error:
                self._may_read_names = error.number not in NO_PERMISSION
                self._names.note(person, "")
            except (Unavailable, Rejected, ChatGone):
                pass
        return self._names.get(person, ("", 0.0))[0]

    async def _send(self, target: Target, kind: str, content: Mapping[str, Any], key: str) -> str:
        """Posts a message: as a reply, in a group at least to the root of its topic."""
        body = {"msg_type": kind, "content": json.dumps(content, ensure_ascii=False), "uuid": cards.key_of(key)}
        root = target.reply_to or (target.topic if target.kind == "group" else "")
        answer: Mapping[str, Any] = {}
        if root:
            with suppress(Withdrawn):  # an answer outlives its question
                answer = await self._api.call("POST", f"im/v1/messages/{root}/reply", body)
        if not answer:
            params = {"receive_id_type": "chat_id"}
            answer = await self._api.call("POST", "im/v1/messages", {**body, "receive_id": target.chat}, params=params)
        message = str(answer["message_id"])
        self._own[message] = True
        return message

    async def _own_messages(self, chat: str, since: datetime) -> AsyncIterator[dict[str, Any]]:
        """Yields the bot's messages in a chat, the oldest first. Raises the errors of the port."""
        params = {
            "container_id_type": "chat",
            "container_id": chat,
            "start_time": str(int(since.timestamp()) - 1),
            "sort_type": "ByCreateTimeAsc",
            "page_size": "50",
            "card_msg_content_type": "user_card_content",
        }
        for _ in range(PAGES):
            answer = await self._api.call("GET", "im/v1/messages", params=params)
            for message in answer.get("items") or ():
                if (message.get("sender") or {}).get("id") == self._api.app_id:
                    yield message
            if not answer.get("has_more") or not answer.get("page_token"):
                return
            params["page_token"] = answer["page_token"]
        raise Unavailable(f"{chat}: more than {PAGES} pages of messages to look through")

    async def _reactions_on(self, path: str) -> list[str]:
        """Returns the bot's reactions, as of before a restart."""
        answer = await self._api.call("GET", path, params={"reaction_type": WORKING})
        items = answer.get("items") or ()
        return [
            item["reaction_id"] for item in items if (item.get("operator") or {}).get("operator_id") == self._api.app_id
        ]

    async def _check_scopes(self) -> list[Finding]:
        try:
            answer = await self._api.call("GET", "application/v6/scopes")
        except Rejected as error:
            return [Finding(False, "permissions", f"{error}. Publish a version of the app.")]
        granted = {scope["scope_name"] for scope in answer.get("scopes") or () if scope.get("grant_status") == 1}
        return [
            Finding(
                bool(granted & set(names)),
                f"permission for {what}",
                "" if granted & set(names) else f"Add {names[0]} to the app's permissions and publish a version.",
            )
            for what, names in SCOPES
        ]

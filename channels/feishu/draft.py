"""Answers that grow in one message: a card of CardKit whose elements are changed one by one, and for apps that may not
use CardKit a plain card that is changed as a whole.
"""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import anyio.to_thread
from cachetools import FIFOCache

from channels.feishu import cards
from channels.feishu.api import NO_PERMISSION, Api, Refused
from channels.markup import feishu as markup
from core.chat.facts import Target
from core.chat.port import ChatGone, Content, FateUnknown, Rejected, unfinished

OUT_OF_SEQUENCE = 300317
CLOSED = frozenset((200850, 300309))
"""The platform ends the growing of a card after ten minutes, and after a while without a change."""
TOO_MANY_CHANGES = frozenset((230072, 230075))
"""The message was patched too often, or is too old."""
EPOCH = 1_767_225_600
"""2026-01-01: sequences count from here, as they are 32-bit numbers."""
SEQUENCES_PER_SECOND = 5
"""Less than the platform allows changes (10), so that the sequences of one process stay below those of the next one;
where they do not, one change is refused and jumps ahead. 2^31 of them are over in 2039."""
JUMP = 5_000
CARDS = 1_000
"""Cards whose sequence is remembered."""

Send = Callable[[Target, str, dict[str, Any], str], Awaitable[str]]
"""Sends a message of a kind, with content and key. Returns its id."""


class CardKit:
    """The platform's methods for cards that grow. Their `sequence` must increase, also over restarts."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._sequences: FIFOCache[str, int] = FIFOCache(CARDS)
        """The newest by card."""
        self.permitted = True
        """False once the platform has refused: the app lacks the permission."""

    async def create(self, card: dict[str, Any]) -> str:
        """Returns the id of a new card, which no message shows yet; empty if the platform makes none."""
        body = {"type": "card_json", "data": json.dumps(card, ensure_ascii=False)}
        try:
            return str((await self._api.call("POST", "cardkit/v1/cards", body))["card_id"])
        except Refused as error:
            if error.number in NO_PERMISSION:
                self.permitted = False
            return ""

    async def card_of(self, message: str) -> str:
        """Returns the card that a message shows; empty if it is none of CardKit."""
        try:
            answer = await self._api.call("POST", "cardkit/v1/cards/id_convert", {"message_id": message})
        except Refused:
            return ""
        return str(answer.get("card_id") or "")

    async def put(self, card_id: str, path: str, body: dict[str, Any]) -> None:
        """Changes a card: one part of it, or with an empty `path` the whole."""
        method = f"cardkit/v1/cards/{card_id}{path}"
        try:
            await self._api.call("PUT", method, {**body, "sequence": self._next(card_id)})
        except Refused as error:
            if error.number != OUT_OF_SEQUENCE:
                raise
            try:
                await self._api.call("PUT", method, {**body, "sequence": self._next(card_id, JUMP)})
            except Refused as again:
                if again.number != OUT_OF_SEQUENCE:
                    raise
                raise FateUnknown(f"PUT {method}: out of sequence twice") from None

    def _next(self, card_id: str, step: int = 1) -> int:
        """Returns the next sequence of a card."""
        by_time = int((time.time() - EPOCH) * SEQUENCES_PER_SECOND)
        self._sequences[card_id] = max(self._sequences.get(card_id, 0) + step, by_time)
        return self._sequences[card_id]

    async def replace(self, card_id: str, card: dict[str, Any]) -> None:
        await self.put(card_id, "", {"card": {"type": "card_json", "data": json.dumps(card, ensure_ascii=False)}})


class FeishuDraft:
    """One answer. After a failure, the next call sends what is missing."""

    def __init__(self, api: Api, cardkit: CardKit, send: Send, target: Target, key: str, message: str) -> None:
        self._api = api
        self._cardkit = cardkit
        self._send = send
        self._target = target
        self._key = key
        self._message = message
        self._begun: tuple[str, dict[str, Any]] | None = None
        """Card (empty without CardKit) and content of the message that was sent with `key`, while its id is unknown."""
        self._card: str | None = None
        """The card that the message shows; empty if none of CardKit, None before the platform was asked."""
        self._grows = True
        """False once the platform has closed the card for changes of single elements."""
        self._text: str | None = None
        self._status: str | None = None
        """The text on the card; None if unknown."""
        self._whole: tuple[str, str] | None = None
        """A source and its first part. What follows the source is not split again: that takes long for long texts."""

    @property
    def message(self) -> str:
        return self._message

    async def show(self, text: str, status: str) -> None:
        """Shows the beginning of what does not fit one message: it is also the answer's first part."""
        shown = await self._fitting(text)
        if not self._message:
            await self._begin(shown, status)
            return
        card = await self._shown_card()
        if card and self._grows:
            try:
                await self._grow(card, shown, status)
                return
            except Refused as error:
                if error.number not in CLOSED:
                    raise
                self._grows = False
        if (shown, status) == (self._text, self._status):
            return
        whole = self._growing(shown, status, streaming=False)
        try:
            await (self._cardkit.replace(card, whole) if card else patch(self._api, self._message, whole))
        except Refused as error:
            if error.number not in TOO_MANY_CHANGES:
                raise
        self._text, self._status = shown, status

    async def finish(self, content: Content, key: str) -> str:
        if self._begun is not None and not self._message:
            await self._find_begun()
        card = cards.message(content, self._target, key)
        if self._message:
            try:
                await replace(self._api, self._cardkit, self._message, card, await self._shown_card())
                return self._message
            except (ChatGone, Refused):
                # It is gone or cannot be changed any more; refused content is refused again below. It goes first: after
                # a crash between the two, the next process would change it, beside the new one.
                await self.drop()
        return await self._send(self._target, "interactive", card, key)

    async def begin(self) -> str:
        """Sends the message, with nothing in it yet, unless the platform has it. Returns its id."""
        if not self._message:
            await self._begin("", "")
        return self._message

    async def drop(self) -> None:
        if self._begun is not None and not self._message:
            await self._find_begun()
        if self._message:
            with suppress(Rejected, ChatGone):
                await self._api.call("DELETE", f"im/v1/messages/{self._message}")
        self._message, self._begun, self._card = "", None, None

    async def _begin(self, text: str, status: str) -> None:
        """Sends the message. Its key is the answer's, so after a crash it is the one from before the crash."""
        if self._begun is None:
            card = ""
            if self._cardkit.permitted:
                card = await self._cardkit.create(self._growing(text, status))
            shown = (
                {"type": "card", "data": {"card_id": card}} if card else self._growing(text, status, streaming=False)
            )
            self._begun = (card, shown)
            self._text, self._status = text, status
        await self._find_begun()

    def _growing(self, text: str, status: str, *, streaming: bool = True) -> dict[str, Any]:
        return cards.growing(unfinished(text, status, self._key), self._target, streaming=streaming)

    async def _find_begun(self) -> None:
        """Sends the message, once more if its id did not arrive: the platform answers with the same id."""
        assert self._begun is not None
        card, content = self._begun
        self._message = await self._send(self._target, "interactive", content, f"{self._key}/draft")
        if card and await self._shown_card() != card:
            self._text = self._status = None

    async def _shown_card(self) -> str:
        if self._card is None:
            self._card = await self._cardkit.card_of(self._message) if self._cardkit.permitted else ""
        return self._card

    async def _grow(self, card: str, text: str, status: str) -> None:
        if text != self._text:
            content = {"content": cards.answer_of(text)}
            await self._cardkit.put(card, f"/elements/{cards.ANSWER}/content", content)
            self._text = text
        if status != self._status:
            content = {"content": cards.status_of(status)}
            await self._cardkit.put(card, f"/elements/{cards.STATUS}/content", content)
            self._status = status

    async def _fitting(self, text: str) -> str:
        if self._whole is not None and text.startswith(self._whole[0]):
            return self._whole[1]
        parts = await parts_of(text)
        self._whole = (text, parts[0]) if len(parts) > 1 else None
        return parts[0] if parts else ""


async def parts_of(text: str) -> list[str]:
    """Splits Markdown, in a thread if it is long."""
    return markup.parts(text) if len(text) < cards.LONG else await anyio.to_thread.run_sync(markup.parts, text)


async def patch(api: Api, message: str, card: dict[str, Any]) -> None:
    """Changes a message that is a card."""
    await api.call("PATCH", f"im/v1/messages/{message}", {"content": json.dumps(card, ensure_ascii=False)})


async def replace(api: Api, cardkit: CardKit, message: str, card: dict[str, Any], card_id: str) -> None:
    """Changes a message, as the card of CardKit that it shows, else as a message."""
    if card_id:
        try:
            await cardkit.replace(card_id, card)
            return
        except Refused as error:
            if error.number in NO_PERMISSION:
                cardkit.permitted = False
    await patch(api, message, card)

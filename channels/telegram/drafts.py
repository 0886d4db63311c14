"""Answers that grow: native drafts in private chats, elsewhere a message that is edited."""

from __future__ import annotations

import hashlib
import time
from collections import deque
from weakref import WeakValueDictionary

import anyio

from channels.telegram.api import Api
from channels.telegram.texts import Text, growing, keyboard, rendered
from core.chat.facts import Target
from core.chat.port import ChatGone, Content, FateUnknown, Rejected, unfinished

_REMEMBERED = 1000
LONG_SECONDS = 60.0
"""Time after which an answer that still grows becomes a message that is edited: an edit of unknown fate is done again,
so what a long run has made is not lost."""
KEPT_SECONDS = 20.0
"""Time after which a draft is shown again: Telegram lets it vanish after 30 s."""


def draft_id(key: str) -> int:
    """Returns the number of a draft: positive, of 31 bits."""
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=4).digest()) % (2**31 - 1) + 1


class Drafts:
    """The drafts of an account, and the private chats in which Telegram refuses them."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._refusals: deque[str] = deque(maxlen=_REMEMBERED)
        self._finished: deque[int] = deque(maxlen=_REMEMBERED)
        self._live: WeakValueDictionary[Target, TelegramDraft] = WeakValueDictionary()

    def begin(self, target: Target, key: str, message: str) -> TelegramDraft:
        native = target.kind == "private" and target.chat not in self._refusals
        draft = TelegramDraft(self._api, self, target, key, message, native=native)
        self._live[target] = draft
        return draft

    async def keep(self, target: Target) -> None:
        """Keeps the draft of a target from vanishing."""
        if draft := self._live.get(target):
            await draft.keep()

    def refused(self, target: Target) -> None:
        self._refusals.append(target.chat)

    def finished(self, draft: int) -> None:
        self._finished.append(draft)

    def is_finished(self, draft: int) -> bool:
        return draft in self._finished


class TelegramDraft:
    """See `core.chat.port.Draft`. `finish` is idempotent where there is a message.

    A placeholder begins without the answer's text, which the next `show` edits in. If the fate of its sending is
    unknown, it may stay in the chat for ever: it must not look like a second answer. It is not sent again.
    """

    def __init__(self, api: Api, drafts: Drafts, target: Target, key: str, message: str, *, native: bool) -> None:
        self._id = draft_id(key)
        self._stop = keyboard(unfinished("", "", key))
        self._api = api
        self._drafts = drafts
        self._target = target
        self._message = message
        self._native = native and not message
        self._shown: Text | None = None
        self._shown_at = 0.0
        self._begun_at = time.monotonic()
        self._still = False
        """Nothing more is shown."""
        self._lock = anyio.Lock()

    @property
    def message(self) -> str:
        return self._message

    async def show(self, text: str, status: str) -> None:
        shown = growing(text, status)
        async with self._lock:
            if not self._still and shown != self._shown:
                if self._native and time.monotonic() - self._begun_at > LONG_SECONDS:
                    self._native, self._shown = False, None
                    await self._begin(growing("", status))
                await self._show(shown, status)

    async def keep(self) -> None:
        """Shows a native draft again before it vanishes."""
        async with self._lock:
            due = time.monotonic() - self._shown_at > KEPT_SECONDS
            shown = self._shown
            if self._native and shown and due and not self._still:
                await self._show(shown, "")

    async def finish(self, content: Content, key: str) -> str:
        async with self._lock:
            self._still = True
            self._drafts.finished(self._id)
            text, buttons = rendered(content.text, content.status), keyboard(content)
            if not self._message:
                return await self._api.send(self._target, text, buttons)
            await self._api.edit(self._target, self._message, text, buttons)
            return self._message

    async def drop(self) -> None:
        async with self._lock:
            self._still = True
            self._drafts.finished(self._id)
            if self._message:
                await self._api.delete(self._target, self._message)
                self._message = ""

    async def _show(self, shown: Text, status: str) -> None:
        self._shown = None  # not known any more, should no answer come
        if self._native:
            try:
                await self._api.draft(self._target, self._id, shown)
            except Rejected:
                self._native = False
                self._drafts.refused(self._target)
        if not self._native and not self._message:
            shown = growing("", status)
            await self._begin(shown)
        elif self._message:
            try:
                await self._api.edit(self._target, self._message, shown, self._stop)
            except ChatGone:
                self._still = True
                raise
        self._shown, self._shown_at = shown, time.monotonic()

    async def _begin(self, shown: Text) -> None:
        self._still = True  # also if this is cancelled: a second message would double the first
        try:
            self._message = await self._api.send(self._target, shown, self._stop)
        except FateUnknown:
            raise
        except Exception:
            self._still = False
            raise
        self._still = False

"""An answer that grows in a message that is changed, for platforms without streams of their own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress

from core.chat.facts import Target
from core.chat.port import ChatGone, Content, Platform, Rejected, unfinished


class EditedDraft:
    """Implements `core.chat.port.Draft`. `growing`: returns as much of a text as certainly fits. `delete`: takes back a
    message."""

    def __init__(
        self,
        platform: Platform,
        target: Target,
        key: str,
        message: str,
        *,
        growing: Callable[[str, str], str],
        delete: Callable[[Target, str], Awaitable[None]],
    ) -> None:
        self._platform = platform
        self._target = target
        self._key = key
        self._message = message
        self._growing = growing
        self._delete = delete
        self._shown: tuple[str, str] | None = None

    @property
    def message(self) -> str:
        return self._message

    async def show(self, text: str, status: str) -> None:
        shown = (self._growing(text, status), status)
        if shown == self._shown:
            return
        content = unfinished(*shown, self._key)
        if self._message:
            await self._platform.edit(self._target, self._message, content)
        else:
            self._message = await self._platform.post(self._target, content, self._key)
        self._shown = shown

    async def finish(self, content: Content, key: str) -> str:
        if self._message:
            try:
                await self._platform.edit(self._target, self._message, content)
                return self._message
            except (ChatGone, Rejected):  # it was deleted, or cannot be changed any more
                await self.drop()
        self._message = await self._platform.post(self._target, content, key)
        return self._message

    async def drop(self) -> None:
        if self._message:
            with suppress(ChatGone, Rejected):
                await self._delete(self._target, self._message)
            self._message = ""

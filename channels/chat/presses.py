"""Texts that answer a pressed button, on platforms that show one to the person within the answer to the press."""

from __future__ import annotations

import anyio
from cachetools import FIFOCache

from core.chat.facts import Target
from core.chat.port import Rejected

REMEMBERED = 2000
SECONDS = 0.7
"""Time for which a press waits for the text that its person gets."""


class Press:
    """A press that waits for its text."""

    def __init__(self) -> None:
        self.text = ""
        self.answered = anyio.Event()


class Presses:
    """The presses of an account that can be answered, by the message with the button and the person."""

    def __init__(self) -> None:
        self._waiting: FIFOCache[tuple[str, str, str], Press] = FIFOCache(REMEMBERED)

    def note(self, target: Target) -> Press:
        press = self._waiting[_place(target)] = Press()
        return press

    async def text(self, target: Target, press: Press) -> str:
        """Returns the text that the person gets; empty if there is none in time."""
        try:
            with anyio.move_on_after(SECONDS):
                await press.answered.wait()
        finally:
            self.drop(target, press)
        return press.text

    def drop(self, target: Target, press: Press) -> None:
        if self._waiting.get(_place(target)) is press:
            del self._waiting[_place(target)]

    def whisper(self, target: Target, text: str, title: str) -> None:
        """Answers the newest press of a person. Raises `Rejected` if none waits."""
        if (press := self._waiting.pop(_place(target), None)) is None:
            raise Rejected(f"{title} shows a text to one person of a group only when they press a button")
        press.text = text
        press.answered.set()


def _place(target: Target) -> tuple[str, str, str]:
    """Returns the chat, the message with the button, and the person."""
    return target.chat, target.reply_to, target.sender

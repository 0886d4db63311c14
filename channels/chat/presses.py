"""Texts that answer a pressed button, on platforms that show one to the person within the answer to the press."""

from __future__ import annotations

import anyio
from cachetools import FIFOCache

from core.chat.facts import Target
from core.chat.port import Rejected

REMEMBERED = 2000
MOST = 10
"""Limit of presses of a person on one message that wait."""
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
        self._waiting: FIFOCache[tuple[str, str, str], tuple[Press, ...]] = FIFOCache(REMEMBERED)
        """The oldest first: people press twice."""

    def note(self, target: Target) -> Press:
        press = Press()
        self._keep(target, (*self._of(target), press)[-MOST:])
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
        self._keep(target, tuple(each for each in self._of(target) if each is not press))

    def whisper(self, target: Target, text: str, title: str) -> None:
        """Answers the oldest press of a person that waits. Raises `Rejected` if none does."""
        if not (waiting := self._of(target)):
            raise Rejected(f"{title} shows a text to one person of a group only when they press a button")
        waiting[0].text = text
        waiting[0].answered.set()
        self._keep(target, waiting[1:])

    def _of(self, target: Target) -> tuple[Press, ...]:
        return self._waiting.get(_place(target), ())

    def _keep(self, target: Target, waiting: tuple[Press, ...]) -> None:
        self._waiting.pop(_place(target), None)
        if waiting:
            self._waiting[_place(target)] = waiting


def _place(target: Target) -> tuple[str, str, str]:
    """Returns the chat, the message with the button, and the person."""
    return target.chat, target.reply_to, target.sender

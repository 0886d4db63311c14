"""The sign that somebody is at work: an emotion on the message that is answered."""

from __future__ import annotations

from contextlib import suppress

import anyio
from cachetools import FIFOCache

from channels.dingtalk import translation
from channels.dingtalk.api import Api
from core.chat.facts import Target
from core.errors import Invalid, Unavailable

REMEMBERED = 1000
"""Messages whose sign is known."""
SETTLE_SECONDS = 5.0
NAME = "🤔Thinking"
EMOTION = {"emotionId": "2659900", "emotionName": NAME, "text": NAME, "backgroundId": "im_bg_1"}
"""The platform's own text emotion, as its connectors send it."""


class Sign:
    """The signs of an account. A message that is unknown here was received by a process that has ended."""

    def __init__(self, api: Api, robot_code: str) -> None:
        self._api = api
        self._robot_code = robot_code
        self._shown: FIFOCache[str, bool] = FIFOCache(REMEMBERED)

    def received(self, message: str) -> None:
        """Notes a message, which has no sign yet."""
        if message not in self._shown:
            self._shown[message] = False

    async def show(self, target: Target, on: bool) -> None:
        message, conversation = translation.answered(target)
        if not conversation or self._shown.get(message) is on:
            return
        body = {
            "robotCode": self._robot_code,
            "openMsgId": message,
            "openConversationId": conversation,
            "emotionType": 2,
            "emotionName": NAME,
            "textEmotion": EMOTION,
        }
        await self._api.call("POST", f"/v1.0/robot/emotion/{'reply' if on else 'recall'}", body, idempotent=True)
        self._shown[message] = on

    async def settle(self, target: Target) -> None:
        """Takes away what a process that has ended may have left on a message that was answered. Never raises."""
        message, _ = translation.answered(target)
        if message not in self._shown:
            with suppress(Unavailable, Invalid), anyio.move_on_after(SETTLE_SECONDS):
                await self.show(target, False)

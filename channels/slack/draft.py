"""An answer that grows in Slack: a native stream where the workspace has it, else a message that is updated.

A native stream needs a thread and only grows; Slack closes it after about five minutes, even at work (research
im-platforms §2.1). So the answer always ends with `chat.update`, which also gives the message its key. An open stream
has no metadata and can be stopped: so it is recognised if the answer to its start was lost, or if the process ended
before it could note its id.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from time import monotonic
from typing import TYPE_CHECKING, Any

from channels.slack.messages import growing, payload_of, streamable
from channels.slack.web import call, code_of
from core.chat.facts import Target
from core.chat.port import ChatGone, Content, FateUnknown, Rejected
from core.errors import Unavailable

if TYPE_CHECKING:
    from channels.slack.platform import SlackPlatform

RECENT_SECONDS = 600.0
"""Time after the process began in which a draft of the process before it may still be there."""
_NOT_CHANGEABLE = frozenset({"cant_update_message", "edit_window_closed", "msg_too_long"})


class SlackDraft:
    """Implements `core.chat.port.Draft`."""

    def __init__(self, platform: SlackPlatform, target: Target, key: str, message: str) -> None:
        self._platform = platform
        self._target = target
        self._key = key
        self._message = message
        self._streaming = bool(message)
        """The message may be an open stream."""
        self._streamed: str | None = None
        """What the stream shows; None if the message is updated instead."""
        self._shown: tuple[str, str] | None = None
        self._lost_since = time.time() - RECENT_SECONDS if self._may_have_predecessor() else 0.0
        """Since when a message may be there whose id is not known; 0 if there is none."""

    @property
    def message(self) -> str:
        return self._message

    async def show(self, text: str, status: str) -> None:
        text = growing(text)
        if (text, status) == self._shown:
            return
        await self._recover()
        if not self._message:
            await self._begin(text, status)
        elif self._streamed is None or not await self._append(text, status):
            await self._end_stream()
            try:
                await self._platform.edit(self._target, self._message, Content(text, status))
            except Rejected as error:
                if code_of(error) not in _NOT_CHANGEABLE:
                    raise
        self._shown = (text, status)

    async def finish(self, content: Content, key: str) -> str:
        await self._recover()
        if self._message:
            await self._end_stream()
            try:
                await self._platform.edit_with(self._target, self._message, content, key)
                return self._message
            except Rejected as error:
                if code_of(error) not in _NOT_CHANGEABLE:
                    raise
            except ChatGone as error:
                if code_of(error) != "message_not_found":
                    raise
            await self.drop()
        self._message = await self._platform.post(self._target, content, key)
        return self._message

    async def drop(self) -> None:
        await self._recover()
        if self._message:
            await self._platform.delete(self._target, self._message)
            self._message, self._streaming, self._streamed = "", False, None

    async def _begin(self, text: str, status: str) -> None:
        if self._may_stream():
            if not streamable(text).strip():
                await self._platform.show_status(self._target, status)
                return
            if await self._start_stream(text):
                return
        payload = {"key": self._key, "draft": True}
        began = time.time()
        try:
            self._message = await self._platform.post_with(self._target, Content(text, status), payload)
        except FateUnknown:
            self._lost_since = began
            raise

    async def _start_stream(self, text: str) -> bool:
        """Starts a native stream. Returns whether the workspace has them."""
        target, platform = self._target, self._platform
        recipient: dict[str, Any] = {}
        if target.kind == "group":
            recipient = {"recipient_user_id": target.sender, "recipient_team_id": (await platform.bot()).team}
        shown, began = streamable(text), time.time()
        start = platform.web.client.chat_startStream
        try:
            request = start(channel=target.chat, thread_ts=target.topic, markdown_text=shown, **recipient)
            answer = await call("chat.startStream", request)
        except Rejected:
            platform.refuse_streams(target.chat)
            return False
        except FateUnknown:
            self._lost_since = began
            raise
        self._message, self._streamed, self._streaming = str(answer["ts"]), shown, True
        return True

    async def _append(self, text: str, status: str) -> bool:
        """Lets the stream grow. Returns whether it could: it takes nothing back, and Slack may have closed it."""
        shown, streamed = streamable(text), self._streamed or ""
        self._streamed = None
        if not shown.startswith(streamed):
            return False
        if self._shown is None or status != self._shown[1]:
            await self._platform.show_status(self._target, status)
        if more := shown[len(streamed) :]:
            append = self._platform.web.client.chat_appendStream
            request = append(channel=self._target.chat, ts=self._message, markdown_text=more)
            try:
                await call("chat.appendStream", request)
            except FateUnknown:
                # What it shows is not known: an update will replace it.
                raise
            except Unavailable:
                self._streamed = streamed
                raise
            except Rejected as error:
                if code_of(error) != "message_not_in_streaming_state":
                    raise
                self._streaming = False
                return False
        self._streamed = shown
        return True

    async def _end_stream(self) -> None:
        """Closes the stream, if the message is one: an open one cannot be changed."""
        if not self._streaming:
            return
        try:
            stop = self._platform.web.client.chat_stopStream(channel=self._target.chat, ts=self._message)
            await call("chat.stopStream", stop)
        except Rejected:
            # `message_not_in_streaming_state`, or a workspace without streams. The update decides.
            pass
        except ChatGone as error:
            if code_of(error) != "message_not_found":
                raise
        self._streaming, self._streamed = False, None

    async def _recover(self) -> None:
        """Looks for a message whose id is not known. Raises `Unavailable` if that cannot be told."""
        if not self._lost_since or self._message:
            return
        others = {draft.message for draft in self._platform.drafts if draft is not self}
        messages = await self._platform.own_messages(self._target, self._lost_since)
        for message in sorted(messages, key=lambda message: str(message["ts"]), reverse=True):
            if message["ts"] not in others and await self._is_lost_draft(message):
                self._message, self._streaming, self._streamed = str(message["ts"]), True, None
                break
        self._lost_since = 0.0

    async def _is_lost_draft(self, message: Mapping[str, Any]) -> bool:
        if payload := payload_of(message):
            return payload.get("key") == self._key and bool(payload.get("draft"))
        if message.get("subtype") or message.get("files") or not self._may_stream():
            return False
        stop = self._platform.web.client.chat_stopStream(channel=self._target.chat, ts=str(message["ts"]))
        try:
            await call("chat.stopStream", stop)
        except Rejected:
            return False
        return True

    def _may_have_predecessor(self) -> bool:
        return not self._message and monotonic() - self._platform.created < RECENT_SECONDS

    def _may_stream(self) -> bool:
        target = self._target
        reachable = target.topic and (target.kind == "private" or target.sender)
        return bool(reachable) and target.chat not in self._platform.streamless

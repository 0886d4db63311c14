"""An answer that grows in Slack: a native stream where the workspace has it, else a message that is updated.

A native stream needs a thread and only grows; Slack closes it after about five minutes, even at work (research
im-platforms §2.1). So the answer always ends with `chat.update`, which also gives the message its key. A stream has no
buttons: after `Traits.buttonless_seconds` the message is updated instead, with the one that stops the run.
"""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, Any

from channels.slack.messages import growing, streamable
from channels.slack.web import code_of
from core.chat.facts import Target
from core.chat.port import ChatGone, Content, FateUnknown, Rejected, unfinished
from core.errors import Unavailable

if TYPE_CHECKING:
    from channels.slack.platform import SlackPlatform

_NOT_CHANGEABLE = frozenset({"cant_update_message", "edit_window_closed", "msg_too_long"})


class SlackDraft:
    """Implements `core.chat.port.Draft`. `message`: of a draft that another process began."""

    def __init__(self, platform: SlackPlatform, target: Target, key: str, message: str) -> None:
        self._platform = platform
        self._target = target
        self._key = key
        self._message = message
        self._streaming = bool(message) and platform.has_streams(target)
        """The message may be an open stream."""
        self._streamed: str | None = None
        """The text of the stream; None if the message is updated instead."""
        self._shown: tuple[str, str] | None = None
        self._begun = False
        self._since = monotonic()
        self._has_button = False

    @property
    def message(self) -> str:
        return self._message

    async def show(self, text: str, status: str) -> None:
        text = growing(text)
        if ((text, status) == self._shown and not self._lacks_button()) or not self._may_call():
            return
        if not self._message:
            await self._begin(text, status)
        elif self._streamed is None or not await self._append(text, status):
            await self._end_stream()
            try:
                await self._platform.edit(self._target, self._message, unfinished(text, status, self._key))
                self._has_button = True
            except Rejected as error:
                if code_of(error) not in _NOT_CHANGEABLE:
                    raise
        self._shown = (text, status)

    async def finish(self, content: Content, key: str) -> str:
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
        self._message = await self._platform.post(self._target, unfinished(text, status, self._key), self._key)
        self._has_button = True

    async def _start_stream(self, text: str) -> bool:
        """Starts a native stream. Returns whether the workspace has them."""
        target, platform = self._target, self._platform
        recipient: dict[str, Any] = {}
        if target.kind == "group":
            recipient = {"recipient_user_id": target.sender, "recipient_team_id": (await platform.bot()).team}
        shown = streamable(text)
        place = {"channel": target.chat, "thread_ts": target.topic}
        try:
            answer = await platform.web.call("chat.startStream", **place, markdown_text=shown, **recipient)
        except Rejected:
            platform.refuse_streams(target.chat)
            return False
        self._message, self._streamed, self._streaming = str(answer["ts"]), shown, True
        return True

    async def _append(self, text: str, status: str) -> bool:
        """Lets the stream grow. Returns whether it could: it takes nothing back, and Slack may have closed it."""
        shown, streamed = streamable(text), self._streamed or ""
        self._streamed = None
        if self._lacks_button() or not shown.startswith(streamed):
            return False
        if self._shown is None or status != self._shown[1]:
            await self._platform.show_status(self._target, status)
        if more := shown[len(streamed) :]:
            place = {"channel": self._target.chat, "ts": self._message}
            try:
                await self._platform.web.call("chat.appendStream", **place, markdown_text=more)
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
        """Closes the stream, if the message may be one: an open one cannot be changed."""
        if self._streaming:
            await self._platform.stop_stream(self._target, self._message)
        self._streaming, self._streamed = False, None

    def _may_call(self) -> bool:
        """Returns whether the limits of the workspace leave room for one more call of a draft."""
        web = self._platform.web
        if not self._message:
            self._begun = self._begun or web.begin_draft()
            return self._begun
        return web.has_room("chat.update" if self._streamed is None else "chat.appendStream")

    def _lacks_button(self) -> bool:
        """Tells whether it is time for the button, and the message has none."""
        return not self._has_button and monotonic() - self._since >= self._platform.traits.buttonless_seconds

    def _may_stream(self) -> bool:
        streams = bool(self._target.sender) and self._platform.has_streams(self._target)
        return streams and not self._lacks_button()

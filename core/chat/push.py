"""Outcomes of runs that go to a chat although nobody asked there: of schedules, and of runs whose metadata say so."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from core.chat.facts import ACCOUNT, Target, conversation
from core.errors import Invalid
from core.events import Json
from core.lifecycle import DELIVER

_Account = Annotated[str, msgspec.Meta(pattern=rf"^{ACCOUNT.pattern}\Z")]
_Chat = Annotated[str, msgspec.Meta(min_length=1)] | int


class Push(msgspec.Struct, frozen=True):
    """A chat of an account (`channel`), by the platform's id, and a topic in it. `kind` matters on platforms that
    address people in private chats, not the chat: there `chat` is the person's id."""

    channel: _Account
    chat: _Chat
    topic: str = ""
    kind: Literal["private", "group"] = "group"

    @property
    def target(self) -> Target:
        chat = str(self.chat)
        return Target(chat, topic=self.topic, kind=self.kind, sender=chat if self.kind == "private" else "")

    @property
    def conversation(self) -> str:
        return conversation(self.channel, str(self.chat), self.topic).id


def push_of(metadata: Json) -> Push | None:
    """Returns where the outcome of a run with such metadata is delivered, too; None if nowhere. Raises `Invalid`."""
    try:
        return msgspec.convert(metadata.get(DELIVER), Push | None)
    except msgspec.ValidationError as error:
        raise Invalid(f"metadata.{DELIVER}: {error}") from None

"""Answers that go to a chat although nobody asked there: of schedules, and of runs whose metadata say so."""

from __future__ import annotations

from typing import Literal

import msgspec

from core.chat.account import platform_of
from core.chat.connections import State
from core.chat.facts import ACCOUNT, Target, conversation
from core.chat.state import Conversation
from core.config.settings import Config
from core.errors import Invalid
from core.lifecycle import DELIVER
from core.thread.state import Run


class Push(msgspec.Struct, frozen=True):
    """A chat of an account (`channel`), by the platform's id, and a topic in it. `kind` matters on platforms that
    address people in private chats, not the chat: there `chat` is the person's id."""

    channel: str
    chat: str | int
    topic: str = ""
    kind: Literal["private", "group"] = "group"

    @property
    def target(self) -> Target:
        chat = str(self.chat)
        return Target(chat, topic=self.topic, kind=self.kind, sender=chat if self.kind == "private" else "")

    @property
    def conversation(self) -> str:
        return conversation(self.channel, str(self.chat), self.topic).id


def push_of(run: Run) -> Push | None:
    """Returns where a run's outcome is to be delivered besides; None if nowhere. Raises `Invalid`."""
    if DELIVER not in run.request.metadata:
        return None
    try:
        push = msgspec.convert(run.request.metadata[DELIVER], Push)
    except msgspec.ValidationError as error:
        raise Invalid(f"metadata.{DELIVER}: {error}") from None
    if not ACCOUNT.fullmatch(push.channel):
        raise Invalid(f"metadata.{DELIVER}.channel: {push.channel[:64]!r} cannot be the name of an account")
    return push


def refusal(push: Push, user: str, config: Config, known: Conversation, connections: State) -> str:
    """Returns why a user may not have something said in a chat; empty if they may.

    Where there are accounts, a user reaches the chats in which they have talked to the agent, and themselves.
    """
    if platform_of(push.channel) not in config.channels.platforms:
        return f"there is no account {push.channel}"
    connection = connections.of_person(push.channel, str(push.chat))
    own = push.kind == "private" and connection is not None and connection.user == user
    if config.auth.enabled and not own and user not in known.threads:
        return f"{user} has not talked to the agent in this chat"
    return ""

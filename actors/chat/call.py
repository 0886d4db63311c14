"""A turn on its way through the router."""

from __future__ import annotations

import uuid
from typing import NamedTuple

import msgspec

from actors.chat.answers import plan_id
from actors.chat.person import person_user
from actors.chat.turns import Message, Turn
from core.chat.facts import DeliveryPlanned, Target
from core.chat.state import Conversation
from core.config.channels import AccountSettings
from core.config.load import Config

_IDS = uuid.UUID("0193f4b2-6f0a-7c66-9d8e-2a1f54c3b7e1")
"""The namespace of the ids of threads and runs that derive from messages."""


class Call(NamedTuple):
    """A turn on its way: whose it is, and how runs of it are set up."""

    conversation: str
    account: str
    turn: Turn
    state: Conversation
    settings: AccountSettings
    config: Config
    user: str
    """The user whom the turn concerns (`actors.chat.person`)."""
    connected: bool = False
    """True if the sender is connected as this user."""
    account_user: str | None = None
    """The user as whom the sender is connected."""

    @property
    def first(self) -> Message:
        return self.turn.first

    @property
    def target(self) -> Target:
        """Where answers to it go."""
        event = self.first.event
        return msgspec.structs.replace(event.target, sender=event.target.sender or event.sender)

    @property
    def who(self) -> str:
        return self.first.event.sender_name or self.first.event.sender

    @property
    def writer(self) -> str:
        """The user who wrote it, also in a group."""
        return self.account_user or person_user(self.account, self.first.event.sender)

    def id(self, *what: str) -> str:
        """Returns an id that derives from the message."""
        return derived(self.conversation, self.first.key, *what)

    def says(self, text: str, what: str = "reply") -> DeliveryPlanned:
        """Returns the plan of a reply of the system itself."""
        return DeliveryPlanned(
            plan=plan_id(self.conversation, self.first.key, what), purpose="notice", target=self.target, text=text
        )


def derived(conversation: str, key: str, *what: str) -> str:
    """Returns an id that derives from a message with a key."""
    return str(uuid.uuid5(_IDS, "\n".join((conversation, key, *what))))

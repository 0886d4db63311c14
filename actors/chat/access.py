"""Access to the agent on a chat platform: to whom it listens, and in which chats (issue: who may talk)."""

from __future__ import annotations

from typing import NamedTuple

from core.chat.facts import ChatReceived
from core.chat.state import Conversation
from core.config.channels import AccountSettings


class Verdict(NamedTuple):
    """`outcome`: empty if the message is to be answered, else `ignored`, or `refused`: the person is told so."""

    outcome: str = ""
    reason: str = ""


ADMITTED = Verdict()


def addressed(event: ChatReceived, state: Conversation, settings: AccountSettings) -> Verdict:
    """Tells whether a message is meant for the agent: in a group it mentions or answers the bot, presses its button, or
    is in a topic in which the agent has taken part."""
    target = event.target
    if target.kind == "private" or event.mentioned or event.choice is not None or not settings.require_mention:
        return ADMITTED
    if target.topic and state.threads:
        return ADMITTED
    return Verdict("ignored", "the bot was not mentioned")


def admitted(event: ChatReceived, settings: AccountSettings, *, open_to_the_world: bool, connected: bool) -> Verdict:
    """Tells whether a person may talk to the agent here. `connected`: they are a user of this server.

    A listed chat admits whoever is in it, unless there is a list of people, too.
    """
    target = event.target
    listed_chat = target.kind == "group" and target.chat in settings.chats
    if target.kind == "group" and settings.chats and not listed_chat:
        return Verdict("ignored", "the chat is not in allowed_chats")
    if connected:
        return ADMITTED
    if settings.people:
        if event.sender in settings.people:
            return ADMITTED
        learns = open_to_the_world and target.kind == "private"
        return Verdict("refused" if learns else "ignored", "the person is not in allowed_users")
    if open_to_the_world and not (settings.allow_everyone or listed_chat):
        return Verdict("refused", "nobody is in allowed_users")
    return ADMITTED

"""Access to the agent on a chat platform: to whom it listens, and in which chats (issue: who may talk)."""

from __future__ import annotations

from typing import NamedTuple

from actors.chat.commands import parsed
from core.chat import platforms
from core.chat.account import platform_of
from core.chat.connections import Connection, Connections
from core.chat.facts import ChatReceived
from core.chat.state import Conversation
from core.config.channels import AccountSettings
from core.config.load import Config, ConfigSource
from core.identity.standing import Standing
from core.log.store import EventLog


class Verdict(NamedTuple):
    """`outcome`: empty if the message is to be answered, else `ignored`, `refused`: the person is told so, or
    `unconnected`: they must connect first."""

    outcome: str = ""
    reason: str = ""


ADMITTED = Verdict()


def judged(
    event: ChatReceived, state: Conversation, config: Config, account: str, connection: Connection | None
) -> Verdict:
    """Tells whether a message is for the agent, and its sender may talk to it. `connection`: the sender's."""
    settings, connections = config.channels.account(account) or AccountSettings(), config.channel_connections
    traits = platforms.traits(platform_of(account), config)
    verdict = addressed(event, state, settings, rooms=traits.topics_are_rooms)
    if verdict.outcome:
        return verdict
    connected = connections.enabled and connection is not None
    verdict = admitted(event, settings, open_to_the_world=traits.open_to_the_world, connected=connected)
    if not verdict.outcome and connections.enabled and connections.require_bound_identity and not connected:
        return Verdict("unconnected", "not connected")
    return verdict


class Gate:
    """The same for one account, where its messages arrive: files of people who may not talk are not fetched."""

    def __init__(self, account: str, config: ConfigSource, log: EventLog, standing: Standing) -> None:
        self._account = account
        self._config = config
        self._connections = Connections(log, actor=account)
        self._standing = standing

    async def admits(self, event: ChatReceived, state: Conversation) -> bool:
        """Raises `Unavailable`."""
        config = self._config.current()
        connection = (await self._connections.state()).of_person(self._account, event.sender)
        connected = config.channel_connections.enabled and connection is not None
        if connected and connection is not None and not await self._standing.active(connection.user):
            return False
        return not judged(event, state, config, self._account, connection).outcome

    async def awaits(self, event: ChatReceived, state: Conversation) -> bool:
        """Tells whether a message is words or files for the agent, from somebody who may talk to it. Raises
        `Unavailable`.
        """
        if (
            event.choice is not None
            or event.edited
            or event.deleted
            or parsed(event.text, platform_of(self._account)) is not None
        ):
            return False
        return await self.admits(event, state)


def addressed(event: ChatReceived, state: Conversation, settings: AccountSettings, *, rooms: bool) -> Verdict:
    """Tells whether a message is for the agent: in a group it mentions or answers the bot, presses its button, or
    is in a topic in which the agent has taken part, unless it begins with the mention of somebody else. `rooms`: see
    `Traits.topics_are_rooms`.
    """
    target = event.target
    if target.kind == "private" or event.mentioned or event.choice is not None or not settings.require_mention:
        return ADMITTED
    if target.topic and state.threads and not rooms and not event.text.lstrip().startswith("@"):
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

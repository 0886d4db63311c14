"""Decides on what a user has said in a chat although nobody asked there (`core.chat.push`)."""

from __future__ import annotations

from core.chat.connections import State
from core.chat.push import Push
from core.chat.state import Conversation
from core.config.settings import Config


def refusal(push: Push, user: str, exists: bool, config: Config, known: Conversation, connections: State) -> str:
    """Returns why a user may not have something said in a chat; empty if they may. `exists`: the account does.

    Where there are accounts, a user reaches the chats in which they have talked to the agent, and themselves.
    """
    if not exists:
        return f"there is no account {push.channel}"
    connection = connections.of_person(push.channel, str(push.chat))
    own = push.kind == "private" and connection is not None and connection.user == user
    if config.auth.enabled and not own and user not in known.threads:
        return f"{user} has not talked to the agent in this chat"
    return ""

"""The users that conversations on chat platforms belong to. Pure.

A person without an account is a user of their own: memory, files, budgets, limits and agents are theirs. So is a group:
its messages, and what is remembered of them, are nobody's alone, and no private memory goes into it.
"""

from __future__ import annotations

import uuid

from core.chat.facts import Target
from core.errors import Invalid
from core.ids import safe_id

_SPACE = uuid.UUID("5c6d5b7e-6f0b-4d36-9a55-4f0f8c1d2b9e")
MOST_READABLE = 48
"""Characters of a platform's id that stay as they are in a user's id."""


def user_of(account: str, target: Target, sender: str, connected: str | None = None) -> str:
    """Returns the user whom a message concerns: the group in which it was written, the user as whom its sender is
    `connected`, or the sender.
    """
    if target.kind == "group":
        return group_user(account, target.chat)
    return connected if connected is not None else person_user(account, sender)


def person_user(account: str, sender: str) -> str:
    """Returns the user that a person without an account is: `slack__U012AB3CD`."""
    return f"{account}__{_token(sender)}"


def group_user(account: str, chat: str) -> str:
    """Returns the user that a group is: `slack__group__C012AB3CD`."""
    return f"{account}__group__{_token(chat)}"


def _token(text: str) -> str:
    """Returns a platform's id as a part of a user's id: itself, or a name that derives from it."""
    try:
        if len(text) <= MOST_READABLE and "__" not in text and text != "group":
            return safe_id(text, "id")
    except Invalid:
        pass
    return str(uuid.uuid5(_SPACE, text))

"""The commands that people have in chats (DeerFlow's dispatcher)."""

from __future__ import annotations

from collections.abc import Mapping

HELP: Mapping[str, str] = {
    "new": "begin a new conversation",
    "status": "show what the agent is doing",
    "stop": "stop the answer that is being made; /stop all: and what waits after it",
    "queue": "show the messages that wait; /queue clear: drop them",
    "retry": "answer the last message again",
    "again": "send an answer once more that may not have arrived",
    "undo": "forget the last message and its answer",
    "goal": "set a goal and work on it: /goal text; give it up: /goal clear",
    "models": "list the models",
    "memory": "tell how much the agent remembers of you; /memory groups: whether it uses that in groups",
    "bootstrap": "create an agent of your own, in conversation",
    "help": "show this list",
}
CONNECT = "connect"
START = "start"
"""Telegram's first message, with a code if the person came by a link."""


def is_command(word: str) -> bool:
    """Tells whether a word, without a sign before it, is the name of a command."""
    return word.lower() in HELP or word.lower() == CONNECT


def umbrella(text: str) -> str:
    """Returns the text of a slash command under whose name all of ours stand, as `/sika stop`: a command, or words."""
    return f"/{text}" if is_command(text.partition(" ")[0]) else text or "/help"

"""Commands in chat: which text is one (DeerFlow's dispatcher)."""

from __future__ import annotations

import re
from typing import NamedTuple

from core.chat.commands import CONNECT, HELP, START
from core.chat.people import MENTION
from core.forms import YES

CONTROL = frozenset(("stop", "status", "queue", "help", "models", "memory"))
"""Commands that are answered at once, also while earlier messages wait for their files."""
SHOUTED = frozenset(("slack", "discord"))
"""Platforms that take a slash at the beginning for a command of their own: there `!stop` is the same as `/stop`."""
_MENTIONS = re.compile(rf"(?:<@[^>\s]+>|{MENTION}|@\S+)\s+")
_COMMAND = re.compile(r"([/!])([A-Za-z]+)(?:@\S+)?(?:\s+(.*))?", re.DOTALL)


class Command(NamedTuple):
    """`text`: what follows the name."""

    name: str
    text: str = ""


def parsed(text: str, platform: str) -> Command | None:
    """Returns the command that a message is; None if it is none of ours. Mentions before it do not count."""
    text = text.strip()
    while match := _MENTIONS.match(text):
        text = text[match.end() :]
    if text.lower() == "stop":
        return Command("stop")
    match = _COMMAND.fullmatch(text)
    if match is None or (match[1] == "!" and platform not in SHOUTED):
        return None
    name = match[2].lower()
    known = name in HELP or name == CONNECT or (name == START and platform == "telegram")
    return Command(name, (match[3] or "").strip()) if known else None


def code_of(command: Command | None) -> tuple[str, bool] | None:
    """Returns the code with which a person connects, and whether they confirm it, if the message brings one."""
    if command is None or command.name not in (CONNECT, START) or not command.text:
        return None
    code, *rest = command.text.split()
    return code, bool(rest) and rest[0].casefold() in YES


def help_text() -> str:
    """Returns the list of commands."""
    return "\n".join(["Write to me as you like. There are commands, too:", "", *_lines()])


def _lines() -> list[str]:
    return [f"- `/{name}`: {text}" for name, text in HELP.items()]

"""Words that SQLite can find: of messages as they are indexed, and of what somebody looks for."""

from __future__ import annotations

import re

from core.events import Message
from core.thread.messages import text_of

MOST_CHARACTERS = 100_000
"""Limit of a message's text that is searched."""
MOST_WORDS = 32
"""Limit of the words of a full-text query; more are ignored."""

SEPARATOR = "\x1f"
"""Ends a word for SQLite, and is taken out where a text is shown."""
_UNSPACED = (
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u9fff\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff\uff66-\uff9f"
    "\U00020000-\U0003ffff]"
)
"""Scripts that put no spaces between words, or too few: every character of theirs is a word."""
_BETWEEN = re.compile(f"(?<={_UNSPACED})(?=.)|(?<=.)(?={_UNSPACED})", re.DOTALL)


def indexed(text: str) -> str:
    """The text with the words set apart that SQLite would not find."""
    text = text[:MOST_CHARACTERS]
    return text if text.isascii() else _BETWEEN.sub(SEPARATOR, text)


def unsegmented(text: str) -> str:
    """The other way round."""
    return text.replace(SEPARATOR, "")


def words_of(message: Message) -> str | None:
    """Returns the indexed text of a message; None if there is none, or the message removes another."""
    text = "" if message["type"] == "remove" else text_of(message.get("content", ""))
    return indexed(text) if text.strip() else None


def expression(query: str) -> str:
    """The words of a query as an FTS5 expression: all must be there, the last one at least as a beginning. "" if it
    has no words.
    """
    words = [word for word in query.replace("\0", " ").split() if any(map(str.isalnum, word))][:MOST_WORDS]
    terms = ['"{}"'.format(indexed(word).replace('"', '""')) for word in words]
    return " ".join(terms) + ("*" if terms and not query[-1:].isspace() else "")

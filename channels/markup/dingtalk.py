"""Markdown for DingTalk: the subset of `sampleMarkdown`, that of AI cards, and where to split."""

from __future__ import annotations

LIMIT = 18_000


def markdown(source: str) -> str:
    """Returns the text of a `sampleMarkdown` message, which has neither tables nor code blocks."""
    raise NotImplementedError


def card(source: str) -> str:
    """Returns the content of an AI card, which has both."""
    raise NotImplementedError


def title(source: str) -> str:
    """Returns the first line of what a reader sees, for notifications: at most 60 characters, empty for an empty text."""
    raise NotImplementedError


def parts(source: str, limit: int = LIMIT) -> list[str]:
    """Splits Markdown into parts of which `markdown` and `card` have at most `limit` bytes (UTF-8)."""
    raise NotImplementedError

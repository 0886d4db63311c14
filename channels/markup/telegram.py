"""Markdown for Telegram: a text and its entities, and where to split."""

from __future__ import annotations

from typing import Any

LIMIT = 4096


def entities(source: str) -> tuple[str, list[dict[str, Any]]]:
    """Returns a text and its `MessageEntity` objects. Offsets and lengths are UTF-16 units."""
    raise NotImplementedError


def units(text: str) -> int:
    """Returns the length of a text in UTF-16 units, as Telegram counts."""
    raise NotImplementedError


def parts(source: str, limit: int = LIMIT) -> list[str]:
    """Splits Markdown into parts whose text has at most `limit` UTF-16 units and 100 entities."""
    raise NotImplementedError

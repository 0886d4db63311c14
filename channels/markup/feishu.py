"""Markdown for Feishu and Lark: the elements of a card (JSON 2.0), and where to split."""

from __future__ import annotations

from typing import Any

LIMIT = 24_000


def elements(source: str) -> list[dict[str, Any]]:
    """Returns the elements of a card's body: one with the tag `markdown`. None for an empty text."""
    raise NotImplementedError


def markdown(source: str) -> str:
    """Returns the content of a `markdown` element, as CardKit's streaming updates take it."""
    raise NotImplementedError


def parts(source: str, limit: int = LIMIT) -> list[str]:
    """Splits Markdown into parts whose elements have at most `limit` bytes of JSON (UTF-8) and 3 tables."""
    raise NotImplementedError

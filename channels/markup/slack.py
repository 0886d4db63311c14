"""Markdown for Slack: a `markdown` block, mrkdwn, and where to split."""

from __future__ import annotations

from typing import Any

LIMIT = 10_000


def blocks(source: str) -> list[dict[str, Any]]:
    """Returns Block Kit blocks: one `markdown` block, which shows headings and tables. None for an empty text."""
    raise NotImplementedError


def markdown(source: str) -> str:
    """Returns the Markdown of `markdown` blocks and of native streams (`markdown_text`), with mentions neutralised."""
    raise NotImplementedError


def mrkdwn(source: str) -> str:
    """Returns the same in Slack's own format, for `text`."""
    raise NotImplementedError


def parts(source: str, limit: int = LIMIT) -> list[str]:
    """Splits Markdown into parts of which both `markdown` and `mrkdwn` have at most `limit` characters."""
    raise NotImplementedError

"""Cleaning of text from the web for the model: unseen characters are removed, and control tags are made harmless. All
other text is data, and is left unchanged.
"""

from __future__ import annotations

import re

from core.control import JOINERS, UNSEEN, neutralised

_LINE_END = re.compile("\r\n?|[\x0b\x0c\x85\u2028\u2029]")
_UNSEEN = re.compile(rf"[{UNSEEN}\ud800-\udfff]")
"""Unseen characters, and lone surrogates."""
_JOINERS = re.compile(rf"(?<=[\x00-\x7f])[{JOINERS}]+|[{JOINERS}]+(?=[\x00-\x7f])")
"""Joiners beside ASCII, which has no use for them."""


def clean(text: str) -> str:
    """Returns text without unseen characters, its control tags neutralised. Takes time in proportion to the text.
    `clean(clean(t)) == clean(t)`.
    """
    return neutralised(_JOINERS.sub("", _UNSEEN.sub("", _LINE_END.sub("\n", text))))


def line(text: str | None, limit: int) -> str:
    """Returns the cleaned text on one line of at most `limit` characters."""
    return " ".join(clean(text or "").split())[:limit]

"""What is removed from text of the web before the model reads it: what cannot be seen. What looks like our own control
tags is made harmless. What a page says otherwise is data, and is left as it is.
"""

from __future__ import annotations

import re

from core.control import JOINERS, UNSEEN, neutralised

_LINE_END = re.compile("\r\n?|[\x0b\x0c\x85\u2028\u2029]")
_UNSEEN = re.compile(rf"[{UNSEEN}\ud800-\udfff]")
"""Halves of characters too."""
_JOINERS = re.compile(rf"(?<=[\x00-\x7f])[{JOINERS}]+|[{JOINERS}]+(?=[\x00-\x7f])")
"""ASCII has no use for them."""


def clean(text: str) -> str:
    """Text without unseen characters, its control tags neutralised. Takes time in proportion to the text, and
    `clean(clean(t))` is `clean(t)`.
    """
    return neutralised(_JOINERS.sub("", _UNSEEN.sub("", _LINE_END.sub("\n", text))))


def line(text: str | None, most: int) -> str:
    """The same on one line of at most `most` characters."""
    return " ".join(clean(text or "").split())[:most]

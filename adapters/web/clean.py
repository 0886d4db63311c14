"""What is removed from text of the web before the model reads it: what cannot be seen. What looks like our own control
tags is made harmless. What a page says otherwise is data, and is left as it is.
"""

from __future__ import annotations

import re

from core.control import neutralised

_LINE_END = re.compile("\r\n?|[\x0b\x0c\x85\u2028\u2029]")
_UNSEEN = re.compile(
    "[\x00-\x08\x0e-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u200e\u200f\u202a-\u202e"
    "\u2060-\u206f\u3164\ud800-\udfff\ufeff\uffa0\ufff0-\ufffb\U000e0000-\U000e0fff]"
)
"""Control characters, marks of direction, blanks without width, halves of characters, and the alphabet of tags."""
_JOINERS = re.compile("(?<=[\x00-\x7f])[\u200c\u200d\ufe00-\ufe0f]+|[\u200c\u200d\ufe00-\ufe0f]+(?=[\x00-\x7f])")
"""Characters that shape their neighbours, which ASCII has no use for."""


def clean(text: str) -> str:
    """Text without unseen characters, its control tags neutralised. Takes time in proportion to the text, and
    `clean(clean(t))` is `clean(t)`.
    """
    return neutralised(_JOINERS.sub("", _UNSEEN.sub("", _LINE_END.sub("\n", text))))


def line(text: str | None, most: int) -> str:
    """The same on one line of at most `most` characters."""
    return " ".join(clean(text or "").split())[:most]

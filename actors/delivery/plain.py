"""Plain text of Markdown: what is left to say when a platform does not take the formatted one."""

from __future__ import annotations

import re

_FENCE = re.compile(r"^ {0,3}(```|~~~).*\n?", re.MULTILINE)
_LINK = re.compile(r"!?\[([^\]\[]*)\]\(([^()\s]*)[^()]*\)")
_MARKS = re.compile(r"\*\*|__|~~|`")
_HEADING = re.compile(r"^ {0,3}#{1,6} +", re.MULTILINE)
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>()#+\-.!|~&$=])")


def plain(text: str) -> str:
    """Returns Markdown that shows the words of a text without any format: links become their text and address, and
    what could still be read as format is escaped.
    """
    text = _HEADING.sub("", _FENCE.sub("", text))
    text = _LINK.sub(lambda match: f"{match[1]} ({match[2]})" if match[2] != match[1] else match[1], text)
    return _SPECIAL.sub(r"\\\1", _MARKS.sub("", text))

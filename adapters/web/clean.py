"""What is removed from text of the web before the model reads it: what cannot be seen, and what looks like our own
control tags. What a page says otherwise is data, and is left as it is.
"""

from __future__ import annotations

import re

CONTROL_TAGS = (
    "system-reminder", "memory", "current_date", "uploaded_files", "soul", "skill_system", "available_skills",
    "available-deferred-tools", "subagent_system", "working_directory", "system", "system_prompt", "tool_call",
    "tool_response", "function_calls", "function_results",
)  # fmt: skip
"""The tags in which the server tells the model something, and those in which models are trained to expect it."""
_TAG = re.compile(rf"<\s{{0,20}}/?\s{{0,20}}(?:{'|'.join(CONTROL_TAGS)})(?![\w-])(?:[^<>]{{0,500}}>)?", re.IGNORECASE)
_LINE_END = re.compile("\r\n?|[\x0b\x0c\x85\u2028\u2029]")
_UNSEEN = re.compile(
    "[\x00-\x08\x0e-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u200e\u200f\u202a-\u202e"
    "\u2060-\u206f\u3164\ud800-\udfff\ufeff\uffa0\ufff0-\ufffb\U000e0000-\U000e0fff]"
)
"""Control characters, marks of direction, blanks without width, halves of characters, and the alphabet of tags."""
_JOINERS = re.compile("(?<=[\x00-\x7f])[\u200c\u200d\ufe00-\ufe0f]+|[\u200c\u200d\ufe00-\ufe0f]+(?=[\x00-\x7f])")
"""Characters that shape their neighbours, which ASCII has no use for."""


def clean(text: str) -> str:
    """Text without unseen characters and control tags. Takes time in proportion to the text, and `clean(clean(t))` is
    `clean(t)`: a tag that appears by the removal of another is made harmless.
    """
    visible = _JOINERS.sub("", _UNSEEN.sub("", _LINE_END.sub("\n", text)))
    return _TAG.sub(lambda tag: "&lt;" + tag.group()[1:], _TAG.sub("", visible))


def line(text: str | None, most: int) -> str:
    """The same on one line of at most `most` characters."""
    return " ".join(clean(text or "").split())[:most]

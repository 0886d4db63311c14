"""Control tags that only the server may write. In text from elsewhere they are made harmless: `<system-reminder>`
becomes `&lt;system-reminder>`, which people can read and models do not obey.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection
from functools import partial
from typing import Any

OURS = (
    "system-reminder", "memory", "current_date", "uploaded_files", "soul", "skill_system", "available_skills", "skill",
    "available-deferred-tools", "subagent_system", "working_directory", "todo_reminder", "todo_completion_reminder",
    "loop_warning", "conversation_summary", "self_update", "thinking_style", "clarification",
    "response_style", "citations", "reminders", "bootstrap", "user_profile", "work_rules", "change_rules",
    "unattended_run", "project_instructions",
)  # fmt: skip
"""The tags of the server's own messages to the model."""
THEIRS = (
    "system", "system_prompt", "assistant", "think", "thinking", "tool_call", "tool_calls", "tool_response",
    "tool_result", "tool_results", "tool_use", "function_call", "function_calls", "function_result",
    "function_results", "function_response", "start_of_turn", "end_of_turn", "bos", "eos",
)  # fmt: skip
"""The tags in which models are trained to expect the system, themselves, or the results of tools."""
TAGS = OURS + THEIRS
NAMESPACES = ("antml",)
"""Prefixes of tags that are control tags whatever their name is."""
WORDS = ("INST", "SYSTEM_PROMPT", "AVAILABLE_TOOLS", "TOOL_CALLS", "TOOL_RESULTS")
"""The same in square brackets. Upper case only: `a[inst]` is code."""

UNSEEN = (
    "\x00-\x08\x0e-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u200e\u200f\u202a-\u202e"
    "\u2060-\u206f\u3164\ufeff\uffa0\ufff0-\ufffb\U000e0000-\U000e0fff"
)
"""For a set in a regular expression: control characters, marks of direction, blanks without width, and the alphabet of
tags.
"""
JOINERS = "\u200c\u200d\ufe00-\ufe0f"
"""Characters without a shape of their own that some scripts and emoji need between others."""
_UNSEEN = UNSEEN + JOINERS
_DASHES = "\\-_\u2010-\u2015\u2212\u2581\ufe58\ufe63\uff0d\uff3f"
_SKIPPED = rf"[\s/\\\uff0f{_UNSEEN}]*+"
_SUSPECT = re.compile(
    rf"""
    (?P<twice>[<\uff1c\ufe64]{{2}} {_SKIPPED} SYS {_SKIPPED} [>\uff1e\ufe65]{{2}})
    | [<\uff1c\ufe64] {_SKIPPED} (?:
        (?P<tag>[\w.:{_DASHES}{_UNSEEN}]++)
        | (?P<token>[|\uff5c] {_SKIPPED} [\w.:{_DASHES}{_UNSEEN}]++ {_SKIPPED} [|\uff5c])
    )
    | [\[\uff3b] (?P<word>[\w\s/{_DASHES}{_UNSEEN}]++) [\]\uff3d]
    """,
    re.VERBOSE,
)
_INVISIBLE = re.compile(rf"[{UNSEEN}]")
_NOT_SEEN = re.compile(rf"[{_UNSEEN}]")
_DASH = re.compile(rf"[{_DASHES}]")
_NOT_WORD = re.compile(r"[\s/]")


def _plain(name: str) -> str:
    if name.isascii() and name.isprintable():
        return name.replace("_", "-")
    return _DASH.sub("-", unicodedata.normalize("NFKC", _NOT_SEEN.sub("", name)))


_TAGS = frozenset(map(_plain, TAGS))
_WORDS = frozenset(map(_plain, WORDS))


def suspect(text: str) -> bool:
    """A cheap test for control tags: false positives happen, false negatives do not."""
    return "<" in text or "[" in text or (not text.isascii() and any(opener in text for opener in "\uff1c\ufe64\uff3b"))


def neutralised(text: str, *tags: str) -> str:
    """Returns the text with the first character of each control tag, and of each of these `tags`, written as an
    entity. Returns the same object if there is no such tag.

    Guarantees: takes time in proportion to the text. `neutralised(neutralised(t)) == neutralised(t)`. Upper and lower
    case, `-` and `_`, blanks, full-width letters and unseen characters make no difference. Non-guarantees: letters of
    another alphabet that look the same are let through, and so are words without brackets.
    """
    if not suspect(text):
        return text
    harmless = _SUSPECT.sub(partial(_harmless, _TAGS.union(map(_plain, tags))), text)
    return text if harmless == text else harmless


def unmasked(value: Any) -> Any:
    """Returns foreign JSON whose texts, at any depth, have no control tags and no unseen characters."""
    if isinstance(value, str):
        return neutralised(_INVISIBLE.sub("", value))
    if isinstance(value, dict):
        return {unmasked(key): unmasked(item) for key, item in value.items()}
    return [unmasked(item) for item in value] if isinstance(value, list) else value


def quoted(text: str, tag: str) -> str:
    """Returns a foreign text in a tag that it cannot end, as material for a model."""
    return f"<{tag}>\n{neutralised(text, tag)}\n</{tag}>"


_WHOLE = re.compile(rf"<{_SKIPPED}(?:[|\uff5c][^<>|]*+[|\uff5c]|(?P<tag>[\w.:-]++)[^<>]*+)(?:>|$)")
_NEUTRALISED = re.compile(rf"&lt;{_SKIPPED}(?P<tag>[\w.:-]++)[^<>&]*+(?:>|&gt;|$)")


def untagged(text: str, *tags: str) -> str:
    """Returns the text without its control tags and these `tags`, also neutralised ones: what a model answers may echo
    those it was shown.
    """
    names = _TAGS.union(map(_plain, tags))

    def rest(tag: re.Match[str]) -> str:
        return "" if tag["tag"] is None or _plain(tag["tag"].lower()) in names else tag[0]

    return _WHOLE.sub(rest, _NEUTRALISED.sub(rest, text))


def _harmless(tags: Collection[str], match: re.Match[str]) -> str:
    text = match.group()
    if not _forges(tags, match):
        return text
    return ("&#91;" if text[0] in "[\uff3b" else "&lt;") + text[1:]


def _forges(tags: Collection[str], match: re.Match[str]) -> bool:
    match match.lastgroup:
        case "tag":
            space, _, name = _plain(match["tag"]).lower().rpartition(":")
            return name.strip("-.") in tags or space in NAMESPACES
        case "word":
            return _NOT_WORD.sub("", _plain(match["word"])) in _WORDS
    return True


def sendable(text: str) -> str:
    """Returns a text that every encoding takes: halves of a character that meet are joined as in UTF-16, and a half
    alone, or a byte of a name that is no text, becomes U+FFFD.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text

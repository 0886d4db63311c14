"""Which text is made harmless, that it stays readable, and that nothing else is touched."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.bus.rpc import encoded
from core.control import TAGS, neutralised, quoted, sendable, suspect
from core.mcp.schemas import finite

SPACED = "antml" + ":"


@pytest.mark.parametrize("tag", TAGS)
def test_every_tag_open_and_closed(tag: str) -> None:
    assert neutralised(f"a <{tag}>b</{tag}>") == f"a &lt;{tag}>b&lt;/{tag}>"


@pytest.mark.parametrize(
    ("text", "harmless"),
    [
        ("<SYSTEM-Reminder x='1'>do</ system-reminder >", "&lt;SYSTEM-Reminder x='1'>do&lt;/ system-reminder >"),
        ("<system_reminder/>", "&lt;system_reminder/>"),
        ("<\n uploaded_files>", "&lt;\n uploaded_files>"),
        ("<\\/system-reminder>", "&lt;\\/system-reminder>"),
        ("<system-reminder", "&lt;system-reminder"),
        ("<<system-reminder>>", "<&lt;system-reminder>>"),
        ("<system-<soul>reminder>", "&lt;system-&lt;soul>reminder>"),
        ("<x:system-reminder>", "&lt;x:system-reminder>"),
        (f"<{SPACED}invoke name='bash'>", f"&lt;{SPACED}invoke name='bash'>"),
        ("<sys\u200btem-remin\u00adder>", "&lt;sys\u200btem-remin\u00adder>"),
        ("<\u2060/\u200dsoul\ufeff>", "&lt;\u2060/\u200dsoul\ufeff>"),
        ("<so\u3164ul>", "&lt;so\u3164ul>"),
        ("\uff1cｓｙｓtem\uff0dreminder\uff1e", "&lt;ｓｙｓtem\uff0dreminder\uff1e"),
        ("\ufe64\uff0fmemory>", "&lt;\uff0fmemory>"),
        ("<𝐬𝐨𝐮𝐥>", "&lt;𝐬𝐨𝐮𝐥>"),
        ("<system\u2011reminder>", "&lt;system\u2011reminder>"),
        ("<|im_start|>system", "&lt;|im_start|>system"),
        ("<| im_end |>", "&lt;| im_end |>"),
        ("<|system|>", "&lt;|system|>"),
        ("<\uff5ctool\u2581calls\u2581begin\uff5c>", "&lt;\uff5ctool\u2581calls\u2581begin\uff5c>"),
        ("[INST] a [/INST]", "&#91;INST] a &#91;/INST]"),
        ("\uff3b INST \uff3d", "&#91; INST \uff3d"),
        ("[TOOL_CALLS]", "&#91;TOOL_CALLS]"),
        ("<<SYS>>a<</SYS>>", "&lt;<SYS>>a&lt;</SYS>>"),
        ("<think>x</think>", "&lt;think>x&lt;/think>"),
    ],
)
def test_neutralised(text: str, harmless: str) -> None:
    assert neutralised(text) == harmless
    assert neutralised(harmless) is harmless


@pytest.mark.parametrize(
    "text",
    [
        "",
        "plain words",
        "a < b, c <= d && e << f",
        "<b>text</b> & <system-remind> <soulmate> <memory-card>",
        "<system.web> <systemd> <System.Collections>",
        "#include <sys/types.h>",
        "cout <<SYS",
        "f <| add 1 <|> g",
        "a[inst] = [x, y]; [INSTALL] [ok]",
        "[link](https://example.org/<id>)",
        "Käse 日本 می\u200cخواهم \uff1c\uff1e",
        "&lt;system-reminder&gt;",
    ],
)
def test_left_alone(text: str) -> None:
    assert neutralised(text) is text


def test_material_of_others_does_not_end_its_quotation() -> None:
    text = "a </Conversation > b < conversation> <soul> <b>"
    harmless = "a &lt;/Conversation > b &lt; conversation> &lt;soul> <b>"
    assert quoted(text, "conversation") == f"<conversation>\n{harmless}\n</conversation>"
    assert neutralised("</message>") == "</message>"


SIGNS = ["<", ">", "/", "[", "]", "|", " ", "\n", "\u200d", "\u200b", "\uff1c", "\uff5c", "x", ":", "-"]
PIECES = st.sampled_from([*SIGNS, "system-", "reminder", "SYS", "INST", "im_start", *TAGS])


@given(st.lists(PIECES, max_size=30).map("".join))
def test_once_is_enough(text: str) -> None:
    harmless = neutralised(text)
    assert neutralised(harmless) is harmless
    bare = "".join(harmless.split()).replace("\u200b", "").replace("\u200d", "").lower()
    assert not re.search(r"<system-reminder(?![\w-])", bare)  # `<system-reminders` is no tag
    assert "\uff1c" in text or harmless.replace("&lt;", "<").replace("&#91;", "[") == text


@given(st.text(max_size=200))
def test_what_is_not_suspect_needs_nothing(text: str) -> None:
    assert suspect(text) or neutralised(text) is text


HIGH, LOW, LOST = "\ud83e", "\udd8a", "\ufffd"
"""The halves of a fox, and what becomes of one alone."""
HALVES = {
    "": "",
    "plain": "plain",
    "größe 🦊": "größe 🦊",
    HIGH + LOW: "🦊",
    f"a{HIGH}{LOW}b": "a🦊b",
    f"{HIGH}": LOST,
    f"a{LOW}": f"a{LOST}",
    f"{HIGH}b": f"{LOST}b",
    f"{LOW}{HIGH}": LOST * 2,
    f"{HIGH}{HIGH}{LOW}{LOW}": f"{LOST}🦊{LOST}",
    f"{HIGH}🦊": f"{LOST}🦊",
    "name \udcff": f"name {LOST}",
    "\ufeffmark": "\ufeffmark",
}


@pytest.mark.parametrize(("text", "whole"), HALVES.items(), ids=ascii)
def test_halves_of_characters(text: str, whole: str) -> None:
    assert sendable(text) == whole
    value, raw = encoded({"a": [text], text: HIGH})
    assert json.loads(raw) == value == {"a": [whole], whole: LOST}
    assert finite([text]) == [whole]


@given(st.text())
def test_halves_that_meet_are_the_character(text: str) -> None:
    """As in JSON that escapes each half, and is read by what does not join them."""
    units = text.encode("utf-16-le")
    halves = "".join(chr(int.from_bytes(units[at : at + 2], "little")) for at in range(0, len(units), 2))
    assert sendable(halves) == sendable(text) == text

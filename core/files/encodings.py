"""The encodings of text files: what a file's bytes say, and the way back."""

from __future__ import annotations

import codecs
import re
from typing import NamedTuple

from charset_normalizer import from_bytes

PROBE = 64 << 10
"""Bytes in which a NUL marks a file as binary, and from which an encoding is guessed."""
_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
"""Byte order marks. Those of UTF-32 come before those of UTF-16, which they begin with."""
_FALLBACK = "cp1252"
_CANDIDATES = [
    *("cp1252", "cp1250", "cp1251", "cp1253", "cp1254", "cp1255", "cp1256", "cp1257", "cp1258", "gb18030", "big5"),
    *("cp932", "euc_jp", "cp949", "euc_kr", "koi8_r", "koi8_u", "cp866", "cp850"),
]
"""Encodings that are guessed: those of files in use, and none of mainframes."""
_FEW = 50
"""Letters beyond ASCII below which statistics of a language say nothing."""
_LETTER, _SMALL = rb"[\xc0-\xd6\xd8-\xf6\xf8-\xff\x8a\x8c\x8e\x9a\x9c\x9e]", rb"[\xdf-\xf6\xf8-\xff]"
_WESTERN = re.compile(
    rb"(?:[\x00-\x7f]|[\x92\x96]|[\x80\x82\x84\x85\x91\x93-\x95\x97\xa0-\xa3\xa7\xa9-\xab\xae\xb0-\xb4\xb7\xba\xbb](?![A-Za-z])"
    rb"|(?<![A-Za-z])[\x80\x84\x91\x93\xa1\xa3\xa7\xab\xbf]|(?<=[A-Za-z])" + _SMALL + rb"{2}(?!" + _LETTER + rb")"
    rb"|(?<!" + _LETTER + rb")" + _LETTER + rb"(?!" + _LETTER + rb"))*"
)
"""Text in cp1252 of Latin script: its letters beyond ASCII stand alone, or two small ones behind another letter."""


class Decoded(NamedTuple):
    """The text of a file. `mark`: its byte order mark."""

    text: str
    encoding: str
    mark: bytes = b""

    def encoded(self, text: str) -> bytes:
        """Returns another text in this encoding. Raises `UnicodeEncodeError` for characters that it does not have."""
        return self.mark + text.encode(self.encoding, "surrogateescape" if self.encoding == "utf-8" else "strict")


def decoded(content: bytes) -> Decoded | None:
    """Returns the text of a file, None for binary data. What has neither a mark nor is UTF-8 is guessed."""
    for mark, encoding in _MARKS:
        if content.startswith(mark):
            return Decoded(content[len(mark) :].decode(encoding, "replace"), encoding, mark)
    head = content[:PROBE]
    if b"\0" in head:
        return _wide(content)
    try:
        return Decoded(content.decode(), "utf-8")
    except UnicodeDecodeError as error:
        if error.start > PROBE or _mostly_utf8(head):
            return Decoded(content.decode("utf-8", "surrogateescape"), "utf-8")
    return _guessed(content)


def _wide(content: bytes) -> Decoded | None:
    """Returns UTF-16 without a mark, whose Latin characters have every other byte NUL."""
    head = content[:PROBE]
    for encoding, zeros, letters in (("utf-16-le", head[1::2], head[::2]), ("utf-16-be", head[::2], head[1::2])):
        if len(content) % 2 == 0 and zeros.count(0) > 0.7 * len(zeros) and not letters.count(0):
            return Decoded(content.decode(encoding, "replace"), encoding)
    return None


def _mostly_utf8(head: bytes) -> bool:
    """Tells whether a text is UTF-8 with a few bytes that are not."""
    text = head.decode("utf-8", "replace")
    wide = sum(1 for character in text if character > "\x7f")
    return wide > 0 and text.count("\ufffd") * 10 < wide


def _guessed(content: bytes) -> Decoded:
    head = content[:PROBE]
    few = sum(byte > 0x7F for byte in head) < _FEW
    if few and _WESTERN.fullmatch(head) and (western := _strictly(content, _FALLBACK)):
        return western
    best = from_bytes(head, cp_isolation=_CANDIDATES).best()
    texts = [text for name in (best.encoding if best else _FALLBACK, _FALLBACK) if (text := _strictly(content, name))]
    if texts and texts[-1].encoding == _FALLBACK and texts[0].text == texts[-1].text:
        return texts[-1]  # many encodings have the same letters: the most usual one
    return texts[0] if texts else Decoded(content.decode("latin-1"), "latin-1")


def _strictly(content: bytes, encoding: str) -> Decoded | None:
    """Returns the text if the encoding has it, and gives the same bytes back."""
    try:
        text = content.decode(encoding)
        return Decoded(text, encoding.replace("_", "-")) if text.encode(encoding) == content else None
    except (UnicodeError, LookupError):
        return None

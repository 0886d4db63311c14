"""The encodings of text files: what a file's bytes say, and the way back."""

from __future__ import annotations

import codecs
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


class Decoded(NamedTuple):
    """The text of a file. `mark`: its byte order mark."""

    text: str
    encoding: str
    mark: bytes = b""

    def encoded(self, text: str) -> bytes:
        """Returns another text in this encoding. Raises `UnicodeEncodeError` for characters that it does not have."""
        return self.mark + text.encode(self.encoding, "surrogateescape" if self.encoding == "utf-8" else "strict")

    @property
    def is_plain(self) -> bool:
        """Tells whether it is UTF-8 without a mark."""
        return self.encoding == "utf-8" and not self.mark


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
    best = from_bytes(content[:PROBE]).best()
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

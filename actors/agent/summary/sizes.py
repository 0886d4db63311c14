"""Fits texts into a number of tokens. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

from core.thread.usage import BYTES_PER_TOKEN

LEAST_TOKENS = 50
"""Least length of a text that is shortened; if that is too much, the oldest texts go."""


def tokens_of(text: str) -> int:
    """Estimates the tokens of a text."""
    return -(-(len(text) if text.isascii() else len(text.encode(errors="replace"))) // BYTES_PER_TOKEN)


def fitted(entries: Sequence[str], tokens: int) -> list[str]:
    """Fits entries into a limit: shortens the longest to one length, then drops the oldest."""
    if sum(map(tokens_of, entries)) <= tokens:
        return list(entries)
    sizes = [tokens_of(entry) for entry in entries]
    taken = accumulate(min(size, LEAST_TOKENS) for size in reversed(sizes))
    begin = len(entries) - max(sum(size <= tokens for size in taken), 1)
    share = share_of(sizes[begin:], tokens)
    return [clipped(entry, share) for entry in entries[begin:]]


def share_of(sizes: Sequence[int], room: int) -> int:
    """Returns the largest length to which all texts must be shortened so that they fit the room."""
    for place, size in enumerate(sorted(sizes)):
        share = room // (len(sizes) - place)
        if size > share:
            return share
        room -= size
    return max(sizes)


def clipped(text: str, tokens: int) -> str:
    """Returns the beginning and the end of a text."""
    size = tokens_of(text)
    if size <= tokens:
        return text
    half = len(text) * tokens // size // 2
    return f"{text[:half]} […] {text[len(text) - half :]}"


def parts_of(entries: Sequence[str], tokens: int) -> Iterator[list[str]]:
    """Yields the entries in parts of at most so many tokens; an entry that is longer is divided."""
    part: list[str] = []
    room = tokens
    for piece in (piece for entry in entries for piece in _pieces(entry, tokens)):
        size = tokens_of(piece)
        if part and size > room:
            yield part
            part, room = [], tokens
        part.append(piece)
        room -= size
    if part:
        yield part


def _pieces(entry: str, tokens: int) -> Iterator[str]:
    size = tokens_of(entry)
    if size <= tokens:
        yield entry
        return
    length = max(len(entry) * tokens // size * 9 // 10, 1)
    for begin in range(0, len(entry), length):
        yield entry[begin : begin + length]

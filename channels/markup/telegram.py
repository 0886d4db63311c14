"""Markdown for Telegram: a text and its entities, and where to split.

Entities need no escapes, so no text can be refused for its characters, as with the parse modes. Rules of the Bot API
("Formatting options", `MessageEntity`, `sendMessage`): a text has 1 to 4096 UTF-16 units, and at most 100 entities
count; `code` and `pre` overlap no style and no link; quotes are not nested.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

from channels.markup.flow import Piece, Pre, flow, is_quoted
from channels.markup.parse import Mark, parse
from channels.markup.split import split

LIMIT = 4096
ENTITIES = 100
_KINDS = ("pre", "link", "code", "strong", "emphasis", "strike")
_TYPES: dict[Mark, str] = {"strong": "bold", "emphasis": "italic", "strike": "strikethrough"}

Entity = dict[str, Any]


def entities(source: str) -> tuple[str, list[Entity]]:
    """Returns a text and its `MessageEntity` objects. Offsets and lengths are UTF-16 units.

    The text is empty if there is nothing to see, and longer than a message may be if `source` is no part. Of more
    entities than count, the first ones are returned.
    """
    text, marked = _laid_out(source)
    return text, marked[:ENTITIES]


def units(text: str) -> int:
    """Returns the length of a text in UTF-16 units, as Telegram counts."""
    return len(text) + sum(char > "\uffff" for char in text)


def parts(source: str, limit: int = LIMIT) -> list[str]:
    """Splits Markdown into parts whose text has at most `limit` UTF-16 units and 100 entities."""

    def fits(part: str) -> bool:
        text, marked = _laid_out(part)
        return units(text) <= limit and len(marked) <= ENTITIES

    return split(source, fits)


def _laid_out(source: str) -> tuple[str, list[Entity]]:
    """Returns the text and all entities, the outer before the inner ones."""
    pieces = flow(parse(source))
    text: list[str] = []
    marked: list[Entity] = []
    offset = 0
    for quoted, group in groupby(pieces, is_quoted):
        runs = list(group)
        joined = "".join(piece.text for piece in runs)
        inner = list(_marked(runs, offset))
        if quoted:
            quote = {"type": "blockquote", "offset": offset, "length": units(joined.rstrip())}
            marked.append(quote)
            inner = [_within(entity, quote) for entity in inner]
        marked.extend(inner)
        text.append(joined)
        offset += units(joined)
    return "".join(text), sorted((entity for entity in marked if entity["length"]), key=_order)


def _within(entity: Entity, outer: Entity) -> Entity:
    """Returns the part of an entity that is inside another one."""
    end = min(entity["offset"] + entity["length"], outer["offset"] + outer["length"])
    return {**entity, "length": max(0, end - entity["offset"])}


def _order(entity: Entity) -> tuple[int, int]:
    return entity["offset"], -entity["length"]


def _length(pieces: Iterable[Piece]) -> int:
    return sum(units(piece.text) for piece in pieces)


def _marked(pieces: Sequence[Piece], start: int, kinds: tuple[str, ...] = _KINDS) -> Iterator[Entity]:
    """Yields the entities of neighbouring pieces. Those of a later kind do not reach over the ends of an earlier one's,
    as entities may be inside each other, but not overlap."""
    kind, *inner = kinds
    for value, group in groupby(pieces, lambda piece: _value(piece, kind)):
        stretch = list(group)
        length = _length(stretch)
        if value is not None:
            yield {**value, "offset": start, "length": length}
        if inner:
            yield from _marked(stretch, start, tuple(inner))
        start += length


def _value(piece: Piece, kind: str) -> Entity | None:
    """Returns the entity of a kind that a piece is part of."""
    if isinstance(piece, Pre):
        return (
            None
            if kind != "pre"
            else {"type": "pre", "language": piece.language}
            if piece.language
            else {"type": "pre"}
        )
    code = piece.code and not piece.href
    match kind:
        case "link":
            is_web = piece.href.startswith("http") and piece.href != piece.text
            return {"type": "text_link", "url": piece.href} if is_web else None
        case "code":
            return {"type": "code"} if code else None
        case "strong" | "emphasis" | "strike":
            return {"type": _TYPES[kind]} if kind in piece.marks and not code else None
        case _:
            return None

"""The tree of `parse` laid out as running text, for platforms without lists, headings and tables of their own.

Items get a bullet or a number and stand under each other, headings are bold, wide tables become a list of rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias

from wcwidth import wcswidth

from channels.markup.parse import (
    Block,
    Break,
    Code,
    Fence,
    Heading,
    Inline,
    Item,
    Items,
    Link,
    Mark,
    Paragraph,
    Quote,
    Rule,
    Style,
    Table,
    Text,
    text_of,
    trimmed,
)

LINE = "─" * 12
_BULLETS = "•◦▪"
_WIDEST = 48
"""Columns of a table of fixed width, at most: what a phone shows without wrapping lines, or nearly so."""


class Run(NamedTuple):
    """A piece of text, with the styles and the address that it has. `quoted`: it belongs to a quote."""

    text: str
    marks: frozenset[Mark] = frozenset()
    href: str = ""
    code: bool = False
    quoted: bool = False


class Pre(NamedTuple):
    """Lines in a font of one width."""

    language: str
    text: str


Piece: TypeAlias = "Run | Pre"


class Place(NamedTuple):
    """Where blocks stand: below how many lists, and in a quote or not."""

    depth: int = 0
    quoted: bool = False

    @property
    def indent(self) -> str:
        return "   " * self.depth


def is_quoted(piece: Piece) -> bool:
    """Tells whether a piece is shown as part of a quote: no platform shows blocks of code in one."""
    return isinstance(piece, Run) and piece.quoted


def with_quote_marks(texts: Iterable[tuple[bool, str]]) -> str:
    """Returns texts, of which some are quoted, as one, with `> ` before the lines that have quoted text."""
    lines: list[str] = [""]
    marks: list[bool] = [False]
    for quoted, text in texts:
        first, *others = text.split("\n")
        lines[-1] += first
        marks[-1] = marks[-1] or (quoted and bool(first.strip()))
        for index, line in enumerate(others, 1):
            lines.append(line)
            marks.append(quoted and (bool(line.strip()) or index < len(others)))
    return "\n".join(f"> {line}".rstrip() if mark else line for line, mark in zip(lines, marks, strict=True)).strip()


def flow(blocks: Sequence[Block], place: Place = Place(), tight: bool = False) -> list[Piece]:  # noqa: B008
    """Returns blocks as pieces of one text, with empty lines between them."""
    pieces: list[Piece] = []
    for block in blocks:
        if pieces:
            pieces.append(Run(("\n" if tight else "\n\n") + place.indent, quoted=place.quoted))
        pieces.extend(_block(block, place))
    return pieces


def _block(block: Block, place: Place) -> list[Piece]:
    match block:
        case Paragraph(children):
            return _runs(children, place)
        case Heading(_, children):
            return _runs((Style("strong", children),), place)
        case Fence(language, text):
            return [Pre(language, text)]
        case Quote(children):
            return flow(children, Place(place.depth, True))
        case Items():
            return _items(block, place)
        case Table():
            return _table(block, place)
        case Rule():
            return [Run(LINE, quoted=place.quoted)]


def _items(items: Items, place: Place) -> list[Piece]:
    pieces: list[Piece] = []
    for index, item in enumerate(items.items):
        if pieces:
            pieces.append(Run(("\n" if items.tight else "\n\n") + place.indent, quoted=place.quoted))
        pieces.append(Run(_mark(items, index, item, place.depth) + " ", quoted=place.quoted))
        pieces.extend(flow(item.children, Place(place.depth + 1, place.quoted), items.tight))
    return pieces


def _mark(items: Items, index: int, item: Item, depth: int) -> str:
    if item.checked is not None:
        return "☑" if item.checked else "☐"
    return _BULLETS[depth % len(_BULLETS)] if items.start is None else f"{items.start + index}."


def _table(table: Table, place: Place) -> list[Piece]:
    """Returns a table as aligned columns; if it is wide or has links, as a list of its rows."""
    if is_narrow(table):
        return [Pre("", aligned(table))]
    return _items(as_list(table), place) if table.rows else _runs(_cells(table.header), place)


def is_narrow(table: Table) -> bool:
    """Tells whether a table can be shown as aligned columns on a phone: links would be lost in them."""
    return max(width(line) for line in aligned(table).split("\n")) <= _WIDEST and not _has_links(table)


def as_list(table: Table) -> Items:
    """Returns the rows of a table as items, each a line for each cell with the name of its column."""
    rows = [Item(None, (Paragraph(_named(table.header, row)),)) for row in table.rows]
    return Items(None, len(table.header) < 3, tuple(rows))


def _named(header: Sequence[tuple[Inline, ...]], row: Sequence[tuple[Inline, ...]]) -> tuple[Inline, ...]:
    """Returns a row as lines, each with the name of its column."""
    nodes: list[Inline] = []
    for name, cell in zip(header, row, strict=True):
        nodes += [*([Break()] if nodes else []), Style("strong", (*name, Text(":"))), Text(" "), *cell]
    return tuple(nodes)


def _cells(row: Sequence[tuple[Inline, ...]]) -> tuple[Inline, ...]:
    nodes: list[Inline] = []
    for cell in row:
        nodes += [Text(" | "), *cell] if nodes else cell
    return trimmed(nodes)


def _has_links(table: Table) -> bool:
    def has(nodes: Sequence[Inline]) -> bool:
        return any(isinstance(node, Link) or (isinstance(node, Style) and has(node.children)) for node in nodes)

    return any(has(cell) for row in (table.header, *table.rows) for cell in row)


def _runs(children: Sequence[Inline], place: Place, style: Run = Run("")) -> list[Piece]:  # noqa: B008
    """Returns inline nodes as runs of one style each."""
    runs: list[Piece] = []
    for node in children:
        match node:
            case Text(text):
                runs.append(style._replace(text=text, quoted=place.quoted))
            case Code(text):
                runs.append(style._replace(text=text, code=True, quoted=place.quoted))
            case Break():
                runs.append(style._replace(text="\n" + place.indent, quoted=place.quoted))
            case Style(mark, inner):
                runs.extend(_runs(inner, place, style._replace(marks=style.marks | {mark})))
            case Link(href, inner):
                runs.extend(_runs(inner, place, style._replace(href=href)))
    return runs


def aligned(table: Table) -> str:
    """Returns a table as lines of equally wide columns, for fonts of one width. Wide characters count twice."""
    rows = [[text_of(cell) for cell in row] for row in (table.header, *table.rows)]
    widths = [max(width(row[column]) for row in rows) for column in range(len(table.header))]
    lines = [_padded(row, widths, table.aligns) for row in rows]
    return "\n".join([lines[0], "  ".join("─" * max(1, width) for width in widths), *lines[1:]])


def _padded(row: Sequence[str], widths: Sequence[int], aligns: Sequence[str]) -> str:
    cells = []
    for text, column, align in zip(row, widths, aligns, strict=True):
        room = column - width(text)
        left = room if align == "right" else room // 2 if align == "center" else 0
        cells.append(" " * left + text + " " * (room - left))
    return "  ".join(cells).rstrip(" ")


def width(text: str) -> int:
    """Returns how many columns a text takes in a font of one width."""
    columns = int(wcswidth(text))
    return columns if columns >= 0 else len(text)

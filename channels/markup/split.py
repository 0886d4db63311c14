"""Splits Markdown into parts that fit: at blocks first, then lines, sentences, words, and grapheme clusters.

A block of code that is cut is closed and opened again with its language, a table repeats its header, a list goes on
with its numbers, a quote stays a quote. Links are not cut, unless one alone does not fit. The rest of a cut item stands
without the item's mark, or, if it begins with a list, below the same mark.

A part differs from the source in how things are marked, as it is written from the tree, but not in what a reader sees.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from wcwidth import grapheme_boundary_before, iter_graphemes

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
    Paragraph,
    Quote,
    Rule,
    Style,
    Table,
    Text,
    is_bare,
    is_blank,
    parse,
    text_of,
    trimmed,
)
from channels.markup.write import CANONICAL

Fits = Callable[[str], bool]
FitsBlocks = Callable[[Sequence[Block]], bool]
_LINK = "\ufffc"
"""Stands for a link where a text is cut: one character that is no place to cut at."""
_LONG_HEADER = 400
"""Characters of a table's header from which on it is not repeated for a row that fits no message."""
_UNKNOWN = 20_000
"""Characters that are tried at once before the first part shows how many fit."""
_CLUSTER = 64
"""Characters that are looked at to find where a character as people see it begins."""
_SENTENCE = re.compile(r"[.!?;:][\"')\]]*\s|[。！？；：…][”’」』）]*")
_WORD = re.compile(r"\s|[，、]")


def split(source: str, fits: Fits) -> list[str]:
    """Splits Markdown into parts of which `fits` is true; none if there is nothing to see.

    `fits` must be true of every beginning of a text of which it is true. It is called some ten times for each part, and
    with texts of up to twice the size of one. If not even one grapheme cluster fits, a part has one all the same.
    """
    rest: tuple[Block, ...] = parse(source)
    if not rest:
        return []
    if fits(source):
        return [source]
    splitter = _Splitter()
    parts = []
    while rest:
        head, rest = splitter.part(rest, lambda blocks: fits(CANONICAL.write(blocks)))
        if head:
            parts.append(CANONICAL.write(head))
    return parts


class _Splitter:
    """Remembers how much the parts before held, to begin the search for the next one there. So the cost of a part does
    not depend on how much follows it."""

    def __init__(self) -> None:
        self._blocks = 8
        self._rows = 8
        self._chars = 1000
        self._most = _UNKNOWN

    def part(self, blocks: tuple[Block, ...], fits: FitsBlocks) -> tuple[tuple[Block, ...], tuple[Block, ...]]:
        """Returns the blocks of the next part, and the rest."""
        head, tail = self.take(blocks, fits)
        size = 2 * sum(_size(block, _UNKNOWN) for block in head)
        self._most = size if self._most == _UNKNOWN else max(self._most, size)
        return head, tail

    def take(self, blocks: tuple[Block, ...], fits: FitsBlocks) -> tuple[tuple[Block, ...], tuple[Block, ...]]:
        """Returns the blocks that fit, one of them perhaps cut, and the rest. Takes something in any case."""
        count = largest(_within(blocks, self._most), lambda number: fits(blocks[:number]), self._blocks)
        if count == len(blocks):
            return blocks, ()
        self._blocks = max(1, count)
        headings = count
        while headings and isinstance(blocks[headings - 1], Heading):
            headings -= 1
        if headings:
            # A heading is not left alone at the end of a part.
            return blocks[:headings], blocks[headings:]
        above, block = blocks[:count], blocks[count]
        cut = self._cut(block, lambda pieces: fits((*above, *pieces)))
        if count and not fits((*above, *cut[0])):
            return above, blocks[count:]
        return (*above, *cut[0]), (*cut[1], *blocks[count + 1 :])

    def _cut(self, block: Block, fits: FitsBlocks) -> tuple[tuple[Block, ...], tuple[Block, ...]]:
        """Cuts a block that does not fit. Returns what fits of it, and the rest."""
        match block:
            case Paragraph(children):
                head, tail = self._cut_inlines(children, lambda nodes: fits([Paragraph(nodes)]))
                return (Paragraph(head),) if head else (), (Paragraph(tail),) if tail else ()
            case Heading(level, children):
                head, tail = self._cut_inlines(children, lambda nodes: fits([Heading(level, nodes)]))
                return (Heading(level, head),) if head else (), (Heading(level, tail),) if tail else ()
            case Fence(language, text):
                end = self._end(text, lambda number: fits([Fence(language, text[:number])]))
                if text[end - 1] == "\n":
                    return _codes(language, text[: end - 1]), _codes(language, text[end:])
                return _codes(language, text[:end]), _codes(language, text[end:].removeprefix("\n"))
            case Quote(children):
                inner, outer = self.take(children, lambda blocks: fits([Quote(tuple(blocks))]))
                return (Quote(inner),), (Quote(outer),) if outer else ()
            case Items():
                return self._cut_items(block, fits)
            case Table():
                return self._cut_table(block, fits)
            case Rule():
                return (block,), ()

    def _cut_items(self, block: Items, fits: FitsBlocks) -> tuple[tuple[Block, ...], tuple[Block, ...]]:
        start, tight, items = block
        count = largest(len(items), lambda number: fits([Items(start, tight, items[:number])]), self._rows)
        if count:
            self._rows = count
            return (Items(start, tight, items[:count]),), _later(block, count, items[count:])
        checked, children = items[0]
        if not children:
            return (Items(start, tight, items[:1]),), _later(block, 1, items[1:])
        head, tail = self.take(children, lambda blocks: fits([Items(start, tight, (Item(checked, tuple(blocks)),))]))
        first = Items(start, tight, (Item(checked, head),))
        if tail and isinstance(tail[0], Items):
            return (first,), _later(block, 0, (Item(None, tail), *items[1:]))
        return (first,), (*tail, *_later(block, 1, items[1:]))

    def _cut_table(self, table: Table, fits: FitsBlocks) -> tuple[tuple[Block, ...], tuple[Block, ...]]:
        aligns, header, rows = table
        count = (
            largest(len(rows), lambda number: fits([Table(aligns, header, rows[:number])]), self._rows) if rows else 0
        )
        if count:
            self._rows = count
            return (Table(aligns, header, rows[:count]),), _rows(table, rows[count:])
        if rows and sum(len(text_of(cell)) for cell in header) <= _LONG_HEADER:
            # The first row does not fit: its cells become paragraphs, each below the name of its column.
            named = zip(header, rows[0], strict=True)
            paragraphs = [_paragraph((*_bold(name), Text(": "), *cell)) for name, cell in named]
            later = _rows(table, rows[1:])
        else:
            paragraphs = [_paragraph(_joined(row)) for row in (header, *rows)]
            later = ()
        head, tail = self.take(tuple(paragraph for paragraph in paragraphs if paragraph.children), fits)
        return head, (*tail, *later)

    def _cut_inlines(
        self, children: tuple[Inline, ...], fits: Callable[[tuple[Inline, ...]], bool]
    ) -> tuple[tuple[Inline, ...], tuple[Inline, ...]]:
        """Cuts inline nodes after a line, a sentence or a word, if one ends in the last half of what fits."""
        text = text_of(children, link=_LINK)
        end = self._end(text, lambda number: fits(_beginning(children, number)))
        head, tail = _sliced(children, end)
        if _begins_with_link(children) and not fits(head):
            # Its label and its address are cut as text.
            return self._cut_inlines(_without_link(children), fits)
        return head, tail

    def _end(self, text: str, fits: Callable[[int], bool]) -> int:
        """Returns where to cut a text: at least one character of it is before the cut."""
        most = largest(len(text), fits, self._chars)
        self._chars = max(1, most)
        if most == len(text):
            return most
        for pattern in (re.compile("\n"), _SENTENCE, _WORD):
            ends = [match.end() for match in pattern.finditer(text, most // 2, most)]
            if ends and ends[-1] > 0:
                return _cluster_end(text, ends[-1])
        return _cluster_end(text, most)


def _within(blocks: Sequence[Block], most: int) -> int:
    """Returns how many blocks have together at most some number of characters."""
    for count, block in enumerate(blocks):
        most -= _size(block, most)
        if most < 0:
            return count
    return len(blocks)


def _size(block: Block, enough: int) -> int:
    """Returns about how many characters a block has; of a large one, a number above `enough`."""
    size = 1
    match block:
        case Paragraph(children) | Heading(_, children):
            size += _length(children)
        case Fence(_, text):
            size += len(text)
        case Quote(blocks):
            for child in blocks:
                size += _size(child, enough - size)
                if size > enough:
                    break
        case Items(_, _, items):
            for child in (child for item in items for child in item.children):
                size += _size(child, enough - size)
                if size > enough:
                    break
        case Table(_, header, rows):
            for row in (header, *rows):
                size += sum(_length(cell) + 3 for cell in row)
                if size > enough:
                    break
        case Rule():
            pass
    return size


def _length(children: Sequence[Inline]) -> int:
    size = 0
    for node in children:
        match node:
            case Text(text) | Code(text):
                size += len(text)
            case Break():
                size += 1
            case Style(_, inner):
                size += _length(inner)
            case Link(href, inner):
                size += _length(inner) + len(href)
    return size


def largest(upper: int, fits: Callable[[int], bool], guess: int) -> int:
    """Returns the largest number from 0 to `upper` that fits, or one up to an eighth below it. The search begins at a
    guess and goes away from it in growing steps."""
    low, high, number = 0, upper + 1, max(1, min(guess, upper))
    step = max(1, number // 8)
    if upper and fits(number):
        low = number
        while low < upper and high > upper:
            number, step = min(upper, low + step), 2 * step
            if fits(number):
                low = number
            else:
                high = number
    else:
        high = number
        while high > 1 and not low:
            number, step = max(1, high - step), 2 * step
            if fits(number):
                low = number
            else:
                high = number
    while high - low > max(1, low // 8):
        middle = (low + high) // 2
        if fits(middle):
            low = middle
        else:
            high = middle
    return low


def _cluster_end(text: str, end: int) -> int:
    """Returns where the last grapheme cluster ends that ends at or before an index; the first one's end, if none does.
    Clusters of more than `_CLUSTER` characters may be cut."""
    if end >= len(text):
        return len(text)
    start = max(0, end - _CLUSTER)
    boundary = int(grapheme_boundary_before(text[start : end + _CLUSTER], end - start + 1))
    if boundary:
        return start + boundary
    return end if start else len(next(iter_graphemes(text[:_CLUSTER])))


def _later(block: Items, count: int, items: tuple[Item, ...]) -> tuple[Block, ...]:
    start = None if block.start is None else block.start + count
    return (Items(start, block.tight, items),) if items else ()


def _rows(table: Table, rows: tuple[tuple[tuple[Inline, ...], ...], ...]) -> tuple[Block, ...]:
    return (Table(table.aligns, table.header, rows),) if rows else ()


def _codes(language: str, text: str) -> tuple[Block, ...]:
    return () if is_blank(text) else (Fence(language, text),)


def _paragraph(nodes: Sequence[Inline]) -> Paragraph:
    return Paragraph(trimmed(nodes))


def _bold(nodes: tuple[Inline, ...]) -> tuple[Inline, ...]:
    return (Style("strong", nodes),) if nodes else ()


def _joined(cells: Sequence[tuple[Inline, ...]]) -> tuple[Inline, ...]:
    nodes: list[Inline] = []
    for cell in cells:
        nodes += [Text(" | "), *cell] if nodes else cell
    return tuple(nodes)


def _sliced(children: tuple[Inline, ...], end: int) -> tuple[tuple[Inline, ...], tuple[Inline, ...]]:
    """Cuts inline nodes at an index of their flat text."""
    index, rest = _place(children, end)
    if not rest:
        return trimmed(children[:index]), trimmed(children[index:])
    head, tail = _halves(children[index], rest)
    return trimmed((*children[:index], *head)), trimmed((*tail, *children[index + 1 :]))


def _beginning(children: tuple[Inline, ...], end: int) -> tuple[Inline, ...]:
    """Returns inline nodes up to an index of their flat text, at a cost that does not depend on what follows."""
    index, rest = _place(children, end)
    return trimmed((*children[:index], *(_halves(children[index], rest)[0] if rest else ())))


def _place(children: Sequence[Inline], end: int) -> tuple[int, int]:
    """Returns which node has an index of their flat text, and the index in that node."""
    for index, node in enumerate(children):
        size = _flat_size(node)
        if size > end:
            return index, end
        end -= size
    return len(children), 0


def _flat_size(node: Inline) -> int:
    match node:
        case Text(text) | Code(text):
            return len(text)
        case Break() | Link():
            return 1
        case Style(_, inner):
            return sum(_flat_size(child) for child in inner)


def _halves(node: Inline, end: int) -> tuple[tuple[Inline, ...], tuple[Inline, ...]]:
    match node:
        case Text(text):
            return (Text(text[:end]),), (Text(text[end:]),)
        case Code(text):
            return _pieces(text[:end]), _pieces(text[end:])
        case Style(mark, inner):
            head, tail = _sliced(inner, end)
            return (Style(mark, head),) if head else (), (Style(mark, tail),) if tail else ()
        case Break() | Link():
            raise AssertionError("a node of one character has no halves")


def _pieces(text: str) -> tuple[Inline, ...]:
    return (Text(text),) if is_blank(text) else (Code(text),)


def _begins_with_link(children: Sequence[Inline]) -> bool:
    first = children[0]
    return isinstance(first, Link) or (isinstance(first, Style) and _begins_with_link(first.children))


def _without_link(children: tuple[Inline, ...]) -> tuple[Inline, ...]:
    """Returns inline nodes with the first link as text: its label, and its address behind it."""
    first, *rest = children
    match first:
        case Link(href, label):
            text = (Text(href),) if is_bare(first) else (*label, Text(f" ({href})"))
            return trimmed((*text, *rest))
        case Style(mark, inner):
            return (Style(mark, _without_link(inner)), *rest)
        case _:
            raise AssertionError("the first node that does not fit is a link")

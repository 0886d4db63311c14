"""Markdown for Discord: its own dialect, and where to split.

Discord shows Markdown as people write it: three levels of headings, lists, quotes of one level, code with a language,
links with a text. It has neither tables nor rules. A message has at most 2000 characters (documentation, "Create
Message").
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from channels.markup.flow import LINE, aligned, as_list, is_narrow
from channels.markup.parse import Block, Inline, Items, Quote, Style, Table, parse, trimmed
from channels.markup.split import split
from channels.markup.write import Dialect

LIMIT = 2000
_DEEPEST = 3
_SMALL = re.compile(r"-#(?=\s)")


def markdown(source: str) -> str:
    """Returns the content of a message."""
    return _Discord().write(parse(source))


def parts(source: str, limit: int = LIMIT) -> list[str]:
    """Splits Markdown into parts that have at most `limit` characters as content."""
    return split(source, lambda part: len(markdown(part)) <= limit)


class _Discord(Dialect):
    """Knows whether it is inside of a list or a quote: a quote begins at the beginning of a line only."""

    def __init__(self) -> None:
        self._depth = 0

    def block(self, block: Block) -> str:
        if isinstance(block, Quote) and self._depth:
            return self.write(block.children)
        with self._inside():
            return super().block(block)

    def items(self, items: Items, other: bool) -> str:
        with self._inside():
            return super().items(items, other)

    @contextmanager
    def _inside(self) -> Iterator[None]:
        self._depth += 1
        yield
        self._depth -= 1

    def heading(self, level: int, children: Sequence[Inline]) -> str:
        if level <= _DEEPEST:
            return super().heading(level, children)
        return self.paragraph((Style("strong", trimmed(children)),)).replace("\n", " ")

    def table(self, table: Table) -> str:
        if is_narrow(table):
            return self.fence("", aligned(table))
        if table.rows:
            return self.items(as_list(table), other=False)
        return " | ".join(self.paragraph(cell) for cell in table.header)

    def text(self, text: str) -> str:
        return super().text(text).replace("||", "\\|\\|")

    def line(self, line: str) -> str:
        return super().line(f"\\{line}" if _SMALL.match(line) else line)

    def rule(self) -> str:
        return LINE

"""Markdown for Feishu and Lark: the elements of a card (JSON 2.0), and where to split.

A card has at most 30 KB and 200 elements; with more than 3 tables it was refused (error 230099).
What is no markup is written as entities (`&#42;`), which the documentation of the `markdown` element asks for.
"""

from __future__ import annotations

import json
import re
from typing import Any

from channels.markup.flow import aligned
from channels.markup.parse import Block, Items, Quote, Table, parse
from channels.markup.split import split
from channels.markup.write import Dialect

LIMIT = 24_000
"""Bytes of JSON: a card's own settings, buttons and status need the rest."""
TABLES = 3
_TAG = re.compile(r"<(?=/?(at|person)\b)", re.IGNORECASE)


def elements(source: str) -> list[dict[str, Any]]:
    """Returns the elements of a card's body: one with the tag `markdown`. None if there is nothing to see."""
    text = markdown(source)
    return [{"tag": "markdown", "content": text}] if text else []


def markdown(source: str) -> str:
    """Returns the content of a `markdown` element, as CardKit's streaming updates take it. Tables after the third are
    lines in a font of one width. It mentions nobody."""
    return _Feishu().write(parse(source))


def parts(source: str, limit: int = LIMIT) -> list[str]:
    """Splits Markdown into parts whose elements have at most `limit` bytes of JSON (UTF-8) and 3 tables."""

    def fits(part: str) -> bool:
        size = len(json.dumps(elements(part), ensure_ascii=False).encode())
        return size <= limit and _tables(parse(part)) <= TABLES

    return split(source, fits)


class _Feishu(Dialect):
    """Counts the tables of one card."""

    indent = 4

    def __init__(self) -> None:
        self._tables = 0

    def escape(self, char: str) -> str:
        return f"&#{ord(char)};"

    def table(self, table: Table) -> str:
        self._tables += 1
        return super().table(table) if self._tables <= TABLES else self.fence("", aligned(table))

    def code(self, text: str) -> str:
        return super().code(_without_tags(text))

    def fence(self, language: str, text: str) -> str:
        return super().fence(language, _without_tags(text))

    def rule(self) -> str:
        return "---"


def _without_tags(text: str) -> str:
    """Returns code in which an invisible character breaks the tags that mention people, as `<at id=all>`. Other code is
    copied as it is."""
    return _TAG.sub("<\u200b", text)


def _tables(blocks: tuple[Block, ...]) -> int:
    count = 0
    for block in blocks:
        match block:
            case Table():
                count += 1
            case Quote(children):
                count += _tables(children)
            case Items(_, _, items):
                count += sum(_tables(item.children) for item in items)
            case _:
                pass
    return count

"""Markdown for DingTalk: the subset of `sampleMarkdown`, that of AI cards, and where to split.

`sampleMarkdown` has neither tables nor code. A message over some 3 500 characters was
shown without its format (QwenPaw issue 3742; qwen-code, pull request 5299, splits at 3 800), and a request may have
20 000 bytes (documentation of the robots' webhook; assumed for `sampleMarkdown` and cards).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from channels.markup.flow import LINE
from channels.markup.parse import Code, Inline, Link, Style, Table, Text, content_of, parse, trimmed
from channels.markup.split import split
from channels.markup.write import Dialect, prefixed

LIMIT = 3_500
BYTES = 18_000
_TITLE = 60
_INDENT = re.compile(r"^[ \t]+")


def markdown(source: str) -> str:
    """Returns the text of a `sampleMarkdown` message, which has neither tables nor code."""
    return _MESSAGE.write(parse(source))


def card(source: str) -> str:
    """Returns the content of an AI card, which has both."""
    return _CARD.write(parse(source))


def title(source: str) -> str:
    """Returns the beginning of what a reader sees, for notifications: a line of at most 60 characters."""
    text = " ".join(content_of(source[: 20 * _TITLE]).split())
    return text if len(text) <= _TITLE else text[: _TITLE - 1] + "…"


def parts(source: str, limit: int = LIMIT) -> list[str]:
    """Splits Markdown into parts of which `markdown` and `card` have at most `limit` characters and 18 000 bytes."""

    def fits(part: str) -> bool:
        return all(len(text) <= limit and len(text.encode()) <= BYTES for text in (markdown(part), card(part)))

    return split(source, fits)


class _Card(Dialect):
    line_break = "  \n"
    indent = 4

    def escape(self, char: str) -> str:
        return {"<": "&lt;", "&": "&amp;"}.get(char, f"\\{char}")

    def rule(self) -> str:
        return "---"


class _Message(_Card):
    def rule(self) -> str:
        return LINE

    def paragraph(self, children: Sequence[Inline]) -> str:
        return super().paragraph(trimmed(_bold_code(children, bold=False)))

    def fence(self, language: str, text: str) -> str:
        lines = [_INDENT.sub(_hard_spaces, line.rstrip()) for line in text.split("\n")]
        shown = [self.line(self.text(line)) for line in lines]
        return self._quote([f"**{self.text(language)}**", *shown] if language else shown)

    def table(self, table: Table) -> str:
        """Returns a line for each cell, with the name of its column, and an empty line between rows."""
        header = [self.inlines(_bold(name)) for name in table.header]
        if not table.rows:
            return self._quote(header)
        rows = (
            [f"{name}: {self.paragraph(cell)}" for name, cell in zip(header, row, strict=True)] for row in table.rows
        )
        return "\n>\n".join(self._quote(row) for row in rows)

    def _quote(self, lines: Sequence[str]) -> str:
        return prefixed(self.line_break.join(lines), "> ", "> ")


_CARD = _Card()
_MESSAGE = _Message()


def _bold(children: Sequence[Inline]) -> Sequence[Inline]:
    return trimmed([Style("strong", trimmed(_bold_code(children, bold=True)))]) if children else ()


def _bold_code(children: Sequence[Inline], bold: bool) -> list[Inline]:
    """Returns inline nodes with bold text for code, as bold as it may be: not twice."""
    nodes: list[Inline] = []
    for node in children:
        match node:
            case Code(text):
                nodes.append(Text(text) if bold else Style("strong", (Text(text.strip()),)))
            case Style("strong", inner):
                inside = _bold_code(inner, bold=True)
                nodes.extend(inside if bold else [Style("strong", trimmed(inside))])
            case Style(mark, inner):
                nodes.append(Style(mark, trimmed(_bold_code(inner, bold))))
            case Link(href, inner):
                nodes.append(Link(href, trimmed(_bold_code(inner, bold))))
            case _:
                nodes.append(node)
    return nodes


def _hard_spaces(indent: re.Match[str]) -> str:
    """Returns an indent that is shown: ordinary spaces at the beginning of a line are not."""
    return indent[0].replace("\t", "    ").replace(" ", "\u00a0")

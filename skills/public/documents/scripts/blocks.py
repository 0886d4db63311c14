"""Markdown as a flat list of blocks, which the writers of docx and pdf lay out."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

try:
    import yaml
    from markdown_it import MarkdownIt
    from markdown_it.token import Token
except ModuleNotFoundError as error:
    print(f"missing Python package {error.name}. Fix: pip install markdown-it-py pyyaml", file=sys.stderr)
    sys.exit(3)

PAGE_BREAK = "<!-- pagebreak -->"
KEYS = {"title", "subtitle", "author", "date", "page", "toc", "footer", "accent", "lang"}
_FRONT = re.compile(r"\A---\n(.*?)\n---\n", re.DOTALL)


class Problem(Exception):
    """A mistake in the input, with its place."""


@dataclass(frozen=True)
class Span:
    text: str
    bold: bool = False
    italic: bool = False
    code: bool = False
    strike: bool = False
    link: str = ""


@dataclass
class Block:
    """`kind`: heading, paragraph, item, table, code, quote, image, break, rule."""

    kind: str
    spans: list[Span] = field(default_factory=list)
    level: int = 0
    marker: str = ""
    rows: list[list[list[Span]]] = field(default_factory=list)
    aligns: list[str] = field(default_factory=list)
    text: str = ""

    @property
    def plain(self) -> str:
        return "".join(span.text for span in self.spans)


@dataclass
class Document:
    meta: dict[str, Any]
    blocks: list[Block]
    folder: Path

    def picture(self, block: Block) -> Path:
        path = (self.folder / block.text).resolve()
        if not path.is_file():
            raise Problem(f"image {block.text!r}: no such file beside the Markdown file")
        return path


def read(path: Path) -> Document:
    text = path.read_text(encoding="utf-8")
    meta: dict[str, Any] = {}
    if match := _FRONT.match(text):
        meta = yaml.safe_load(match[1]) or {}
        text = text[match.end() :]
        if unknown := sorted(set(meta) - KEYS):
            raise Problem(f"front matter: unknown {', '.join(unknown)}; known are {', '.join(sorted(KEYS))}")
    tokens = MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(text)
    return Document(meta, _Reader(tokens).blocks(), path.parent)


class _Reader:
    def __init__(self, tokens: list[Token]) -> None:
        self._tokens, self._lists, self._quotes = tokens, [], 0
        self._result: list[Block] = []
        self._fresh = False

    def blocks(self) -> list[Block]:
        for index, token in enumerate(self._tokens):
            handler = getattr(self, f"_{token.type}", None)
            if handler:
                handler(token, index)
        return self._result

    def _inline(self, token: Token, index: int) -> None:
        opener = self._tokens[index - 1]
        children = token.children or []
        if opener.type == "paragraph_open" and len(children) == 1 and children[0].type == "image":
            picture = children[0]
            self._result.append(Block("image", text=str(picture.attrs["src"]), spans=[Span(picture.content)]))
            return
        spans = _spans(children)
        if opener.type == "heading_open":
            self._result.append(Block("heading", spans, level=int(opener.tag[1])))
        elif opener.type in ("th_open", "td_open"):
            self._cell(opener, spans)
        elif opener.type == "paragraph_open":
            self._paragraph(spans)

    def _paragraph(self, spans: list[Span]) -> None:
        if self._lists:
            ordered, number = self._lists[-1]
            marker = "" if not self._fresh else f"{number}." if ordered else "•"
            self._result.append(Block("item", spans, level=len(self._lists) - 1, marker=marker))
            self._fresh = False
        else:
            self._result.append(Block("quote" if self._quotes else "paragraph", spans))

    def _cell(self, opener: Token, spans: list[Span]) -> None:
        table = self._result[-1]
        style = str(opener.attrs.get("style", ""))
        if len(table.rows) == 1:
            table.aligns.append(style.removeprefix("text-align:") or "left")
        table.rows[-1].append(spans)

    def _table_open(self, token: Token, index: int) -> None:
        self._result.append(Block("table"))

    def _tr_open(self, token: Token, index: int) -> None:
        self._result[-1].rows.append([])

    def _bullet_list_open(self, token: Token, index: int) -> None:
        self._lists.append([False, 0])

    def _ordered_list_open(self, token: Token, index: int) -> None:
        self._lists.append([True, int(token.attrs.get("start", 1)) - 1])

    def _bullet_list_close(self, token: Token, index: int) -> None:
        self._lists.pop()

    _ordered_list_close = _bullet_list_close

    def _list_item_open(self, token: Token, index: int) -> None:
        self._lists[-1][1] += 1
        self._fresh = True

    def _blockquote_open(self, token: Token, index: int) -> None:
        self._quotes += 1

    def _blockquote_close(self, token: Token, index: int) -> None:
        self._quotes -= 1

    def _fence(self, token: Token, index: int) -> None:
        self._result.append(Block("code", text=token.content.rstrip("\n")))

    _code_block = _fence

    def _hr(self, token: Token, index: int) -> None:
        self._result.append(Block("rule"))

    def _html_block(self, token: Token, index: int) -> None:
        if token.content.strip() != PAGE_BREAK:
            raise Problem(f"line {(token.map or [0])[0] + 1}: HTML is not supported, except {PAGE_BREAK}")
        self._result.append(Block("break"))


def _spans(children: list[Token]) -> list[Span]:
    spans: list[Span] = []
    style = Span("")
    for child in children:
        match child.type:
            case "strong_open" | "strong_close":
                style = replace(style, bold=child.nesting == 1)
            case "em_open" | "em_close":
                style = replace(style, italic=child.nesting == 1)
            case "s_open" | "s_close":
                style = replace(style, strike=child.nesting == 1)
            case "link_open":
                style = replace(style, link=str(child.attrs["href"]))
            case "link_close":
                style = replace(style, link="")
            case "code_inline":
                spans.append(replace(style, text=child.content, code=True))
            case "softbreak":
                spans.append(replace(style, text=" "))
            case "hardbreak":
                spans.append(replace(style, text="\n"))
            case "image":
                raise Problem(
                    f"image {child.attrs['src']!r}: stands inside of a sentence; give it a paragraph of its own"
                )
            case _:
                spans.append(replace(style, text=child.content))
    return [span for span in spans if span.text]

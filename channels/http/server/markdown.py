"""Markdown of ours as HTML, for the pages of the documentation."""

from __future__ import annotations

import re
from itertools import pairwise

from markdown_it import MarkdownIt
from markdown_it.token import Token

_LINK = re.compile(r"^(?!\w+:)([\w-]+)\.md(?=#|$)")


class _Markdown(MarkdownIt):
    """CommonMark with tables and without HTML. Links to files of the folder lead to their pages."""

    def __init__(self) -> None:
        super().__init__("commonmark", {"html": False})
        self.enable("table")

    def normalizeLink(self, url: str) -> str:
        return super().normalizeLink(_LINK.sub(r"\1", url))


def rendered(text: str) -> str:
    """HTML, in which every heading can be linked to."""
    markdown = _Markdown()
    tokens = markdown.parse(text)
    for heading, title in pairwise(tokens):
        if heading.type == "heading_open":
            heading.attrSet("id", _anchor(title))
    rendered: str = markdown.renderer.render(tokens, markdown.options, {})
    return rendered


def _anchor(title: Token) -> str:
    """As GitHub makes it: lower case, without punctuation, with a dash for each space."""
    return re.sub(r"[^\w\- ]", "", title.content.lower()).replace(" ", "-")

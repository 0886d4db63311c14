"""Markdown as readable text without markup, for when a platform refuses everything else."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from channels.markup.flow import Piece, Pre, flow, is_quoted, with_quote_marks
from channels.markup.parse import parse


def plain(source: str) -> str:
    """Returns the text that a reader sees. Links are followed by their address, tables are aligned columns."""
    texts = []
    for quoted, pieces in groupby(flow(parse(source)), is_quoted):
        text = "".join(_with_address(href, list(runs)) for href, runs in groupby(pieces, _href))
        texts.append(with_quote_marks(text) if quoted else text)
    return "".join(texts).strip()


def _href(piece: Piece) -> str:
    return "" if isinstance(piece, Pre) else piece.href


def _with_address(href: str, pieces: Sequence[Piece]) -> str:
    text = "".join(piece.text for piece in pieces)
    return f"{text} ({href})" if href and href != text else text

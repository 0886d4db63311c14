"""Markdown as readable text without markup, for when a platform refuses everything else."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from channels.markup.flow import Piece, Pre, flow, is_quoted, with_quote_marks
from channels.markup.parse import parse


def plain(source: str) -> str:
    """Returns the text that a reader sees. Links are followed by their address, tables are aligned columns."""
    groups = groupby(flow(parse(source)), is_quoted)
    return with_quote_marks((quoted, _with_addresses(pieces)) for quoted, pieces in groups)


def _with_addresses(pieces: Iterable[Piece]) -> str:
    return "".join(_with_address(href, list(runs)) for href, runs in groupby(pieces, _href))


def _href(piece: Piece) -> str:
    return "" if isinstance(piece, Pre) else piece.href


def _with_address(href: str, pieces: Sequence[Piece]) -> str:
    text = "".join(piece.text for piece in pieces)
    return f"{text} ({href})" if href and href != text else text

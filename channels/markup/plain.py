"""Markdown as readable text without markup, for when a platform refuses everything else."""

from __future__ import annotations


def plain(source: str) -> str:
    """Returns the text that a reader sees. Links are followed by their address, tables are aligned columns."""
    raise NotImplementedError

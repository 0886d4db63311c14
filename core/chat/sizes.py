"""Sizes of files in people's numbers."""

from __future__ import annotations

from core.chat.port import Rejected

_UNITS = ("bytes", "kB", "MB", "GB", "TB")


def in_words(size: int, step: int = 1024) -> str:
    """Returns a size as people read it: `20.5 MB`, `999 bytes`. `step`: bytes of a kB."""
    value, unit = float(size), 0
    while value >= step and unit < len(_UNITS) - 1:
        value, unit = value / step, unit + 1
    return f"{value:.1f}".removesuffix(".0") + f" {_UNITS[unit]}"


def over(size: int, limit: int) -> str:
    """Returns what is wrong with the size of a file. `size`: 0 if it is not known."""
    step = 1000 if limit % 1_000_000 == 0 else 1024  # as the platform counts
    most, has = in_words(limit, step), in_words(size, step)
    if not size:
        return f"it has more than {most}, the most that can be taken here"
    if has == most:
        return f"it has a little more than {most}, the most that can be taken here"
    return f"it has {has}, and at most {most} can be taken here"


def too_large(name: str, size: int, limit: int) -> Rejected:
    """Returns the error of a file that is over the limit. `size`: 0 if it is not known."""
    return Rejected(f"{name}: {over(size, limit)}")

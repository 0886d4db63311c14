"""`sika config reference`: the keys of the configuration, as text."""

from __future__ import annotations

import difflib
import textwrap
from collections.abc import Iterator

from core.config.reference import REQUIRED, Key, all_keys, matching
from core.errors import Invalid

WIDTH = 100
INDENT = "    "


def lines(name: str) -> Iterator[str]:
    """Returns the keys that a name matches, all of them for "". Raises `Invalid` if there are none."""
    keys = matching(name)
    if not keys:
        close = difflib.get_close_matches(name, [key.path for key in all_keys()], n=1)
        raise Invalid(f"{name}: no such key" + (f"; did you mean {close[0]}?" if close else ""))
    for key in keys:
        yield _heading(key)
        for paragraph in key.text.split("\n\n"):
            yield from textwrap.wrap(paragraph, WIDTH, initial_indent=INDENT, subsequent_indent=INDENT)


def _heading(key: Key) -> str:
    default = f", {key.default}" if key.default == REQUIRED else f", default: {key.default}" if key.default else ""
    return f"{key.path}: {key.type}{default}{' [restart]' if key.restart else ''}"

"""New files of a change that is made as a whole: what there was before them, and how they are taken back."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress

from core.errors import Invalid
from core.files.paths import Tree, join, parse


def location(tree: Tree, path: str) -> str:
    """Returns the one way to write the path of a file, after its links. Raises `Invalid` for one outside."""
    try:
        with tree.walk(path) as place:
            return place.virtual
    except OSError:  # a directory is missing, or is none
        return join(parse(path, tree.start))


def missing_directories(tree: Tree, path: str) -> Sequence[str]:
    """Returns the directories that a new file would be made with, the deepest first."""
    parts = parse(path, tree.start)[:-1]
    above = [join(parts[:depth]) for depth in range(len(parts), 0, -1)]
    present = next((number for number, directory in enumerate(above) if _exists(tree, directory)), len(above))
    return above[:present]


def take_back(tree: Tree, path: str, directories: Sequence[str]) -> None:
    """Removes a file, and the directories that were made for it, as far as nothing else is in them."""
    for remove, each in ((os.unlink, path), *((os.rmdir, directory) for directory in directories)):
        with suppress(OSError, Invalid), tree.walk(each) as place:
            if place.fd is not None and place.name != ".":
                remove(place.name, dir_fd=place.fd)


def _exists(tree: Tree, directory: str) -> bool:
    try:
        with tree.walk(directory) as place:
            return place.fd is None or place.stat() is not None
    except (OSError, Invalid):
        return False

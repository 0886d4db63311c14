"""The port of the images that the agent looks at, and what counts as one."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Protocol

import msgspec

from core.errors import Invalid
from core.files.paths import PROJECT, ROOTS, USER_DATA, WORKSPACE, join, parse, split

KINDS: Mapping[str, str] = {".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".png": "image/png", ".webp": "image/webp"}
"""Media types of images that can be shown, by extension (DeerFlow's tool `view_image`)."""
PLACES = (*(f"{USER_DATA}/{name}" for name in ROOTS), PROJECT)
"""Directories whose images can be looked at."""
MAX_BYTES = 20 << 20
"""Limit of an image (DeerFlow's tool `view_image`)."""


class Image(msgspec.Struct, frozen=True):
    """A file that is an image. `size` in bytes."""

    path: str
    mime_type: str
    size: int
    sha256: str


class Images(Protocol):
    """Guarantees: only files that lie in the thread's three directories when they are opened, or in the folder that it
    works on and are not hidden there; at most `MAX_BYTES`.
    """

    async def load(self, user: str, thread: str, path: str) -> bytes:
        """The content of a file as it is now. Raises `Invalid`, with the virtual path, if there is none to be had."""
        ...


def place_of(path: str, start: str = WORKSPACE) -> str:
    """Returns the one way to write the path of an image. `start`: where relative paths begin. Raises `Invalid` for what
    cannot be one by its name or place.
    """
    parts = parse(path, start)
    if not any(parts[: len(root)] == root and len(parts) > len(root) for root in map(split, PLACES)):
        raise Invalid(f"{path}: images are looked at in {', '.join(PLACES)} only; copy it to one of them")
    if _suffix(parts[-1]) not in KINDS:
        raise Invalid(f"{path}: not an image that can be looked at ({', '.join(KINDS)})")
    return join(parts)


def image_of(path: str, content: bytes) -> Image:
    """Returns the media type of a file. Raises `Invalid` if it is too large, or no image of the kind that its name
    says.
    """
    if len(content) > MAX_BYTES:
        raise Invalid(f"{path}: larger than {MAX_BYTES >> 20} MB; make a smaller one and look at that")
    expected, kind = KINDS.get(_suffix(path)), kind_of(content)
    if kind is None:
        raise Invalid(f"{path}: the content is not a JPEG, PNG or WebP image")
    if kind != expected:
        raise Invalid(f"{path}: the content is {kind}, and the name does not say so; rename it")
    return Image(path, kind, len(content), hashlib.sha256(content).hexdigest())


def kind_of(content: bytes) -> str | None:
    """The MIME type by the first bytes, None if it is none of `KINDS`."""
    if content.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if content.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    return "image/webp" if content[:4] == b"RIFF" and content[8:12] == b"WEBP" else None


def _suffix(path: str) -> str:
    return PurePosixPath(path).suffix.lower()

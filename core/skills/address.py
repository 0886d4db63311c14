"""Addresses of skills: of an archive, of a `SKILL.md`, or of a folder in a repository at GitHub."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from core.errors import Invalid
from core.skills.archive import unpack, unpack_file

_HOSTS = ("github.com", "www.github.com")
_FILES = ("archive", "releases", "raw")
"""Parts of addresses at GitHub behind which files lie."""
MOST_REF_PARTS = 4
"""Limit of the parts, between slashes, of the name of a branch."""
EXPECTED = "the address of a .skill or .zip archive, of a SKILL.md, or of a folder as https://github.com/OWNER/REPO/tree/REF/PATH is expected"  # noqa: E501


class Download(NamedTuple):
    """A file to fetch. `folder`: where the skill lies in it, if it is the archive of a repository."""

    url: str
    folder: str | None = None


def downloads_of(url: str) -> Sequence[Download]:
    """Returns what to fetch for an address that a person gave: the first one that is there. Raises `Invalid`."""
    try:
        parts = urlsplit(url)
    except ValueError:
        raise Invalid("url: not a URL") from None
    if parts.hostname not in _HOSTS:
        return [Download(url)]
    match [part for part in parts.path.split("/") if part]:
        case [owner, repository]:
            return [_archive(owner, repository.removesuffix(".git"), "HEAD")]
        case [owner, repository, "tree", first, *rest]:
            names = [first, *rest]  # the address does not say where the name of a branch ends
            ends = range(1, min(len(names), MOST_REF_PARTS) + 1)
            return [_archive(owner, repository, "/".join(names[:end]), unquote("/".join(names[end:]))) for end in ends]
        case [owner, repository, "blob", ref, *path] if path:
            return [Download(f"https://raw.githubusercontent.com/{'/'.join((owner, repository, ref, *path))}")]
        case [_, _, kind, *_] if kind in _FILES:
            return [Download(url)]
    raise Invalid(f"url: this is a page of GitHub; {EXPECTED}")


def without_query(url: str) -> str:
    """Returns an address without its query, which may hold a secret."""
    return urlsplit(url)._replace(query="", fragment="").geturl()


def take(source: Path, target: Path, folder: str | None = None) -> str:
    """Puts a skill that was fetched into a new folder, and returns its name. Raises `Invalid`. Blocks."""
    if zipfile.is_zipfile(source):
        return unpack(source, target, folder)
    return unpack_file(source, target, otherwise=EXPECTED)


def _archive(owner: str, repository: str, ref: str, folder: str = "") -> Download:
    return Download(f"https://github.com/{owner}/{repository}/archive/{ref}.zip", folder)

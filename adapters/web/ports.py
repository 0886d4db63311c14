"""The ports of the web: searching it, reading a page, and searching for pictures. One class per provider and port."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import msgspec


class Hit(msgspec.Struct, frozen=True):
    """A result of a search."""

    title: str
    url: str
    snippet: str


class Page(msgspec.Struct, frozen=True):
    """A page as Markdown."""

    title: str
    text: str
    whole: bool = True
    """False if there is more that was not read, because it is too long."""


class Picture(msgspec.Struct, frozen=True):
    """A picture in a result of a search."""

    title: str
    image_url: str
    thumbnail_url: str


class Search(Protocol):
    async def search(self, query: str, count: int) -> list[Hit]:
        """Returns at most `count` pages, best first. Raises `Unavailable`, with advice, if there is no response."""
        ...


class Fetch(Protocol):
    async def fetch(self, url: str) -> Page:
        """Returns a page. Raises `Invalid` unless the URL is one of a public page of text, `Unavailable` if there is no
        response. Guarantees: no request goes to an address inside the network, also not by a redirect.
        """
        ...


class Pictures(Protocol):
    async def pictures(self, query: str, count: int, filters: Mapping[str, str]) -> list[Picture]:
        """Returns at most `count` pictures. `filters` are `size`, `type_image`, `layout`; a provider ignores those that
        it does not support.
        """
        ...

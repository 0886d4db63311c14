"""The ports of the web: searching it, reading a page, and searching for pictures. One class per provider and port."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import msgspec


class Found(msgspec.Struct, frozen=True):
    """A page that was found."""

    title: str
    url: str
    snippet: str


class Page(msgspec.Struct, frozen=True):
    """A page as Markdown."""

    title: str
    text: str


class Picture(msgspec.Struct, frozen=True):
    """A picture that was found."""

    title: str
    image_url: str
    thumbnail_url: str


class Search(Protocol):
    async def search(self, query: str, count: int) -> list[Found]:
        """At most `count` pages, best first. Raises `Unavailable`, saying what can be done, if there is no answer."""
        ...


class Fetch(Protocol):
    async def fetch(self, url: str) -> Page:
        """What a page says. Raises `Invalid` if the URL is not one of a public page of text, `Unavailable` if there is
        no answer. Guarantees: nothing is asked of an address inside the network, also not by a redirect.
        """
        ...


class Pictures(Protocol):
    async def pictures(self, query: str, count: int, filters: Mapping[str, str]) -> list[Picture]:
        """At most `count` pictures. `filters`: `size`, `type_image`, `layout`; a provider leaves out those that it does
        not know.
        """
        ...

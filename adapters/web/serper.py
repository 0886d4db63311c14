"""Serper: Google's results for pages and pictures (https://serper.dev)."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from adapters.web.api import Api
from adapters.web.ports import Found, Picture
from adapters.web.settings import Settings, api_key

MOST = 10


class _Page(msgspec.Struct):
    link: str = ""
    title: str | None = None
    snippet: str | None = None


class _Pages(msgspec.Struct):
    organic: list[_Page] = []


class _Image(msgspec.Struct, rename="camel"):
    image_url: str = ""
    title: str | None = None
    thumbnail_url: str | None = None


class _Images(msgspec.Struct):
    images: list[_Image] = []


class Serper:
    def __init__(self, settings: Settings) -> None:
        headers = {"X-API-KEY": api_key(settings, "Serper", "SERPER_API_KEY")}
        self._api = Api("Serper", settings.base_url or "https://google.serper.dev", headers, settings.timeout)

    async def search(self, query: str, count: int) -> list[Found]:
        found = await self._api.post("/search", {"q": query, "num": min(count, MOST)}, _Pages)
        return [Found(one.title or one.link, one.link, one.snippet or "") for one in found.organic]

    async def pictures(self, query: str, count: int, filters: Mapping[str, str]) -> list[Picture]:
        """Knows none of the filters."""
        found = await self._api.post("/images", {"q": query, "num": min(count, MOST)}, _Images)
        return [Picture(one.title or "", one.image_url, one.thumbnail_url or one.image_url) for one in found.images]

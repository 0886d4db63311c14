"""Serper: Google's results for pages and pictures (https://serper.dev)."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from adapters.web.api import Api
from adapters.web.ports import Hit, Picture
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

    async def search(self, query: str, count: int) -> list[Hit]:
        pages = (await self._api.post("/search", {"q": query, "num": min(count, MOST)}, _Pages)).organic
        return [Hit(page.title or page.link, page.link, page.snippet or "") for page in pages]

    async def pictures(self, query: str, count: int, filters: Mapping[str, str]) -> list[Picture]:
        """Ignores all filters."""
        images = (await self._api.post("/images", {"q": query, "num": min(count, MOST)}, _Images)).images
        return [Picture(image.title or "", image.image_url, image.thumbnail_url or image.image_url) for image in images]

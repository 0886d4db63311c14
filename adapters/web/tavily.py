"""Tavily: search and extraction (https://docs.tavily.com)."""

from __future__ import annotations

import msgspec

from adapters.web.address import parse
from adapters.web.api import Api, bearer
from adapters.web.ports import Found, Page
from adapters.web.settings import Settings, api_key
from core.errors import Unavailable

MOST = 20


class _Result(msgspec.Struct):
    url: str = ""
    title: str | None = None
    content: str | None = None
    raw_content: str | None = None


class _Answer(msgspec.Struct):
    results: list[_Result] = []


class Tavily:
    def __init__(self, settings: Settings) -> None:
        key = api_key(settings, "Tavily", "TAVILY_API_KEY")
        self._api = Api("Tavily", settings.base_url or "https://api.tavily.com", bearer(key), settings.timeout)

    async def search(self, query: str, count: int) -> list[Found]:
        found = await self._api.post("/search", {"query": query, "max_results": min(count, MOST)}, _Answer)
        return [Found(one.title or one.url, one.url, one.content or "") for one in found.results]

    async def fetch(self, url: str) -> Page:
        asked = {"urls": [str(parse(url))], "format": "markdown"}
        for one in (await self._api.post("/extract", asked, _Answer)).results:
            if one.raw_content:
                return Page(one.title or "", one.raw_content)
        raise Unavailable("Tavily could not read this page. Look for another page, or go on without it.")

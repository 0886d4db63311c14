"""Tavily: search and extraction (https://docs.tavily.com)."""

from __future__ import annotations

import msgspec

from adapters.web.address import parse
from adapters.web.api import Api, bearer
from adapters.web.ports import Hit, Page
from adapters.web.settings import Settings, api_key
from core.errors import Unavailable

MOST = 20


class _Result(msgspec.Struct):
    url: str = ""
    title: str | None = None
    content: str | None = None
    raw_content: str | None = None


class _Response(msgspec.Struct):
    results: list[_Result] = []


class Tavily:
    def __init__(self, settings: Settings) -> None:
        key = api_key(settings, "Tavily", "TAVILY_API_KEY")
        self._api = Api("Tavily", settings.base_url or "https://api.tavily.com", bearer(key), settings.timeout)

    async def search(self, query: str, count: int) -> list[Hit]:
        response = await self._api.post("/search", {"query": query, "max_results": min(count, MOST)}, _Response)
        return [Hit(result.title or result.url, result.url, result.content or "") for result in response.results]

    async def fetch(self, url: str) -> Page:
        request = {"urls": [str(parse(url))], "format": "markdown"}
        for result in (await self._api.post("/extract", request, _Response)).results:
            if result.raw_content:
                return Page(result.title or "", result.raw_content)
        raise Unavailable("Tavily could not read this page. Look for another page, or go on without it.")

"""Exa: search and contents (https://docs.exa.ai)."""

from __future__ import annotations

import msgspec

from adapters.web.address import parse
from adapters.web.api import Api
from adapters.web.ports import Hit, Page
from adapters.web.settings import Settings, api_key
from core.errors import Unavailable

PAGE_CHARACTERS = 10_000


class _Result(msgspec.Struct):
    url: str = ""
    title: str | None = None
    text: str | None = None


class _Response(msgspec.Struct):
    results: list[_Result] = []


class Exa:
    def __init__(self, settings: Settings) -> None:
        headers = {"x-api-key": api_key(settings, "Exa", "EXA_API_KEY")}
        self._api = Api("Exa", settings.base_url or "https://api.exa.ai", headers, settings.timeout)
        self._type = settings.search_type
        self._characters = settings.contents_max_characters

    async def search(self, query: str, count: int) -> list[Hit]:
        request = {"query": query, "numResults": count, "type": self._type}
        request["contents"] = {"text": {"maxCharacters": self._characters}}
        response = await self._api.post("/search", request, _Response)
        return [Hit(result.title or result.url, result.url, result.text or "") for result in response.results]

    async def fetch(self, url: str) -> Page:
        request = {"urls": [str(parse(url))], "text": {"maxCharacters": PAGE_CHARACTERS}}
        for result in (await self._api.post("/contents", request, _Response)).results:
            if result.text:
                return Page(result.title or "", result.text)
        raise Unavailable("Exa could not read this page. Look for another page, or go on without it.")

"""Firecrawl, hosted or one's own: search and scraping (https://docs.firecrawl.dev, API version 2)."""

from __future__ import annotations

import msgspec

from adapters.egress import PublicResolver
from adapters.web.address import check_name, parse
from adapters.web.api import Api, bearer
from adapters.web.ports import Hit, Page
from adapters.web.settings import Settings, api_key
from core.errors import Unavailable


class _Result(msgspec.Struct):
    url: str = ""
    title: str | None = None
    description: str | None = None


class _Web(msgspec.Struct):
    web: list[_Result] = []


class _Results(msgspec.Struct):
    data: _Web


class _Metadata(msgspec.Struct):
    title: str | list[str] | None = None


class _Scraped(msgspec.Struct):
    markdown: str | None = None
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)


class _Page(msgspec.Struct):
    data: _Scraped = msgspec.field(default_factory=_Scraped)


class Firecrawl:
    """Firecrawl. A self-hosted one needs no key and is inside the network, so a page's name is resolved and checked
    here first. It resolves the name again: its operator has to keep it from the network.
    """

    def __init__(self, settings: Settings) -> None:
        own = settings.base_url is not None
        key = api_key(settings, "Firecrawl", "FIRECRAWL_API_KEY", needed=not own)
        self._api = Api("Firecrawl", settings.base_url or "https://api.firecrawl.dev", bearer(key), settings.timeout)
        self._private = own and settings.allow_private_addresses
        self._resolves = own and not self._private

    async def search(self, query: str, count: int) -> list[Hit]:
        results = (await self._api.post("/v2/search", {"query": query, "limit": count}, _Results)).data.web
        return [Hit(result.title or result.url, result.url, result.description or "") for result in results]

    async def fetch(self, url: str) -> Page:
        target = parse(url, private=self._private)
        if self._resolves:
            await check_name(target, PublicResolver())
        request = {"url": str(target), "formats": ["markdown"], "onlyMainContent": True}
        page = (await self._api.post("/v2/scrape", request, _Page)).data
        if not page.markdown:
            raise Unavailable("Firecrawl could not read this page. Look for another page, or go on without it.")
        title = page.metadata.title
        return Page(title if isinstance(title, str) else " ".join(title or ()), page.markdown)

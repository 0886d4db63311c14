"""Firecrawl, hosted or one's own: search and scraping (https://docs.firecrawl.dev, API version 2)."""

from __future__ import annotations

import msgspec

from adapters.egress import PublicResolver
from adapters.web.address import check_name, parse
from adapters.web.api import Api, bearer
from adapters.web.ports import Found, Page
from adapters.web.settings import Settings, api_key
from core.errors import Unavailable


class _Result(msgspec.Struct):
    url: str = ""
    title: str | None = None
    description: str | None = None


class _Web(msgspec.Struct):
    web: list[_Result] = []


class _Found(msgspec.Struct):
    data: _Web


class _About(msgspec.Struct):
    title: str | list[str] | None = None


class _Scraped(msgspec.Struct):
    markdown: str | None = None
    metadata: _About = msgspec.field(default_factory=_About)


class _Page(msgspec.Struct):
    data: _Scraped = msgspec.field(default_factory=_Scraped)


class Firecrawl:
    """One's own needs no key, and stands in one's own network: what it is sent to is resolved here first. It resolves
    the name again, and has to be kept from the network itself by those who run it.
    """

    def __init__(self, settings: Settings) -> None:
        own = settings.base_url is not None
        key = api_key(settings, "Firecrawl", "FIRECRAWL_API_KEY", needed=not own)
        self._api = Api("Firecrawl", settings.base_url or "https://api.firecrawl.dev", bearer(key), settings.timeout)
        self._private = own and settings.allow_private_addresses
        self._resolves = own and not self._private

    async def search(self, query: str, count: int) -> list[Found]:
        found = await self._api.post("/v2/search", {"query": query, "limit": count}, _Found)
        return [Found(one.title or one.url, one.url, one.description or "") for one in found.data.web]

    async def fetch(self, url: str) -> Page:
        target = parse(url, private=self._private)
        if self._resolves:
            await check_name(target, PublicResolver())
        asked = {"url": str(target), "formats": ["markdown"], "onlyMainContent": True}
        found = (await self._api.post("/v2/scrape", asked, _Page)).data
        if not found.markdown:
            raise Unavailable("Firecrawl could not read this page. Look for another page, or go on without it.")
        title = found.metadata.title
        return Page(title if isinstance(title, str) else " ".join(title or ()), found.markdown)

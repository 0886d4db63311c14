"""Jina's reader: the main text of pages as Markdown (https://jina.ai/reader)."""

from __future__ import annotations

import msgspec

from adapters.egress import PublicResolver
from adapters.web.address import check_name, parse
from adapters.web.api import Api, bearer
from adapters.web.ports import Page
from adapters.web.settings import Settings, api_key
from core.errors import Unavailable


class _Page(msgspec.Struct):
    title: str | None = None
    content: str | None = None


class _Response(msgspec.Struct):
    data: _Page | None = None


class Jina:
    """Jina. Works without a key, too, for fewer requests. A self-hosted one is handled as in `firecrawl.Firecrawl`."""

    def __init__(self, settings: Settings) -> None:
        key = api_key(settings, "Jina", "JINA_API_KEY", needed=False)
        headers = bearer(key) | {"Accept": "application/json", "X-Timeout": str(max(1, int(settings.timeout)))}
        self._api = Api("Jina", settings.base_url or "https://r.jina.ai", headers, settings.timeout)
        self._private = settings.base_url is not None and settings.allow_private_addresses
        self._resolves = settings.base_url is not None and not self._private

    async def fetch(self, url: str) -> Page:
        target = parse(url, private=self._private)
        if self._resolves:
            await check_name(target, PublicResolver())
        page = (await self._api.post("/", {"url": str(target)}, _Response)).data
        if page is None or not page.content:
            raise Unavailable("Jina could not read this page. Look for another page, or go on without it.")
        return Page(page.title or "", page.content)

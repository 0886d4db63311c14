"""Search the web, by the provider that the configuration names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from adapters.web import settings as web
from adapters.web.clean import line
from adapters.web.duckduckgo import DuckDuckGo
from adapters.web.exa import Exa
from adapters.web.firecrawl import Firecrawl
from adapters.web.ports import Found, Search
from adapters.web.serper import Serper
from adapters.web.tavily import Tavily
from core.errors import Invalid
from core.tools import Tool, ToolContext, tool

PROVIDERS: Mapping[str, Callable[[web.Settings], Search]] = {
    "duckduckgo": DuckDuckGo,
    "exa": Exa,
    "firecrawl": Firecrawl,
    "serper": Serper,
    "tavily": Tavily,
}
SNIPPET_CHARACTERS = 2000
TITLE_CHARACTERS = 300


def web_search(settings: Mapping[str, Any]) -> Tool:
    """The tool, of an entry's settings. Raises `Invalid` for settings that cannot be."""
    wanted = web.read(settings)
    provider = web.chosen(wanted, PROVIDERS, "duckduckgo")

    @tool(effect="pure", group="web")
    async def web_search(ctx: ToolContext, query: str) -> str:
        """Search the web. Gives a JSON list of pages with title, url and snippet; read one with web_fetch.

        Args:
            query: What to look for, in words as one would type them into a search engine.
        """
        if not query.strip():
            raise Invalid("The query is empty. Say what to look for.")
        found = await provider.search(query.strip(), wanted.max_results)
        rows = [_shown(one) for one in found if one.url.startswith(("http://", "https://"))]
        return msgspec.json.encode(rows[: wanted.max_results]).decode()

    return web_search


def _shown(one: Found) -> Found:
    return Found(
        line(one.title, TITLE_CHARACTERS), line(one.url, web.URL_CHARACTERS), line(one.snippet, SNIPPET_CHARACTERS)
    )

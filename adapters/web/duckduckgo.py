"""DuckDuckGo and other search engines without a key, by the optional package `ddgs`."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import anyio
from anyio import to_thread

from adapters.web.ports import Hit, Picture
from adapters.web.settings import DDGS, Settings
from core.errors import Unavailable

Row = Mapping[str, Any]


class DuckDuckGo:
    """DuckDuckGo. `ddgs` blocks, and ignores its timeout: a late call is abandoned in its thread."""

    def __init__(self, settings: Settings) -> None:
        self._seconds = settings.timeout
        self._options = {"region": settings.region, "safesearch": settings.safesearch, "backend": settings.backend}

    async def search(self, query: str, count: int) -> list[Hit]:
        rows = await self._ask("text", query, count, {})
        return [Hit(_text(row, "title"), _text(row, "href"), _text(row, "body")) for row in rows]

    async def pictures(self, query: str, count: int, filters: Mapping[str, str]) -> list[Picture]:
        rows = await self._ask("images", query, count, filters)
        return [Picture(_text(row, "title"), _text(row, "image"), _text(row, "thumbnail")) for row in rows]

    async def _ask(self, method: str, query: str, count: int, filters: Mapping[str, str]) -> list[Row]:
        options = {**self._options, **filters, "max_results": count}
        try:
            with anyio.fail_after(self._seconds):
                return await to_thread.run_sync(
                    _call_ddgs, method, query, options, max(1, int(self._seconds)), abandon_on_cancel=True
                )
        except TimeoutError:
            raise _unavailable(f"did not answer within {self._seconds:g} s", "Try again") from None


def _call_ddgs(method: str, query: str, options: Mapping[str, Any], seconds: int) -> list[Row]:
    try:
        package = importlib.import_module(DDGS)
    except ImportError:
        text = "DuckDuckGo needs the package 'ddgs'. Somebody has to install it with: pip install ddgs"
        raise Unavailable(text) from None
    try:
        rows = getattr(package.DDGS(timeout=seconds), method)(query, **options)
    except Exception as error:  # its own kinds of errors, and those of the libraries below
        name = type(error).__name__
        if "No results" in str(error):
            return []
        if "Ratelimit" in name:
            raise _unavailable("gets too many requests", "Wait a while and try again") from None
        if "Timeout" in name:
            raise _unavailable("did not answer in time", "Try again") from None
        raise _unavailable(f"cannot be asked ({name})", "Try again later") from None
    return [row for row in rows or () if isinstance(row, Mapping)]


def _unavailable(problem: str, advice: str) -> Unavailable:
    return Unavailable(f"DuckDuckGo {problem}. {advice}, or go on without it.")


def _text(row: Row, name: str) -> str:
    value = row.get(name)
    return value if isinstance(value, str) else ""

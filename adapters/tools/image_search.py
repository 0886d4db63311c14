"""Search for pictures, by the provider that the configuration names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import msgspec

from adapters.web import settings as web
from adapters.web.clean import line
from adapters.web.duckduckgo import DuckDuckGo
from adapters.web.ports import Picture, Pictures
from adapters.web.serper import Serper
from core.errors import Invalid
from core.tools import Tool, ToolContext, tool

PROVIDERS: Mapping[str, Callable[[web.Settings], Pictures]] = {"duckduckgo": DuckDuckGo, "serper": Serper}
MOST = 20
TITLE_CHARACTERS = 300
HINT = (
    "image_url is the picture, thumbnail_url a small one. Look at some, choose what fits, "
    "and name the source when you use it."
)
Size = Literal["Small", "Medium", "Large", "Wallpaper"]
Kind = Literal["photo", "clipart", "gif", "transparent", "line"]
Layout = Literal["Square", "Tall", "Wide"]


class Answer(msgspec.Struct, frozen=True):
    """What the model gets (contract runtime §6)."""

    query: str
    total_results: int
    results: list[Picture]
    usage_hint: str = HINT


def image_search(settings: Mapping[str, Any]) -> Tool:
    """The tool, of an entry's settings. Raises `Invalid` for settings that cannot be."""
    wanted = web.read(settings)
    provider, usual = web.chosen(wanted, PROVIDERS, "duckduckgo"), wanted.max_results

    @tool(effect="pure", group="web")
    async def image_search(
        ctx: ToolContext,
        query: str,
        max_results: int = usual,
        size: Size | None = None,
        type_image: Kind | None = None,
        layout: Layout | None = None,
    ) -> str:
        """Search the web for pictures, such as references for a picture that is to be made.

        Args:
            query: What the pictures show, in a few precise words.
            max_results: How many pictures, at most 20.
            size: Only pictures of this size.
            type_image: Only pictures of this kind.
            layout: Only pictures of this form.
        """
        if not query.strip():
            raise Invalid("The query is empty. Say what the pictures show.")
        count = min(max(max_results, 1), MOST)
        given = {"size": size, "type_image": type_image, "layout": layout}
        filters = {key: value for key, value in given.items() if value is not None}
        found = await provider.pictures(query.strip(), count, filters)
        rows = [_shown(one) for one in found if one.image_url.startswith(("http://", "https://"))][:count]
        return msgspec.json.encode(Answer(query, len(rows), rows)).decode()

    return image_search


def _shown(one: Picture) -> Picture:
    small = one.thumbnail_url if one.thumbnail_url.startswith(("http://", "https://")) else one.image_url
    title, image = line(one.title, TITLE_CHARACTERS), line(one.image_url, web.URL_CHARACTERS)
    return Picture(title, image, line(small, web.URL_CHARACTERS))

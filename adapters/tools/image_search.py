"""Tool that searches for pictures, by the configured provider."""

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
    """The result for the model, with the fields of DeerFlow's."""

    query: str
    total_results: int
    results: list[Picture]
    usage_hint: str = HINT


def image_search(settings: Mapping[str, Any]) -> Tool:
    """Returns the tool for an entry's settings. Raises `Invalid` for invalid settings."""
    options = web.read(settings)
    provider, default = web.provider_of(options, PROVIDERS, web.DEFAULTS["image_search"]), options.max_results

    @tool(effect="pure", group="web")
    async def image_search(
        ctx: ToolContext,
        query: str,
        max_results: int = default,
        size: Size | None = None,
        type_image: Kind | None = None,
        layout: Layout | None = None,
    ) -> str:
        """Search the web for pictures, such as references for a picture that is to be made. Gives a JSON object with
        their titles and addresses, and of small copies. To see one, save it and use view_image.

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
        requested_filters = {"size": size, "type_image": type_image, "layout": layout}
        filters = {key: value for key, value in requested_filters.items() if value is not None}
        pictures = await provider.pictures(query.strip(), count, filters)
        rows = [_cleaned(each) for each in pictures if each.image_url.startswith(("http://", "https://"))][:count]
        return msgspec.json.encode(Answer(query, len(rows), rows)).decode()

    return image_search


def _cleaned(picture: Picture) -> Picture:
    thumbnail = (
        picture.thumbnail_url if picture.thumbnail_url.startswith(("http://", "https://")) else picture.image_url
    )
    title, image = line(picture.title, TITLE_CHARACTERS), line(picture.image_url, web.URL_CHARACTERS)
    return Picture(title, image, line(thumbnail, web.URL_CHARACTERS))

"""What all lists of the LangGraph Platform's protocol have in common: filters, order, fields, pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from aiohttp import web

from channels.http.bodies import plain
from core.errors import Invalid
from core.events import Json


def has_all(metadata: Json, required: Mapping[str, Any] | None) -> bool:
    """Whether the metadata has every required key with that value."""
    return all(key in metadata and metadata[key] == value for key, value in (required or {}).items())


def sort(items: list[Json], key: str, identity: str, *, sortable: Sequence[str], order: str | None) -> None:
    """Sorts items by a field, and equal ones by another; nulls come first. Descending unless `order` is `asc`. Raises
    `Invalid` if one cannot sort by the field.
    """
    if key not in sortable:
        raise Invalid(f"sort_by: one of {', '.join(sortable)}, got {key[:40]!r}")
    descending = (order or "desc").lower() == "desc"
    items.sort(key=lambda item: (item[key] is not None, item[key] or "", item[identity]), reverse=descending)


def selected(item: Json, select: Sequence[str] | None) -> Json:
    """The fields that are named; all if none is."""
    return {name: item[name] for name in select if name in item} if select else item


def page(items: Sequence[Any], total: int, offset: int) -> web.Response:
    """A page, with the headers that say what else there is."""
    response = plain(items)
    response.headers["X-Pagination-Total"] = str(total)
    if offset + len(items) < total:
        response.headers["X-Pagination-Next"] = str(offset + len(items))
    return response

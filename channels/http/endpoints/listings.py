"""Lists of the LangGraph Platform's protocol: filters, order, fields, pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

from channels.http.endpoints.endpoint import Page
from core.events import Json

Order = Literal["asc", "desc", "ASC", "DESC"]
"""The order of hits; descending by default."""


class Listing(Protocol):
    """The part of a search that says which hits are shown, and how."""

    limit: int
    offset: int
    sort_order: Order | None
    select: list[str] | None


def has_all(metadata: Json, required: Mapping[str, Any] | None) -> bool:
    """Tells whether the metadata has every required key with that value."""
    return all(key in metadata and metadata[key] == value for key, value in (required or {}).items())


def descending(listing: Listing) -> bool:
    return (listing.sort_order or "desc").lower() == "desc"


def sort(items: list[Json], key: str, identity: str, listing: Listing) -> None:
    """Sorts items by a field, and equal ones by another; nulls come first."""
    items.sort(key=lambda item: (item[key] is not None, item[key] or "", item[identity]), reverse=descending(listing))


def selected(item: Json, select: Sequence[str] | None) -> Json:
    """The fields that are named; all if none is."""
    return {name: item[name] for name in select if name in item} if select else item


def page(items: Sequence[Json], listing: Listing) -> Page[Json]:
    """The page of all hits that is asked for."""
    shown = items[listing.offset : listing.offset + listing.limit]
    return Page([selected(item, listing.select) for item in shown], len(items), listing.offset)

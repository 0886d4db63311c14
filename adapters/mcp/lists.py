"""The lists of an MCP server, each entry judged alone: what is wrong with one costs that one, and a reason."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Any

import mcp.types as protocol
from mcp import McpError
from pydantic import BaseModel, ConfigDict

from adapters.mcp.results import TEXT
from core.errors import Invalid
from core.mcp.schemas import finite, sound
from core.ports.mcp_frames import Offer, Problem

MOST_TOOLS = 1000
MOST_OFFERS = 500
MOST_PAGES = 500
MOST_PROBLEMS = 100
NAME_CHARACTERS = 200
Send = Callable[[Any, type[BaseModel]], Awaitable[Any]]


class Raw(BaseModel):
    """A result as the server wrote it."""

    model_config = ConfigDict(extra="allow")


async def entries(send: Send, field: str, most: int, problems: list[Problem]) -> list[Any]:
    """Returns the first `most` entries of a list that comes in pages, as the server wrote them. Raises `McpError` if
    it refuses the first page.
    """
    made, cursor, seen = list[Any](), None, set[str]()
    for number in range(MOST_PAGES):  # pages may be empty
        try:
            page = await send(_request(field, cursor), Raw)
        except McpError as error:
            if not number:
                raise
            problems.append(Problem(reason=f"page {number + 1} of its {field} was refused: {error}"[:TEXT]))
            return made
        listed, cursor = getattr(page, field, None), getattr(page, "nextCursor", None)
        if not isinstance(listed, list):
            problems.append(Problem(reason=f"a page of its {field} has no list"))
            listed = []
        made += listed[: most - len(made)]
        if not cursor:
            left = 0
        elif not isinstance(cursor, str) or cursor in seen:
            problems.append(Problem(reason=f"its {field} come in pages that repeat; only the first ones are taken"))
            return made
        else:
            left = 1
            seen.add(cursor)
        if len(made) >= most and (left or len(listed) > most):
            problems.append(Problem(reason=f"it has more than {most} {field}; the others are left out"))
        if not left or len(made) >= most:
            return made
    problems.append(Problem(reason=f"its {field} come in more than {MOST_PAGES} pages; the others are left out"))
    return made


def _request(field: str, cursor: str | None) -> Any:
    kinds = {"tools": protocol.ListToolsRequest, "resources": protocol.ListResourcesRequest}
    kind: Any = kinds.get(field, protocol.ListPromptsRequest)
    return protocol.ClientRequest(kind(params=protocol.PaginatedRequestParams(cursor=cursor) if cursor else None))


def tools_of(listed: list[Any], problems: list[Problem]) -> list[Offer]:
    """Returns the tools that can be offered, in the order of their names."""
    tools = dict[str, Offer]()
    for number, raw in enumerate(listed, 1):
        name = finite(raw["name"]) if isinstance(raw, Mapping) and isinstance(raw.get("name"), str) else ""
        try:
            if name in tools:
                raise Invalid("another tool has its name")
            tools[name], note = _tool(name, raw)
            if note:
                problems.append(Problem(tool=name, reason=f"left out of its schema: {note}"))
        except (Invalid, RecursionError) as error:
            reason = str(error) if isinstance(error, Invalid) else "its schema lies too deep"
            shown = name[:NAME_CHARACTERS] if _is_name(name) else f"tool {number}"
            problems.append(Problem(tool=shown, reason=reason[:TEXT], left_out=True))
    return [tools[name] for name in sorted(tools)]


def _is_name(name: str) -> bool:
    return bool(name.strip()) and name.isprintable()


def _tool(name: str, raw: Any) -> tuple[Offer, str]:
    if not isinstance(raw, Mapping):
        raise Invalid("it is no object")
    if not _is_name(name):
        raise Invalid("it has no name")
    if len(name) > NAME_CHARACTERS:
        raise Invalid(f"its name has more than {NAME_CHARACTERS} characters")
    schema, note = sound(raw.get("inputSchema"))
    hints = raw.get("annotations")
    hints = hints if isinstance(hints, Mapping) else {}
    offer = Offer(
        name=name,
        description=text_of(raw, "description") or text_of(raw, "title"),
        schema=schema,
        read_only=hints.get("readOnlyHint") is True,
        idempotent=hints.get("idempotentHint") is True,
    )
    return offer, note


def others_of(field: str, listed: list[Any], problems: list[Problem]) -> list[Offer]:
    """Returns the resources or prompts that can be offered, in the order of their names."""
    offers = list[Offer]()
    for raw in listed:
        name = text_of(raw, "name") or text_of(raw, "uri")
        if not name or (field == "resources" and not text_of(raw, "uri")):
            problems.append(Problem(reason=f"one of its {field} has no name or address", left_out=True))
            continue
        about, uri, mime = text_of(raw, "description"), text_of(raw, "uri"), text_of(raw, "mimeType")
        name = name[:NAME_CHARACTERS] if field == "resources" else name
        offers.append(Offer(name=name, description=about, schema=dict(_arguments(raw)), uri=uri, mime_type=mime))
    return sorted(offers, key=lambda offer: offer.name)


def most_of(problems: Iterable[Problem]) -> list[Problem]:
    """Returns as many problems as are recorded, those of entries that are left out first. The last counts the rest."""
    ordered = sorted(problems, key=lambda problem: not problem.left_out)
    if len(ordered) <= MOST_PROBLEMS:
        return ordered
    rest = ordered[MOST_PROBLEMS - 1 :]
    more = f"{len(rest)} more faults, {sum(problem.left_out for problem in rest)} of them of what is left out"
    return [*ordered[: MOST_PROBLEMS - 1], Problem(reason=more)]


def _arguments(raw: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    listed = raw.get("arguments")
    for argument in listed if isinstance(listed, list) else ():
        if name := text_of(argument, "name"):
            yield name, text_of(argument, "description")


def text_of(raw: Any, key: str) -> str:
    """Returns a field that is a text, "" for anything else."""
    value = raw.get(key) if isinstance(raw, Mapping) else None
    return str(finite(value))[:TEXT] if isinstance(value, str) else ""

"""Threads found: by metadata, values, status, ids, and by the words in their messages; listed, counted, excerpted."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
import structlog

from channels.http.endpoints.call import Call
from channels.http.endpoints.endpoint import Limit, Offset, Page, Routes
from channels.http.endpoints.listings import Order, descending, selected
from channels.http.endpoints.shapes import Thread, ThreadStatus, part_of
from channels.http.protocols.langgraph import dumps
from channels.http.protocols.langgraph.threads import thread_object
from channels.http.server.live import Services
from channels.http.server.routes import PAGING
from core.errors import Invalid, NotFound, SikaError, Unavailable, ungrouped
from core.events import Json
from core.thread.state import ThreadState
from core.views.projections import ThreadRow
from core.views.search import Filters

log = structlog.get_logger("sika.http")

AT_ONCE = 16
"""Threads loaded at the same time for one search."""

_STEP = re.compile(r"\.?([^.\[\]]+)|\[(-?\d{1,9})\]")
_OF_STATE = ("values", "interrupts", "error")
"""Fields of a thread that only its folded state has."""


class CountBody(msgspec.Struct):
    metadata: dict[str, Any] | None = None
    values: dict[str, Any] | None = None
    status: ThreadStatus | None = None
    ids: Annotated[list[str], msgspec.Meta(max_length=10_000)] | None = None
    query: Annotated[str, msgspec.Meta(max_length=1000)] | None = None


class SearchBody(CountBody):
    limit: Limit = 10
    offset: Offset = 0
    sort_by: Literal["thread_id", "status", "created_at", "updated_at", "state_updated_at", "pinned"] | None = None
    sort_order: Order | None = None
    select: list[str] | None = None
    extract: Annotated[dict[str, str], msgspec.Meta(max_length=10)] | None = None


class Highlight(msgspec.Struct):
    """Where the words of `query` were found; `message_id` null: in the title."""

    message_id: str | None
    text: str


Found = part_of(
    Thread,
    "Found",
    "A thread, or the fields of it that `select` names.",
    extracted=Json,
    highlights=list[Highlight],
    waiting=bool,
)


class Broken(NamedTuple):
    """Stands for the state of a thread that cannot be made out."""

    problem: str


class Path(NamedTuple):
    """A path of `extract`: steps from the thread on."""

    alias: str
    steps: tuple[str | int, ...]


ROUTES = Routes(tag="threads")
WAITING = "X-Waiting-Total"


@ROUTES(
    "POST",
    "/threads/search",
    "threads:read",
    headers={**PAGING, WAITING: "How many of your threads wait for answers of yours, if `select` names `waiting`"},
)
async def search(call: Call, body: SearchBody) -> Annotated[Page[msgspec.Raw], list[Found]]:
    """Search threads. All filters must hold. `metadata` values must be equal, lists and objects as a whole; `values`
    must be contained in the state's fields (other than `messages`); `query` are words that must be in the messages or
    the title, the last one as a beginning; where more than 5,000 messages have them, the newest of these count. Sorted
    by `pinned`, those whose metadata say `"pinned": true` come first, each in the order of their changes. Without
    `select` hits have their whole `values`; `extract` adds single values, by paths like `values.messages[-1].content`.
    With `waiting` in `select` a hit says whether it waits for answers of yours, and `X-Waiting-Total` how many of all
    your threads do. Where more than 5,000 threads have each of several metadata values, `X-Pagination-Total` is a lower
    bound until the last page.
    """
    paths = [_path(alias, text) for alias, text in (body.extract or {}).items()]
    order: Json = {"sort_by": body.sort_by or "updated_at", "descending": descending(body)}
    rows, total = await _find(call, body, body.limit, body.offset, order)
    states = await _states(call.services, _that_need_it(rows, body.select, paths))
    marked = body.query if not body.select or "highlights" in body.select else None
    marks = await _highlights(call.services, marked, rows) if marked else {}
    shown = [_row(row, states.get(row.thread_id), body.select, paths, marks) for row in rows]
    waits = "waiting" in (body.select or ())
    headers = {WAITING: str(await call.services.views.count_waiting(call.user))} if waits else {}
    return Page(shown, total, body.offset, headers)


@ROUTES("POST", "/threads/count", "threads:read")
async def count(call: Call, body: CountBody) -> int:
    """Count threads, by the filters of the search."""
    conditions = await _conditions(call, body)
    if conditions["values"]:
        return len(await _with_values(call, conditions, {}))
    return await call.services.views.count(Filters(**conditions))


async def _find(
    call: Call, body: CountBody, limit: int, offset: int, order: Mapping[str, Any]
) -> tuple[Sequence[ThreadRow], int]:
    conditions = await _conditions(call, body)
    if not conditions["values"]:
        return await call.services.views.search(**conditions, **order, limit=limit, offset=offset)
    rows = await _with_values(call, conditions, order)
    return rows[offset : offset + limit], len(rows)


async def _conditions(call: Call, body: CountBody) -> Json:
    """Returns the fields of the `Filters`. The read models have all events of the log by then."""
    conditions: Json = {
        "user": call.user,
        "metadata": _metadata(body.metadata or {}),
        "status": body.status,
        "ids": body.ids,
        "query": body.query or None,
        "values": _values(body.values or {}),
    }
    await call.services.views.current()
    return conditions


async def _with_values(call: Call, conditions: Json, order: Mapping[str, Any]) -> list[ThreadRow]:
    """Returns all hits of a search by fields of the state, which is folded."""
    candidates, _ = await call.services.views.search(**conditions, **order, limit=2**31)
    states = await _states(call.services, candidates, lambda state: _contains(state.values, conditions["values"]))
    return [row for row in candidates if row.thread_id in states]


async def _states(
    services: Services, rows: Iterable[ThreadRow], chosen: Callable[[ThreadState], bool] = lambda _: True
) -> dict[str, ThreadState | Broken]:
    """The folded states of threads that still exist, as far as they are `chosen`; those that cannot be made out are."""
    states: dict[str, ThreadState | Broken] = {}
    waiting = iter(rows)

    async def load() -> None:
        for row in waiting:
            try:
                state = await services.commands.state(row.user, row.thread_id, at_least=row.seq)
            except NotFound:
                continue
            except Unavailable:
                raise
            except Exception as error:
                states[row.thread_id] = _broken(row, error)
                continue
            if chosen(state):
                states[row.thread_id] = state

    with ungrouped():
        async with asyncio.TaskGroup() as tasks:
            for _ in range(AT_ONCE):
                tasks.create_task(load())
    return states


def _that_need_it(rows: Sequence[ThreadRow], select: list[str] | None, paths: Sequence[Path]) -> Sequence[ThreadRow]:
    """The hits whose state is needed for what is asked."""
    fields = {*(select or _OF_STATE), *(path.steps[0] for path in paths)}
    if "values" in fields:
        return rows
    if fields.isdisjoint(_OF_STATE):
        return []
    return [row for row in rows if row.status in ("interrupted", "error")]


async def _highlights(services: Services, query: str, rows: Sequence[ThreadRow]) -> dict[str, list[Json]]:
    marks: dict[str, list[Json]] = {row.thread_id: [] for row in rows}
    for snippet in await services.views.snippets(query, rows):
        marks[snippet.thread_id].append({"message_id": snippet.message_id, "text": snippet.text})
    return marks


def _broken(row: ThreadRow, error: Exception) -> Broken:
    log.warning("a thread whose state cannot be made out", thread=row.thread_id, error=str(error))
    return Broken(str(error) if isinstance(error, SikaError) else "its events do not fit together")


def _row(
    row: ThreadRow,
    state: ThreadState | Broken | None,
    select: list[str] | None,
    paths: Sequence[Path],
    marks: Mapping[str, list[Json]],
) -> msgspec.Raw:
    """A hit, encoded. A thread that cannot be shown in full takes no other hit along."""
    if not isinstance(state, Broken):
        try:
            return msgspec.Raw(dumps.encode(_hit(row, state or ThreadState(), select, paths, marks)))
        except Exception as error:
            state = _broken(row, error)
    shown = _hit(row, ThreadState(), select, paths, marks)
    problem = {"error": "Unreadable", "message": f"The thread's state cannot be read: {state.problem}"}
    return msgspec.Raw(dumps.encode({**shown, "error": problem}))


def _hit(
    row: ThreadRow,
    state: ThreadState,
    select: list[str] | None,
    paths: Sequence[Path],
    marks: Mapping[str, list[Json]],
) -> Json:
    """A hit: what was searched and sorted by is shown as it was then."""
    whole = thread_object(row.thread_id, state)
    whole |= {
        "created_at": row.created_at,
        "updated_at": row.updated_at,
        "state_updated_at": row.state_updated_at,
        "metadata": row.metadata,
        "status": row.status,
    }
    shown = dict(selected(whole, select))
    if paths:
        plain_values = _plain(state.values)
        shown["extracted"] = {path.alias: _at({**whole, "values": plain_values}, path.steps) for path in paths}
    if "waiting" in (select or ()):
        shown["waiting"] = row.waiting
    if row.thread_id in marks:
        shown["highlights"] = marks[row.thread_id]
    return shown


# ── filters ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _metadata(filters: Json) -> Json:
    if "" in filters:
        raise Invalid("metadata: a key is empty")
    return filters


def _values(filters: Json) -> Json:
    if "messages" in filters:
        raise Invalid("values.messages: messages are searched by `query`")
    return filters


def _contains(value: Any, part: Any) -> bool:
    """Tells whether a JSON value contains another, as PostgreSQL's `@>` has it."""
    match part:
        case dict():
            return isinstance(value, dict) and all(k in value and _contains(value[k], v) for k, v in part.items())
        case list():
            return isinstance(value, list) and all(any(_contains(item, each) for item in value) for each in part)
        case bool() | None:
            return value is part
    return not isinstance(value, bool) and bool(value == part)


# ── paths ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _path(alias: str, text: str) -> Path:
    steps: list[str | int] = []
    position = 0
    while step := _STEP.match(text, position):
        steps.append(step[1] if step[2] is None else int(step[2]))
        position = step.end()
    if position != len(text) or not steps or not isinstance(steps[0], str) or text.startswith("."):
        raise Invalid(f"extract.{alias[:40]}: not a path like values.messages[-1].content: {text[:80]!r}")
    return Path(alias, tuple(steps))


def _at(value: Any, steps: Sequence[str | int]) -> Any:
    """Returns the value at a path; None if there is none."""
    for step in steps:
        match value, step:
            case (dict(), str()) if step in value:
                value = value[step]
            case (list(), int()) if -len(value) <= step < len(value):
                value = value[step]
            case _:
                return None
    return value


def _plain(values: Json) -> Json:
    return (
        {**values, "messages": [dumps.full(message) for message in values["messages"]]}
        if "messages" in values
        else values
    )

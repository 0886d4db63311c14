"""Routes of subsystems that are not there yet: known to clients and to the document, answered with 503 and a code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

import msgspec
from aiohttp import web

from channels.http import live as alive
from channels.http.bodies import body, plain
from channels.http.gateway.models import Enabled
from channels.http.routes import API, Handler, Param, Route
from core.errors import Unavailable

Json = dict[str, Any]
Unit = Annotated[float, msgspec.Meta(ge=0, le=1)]


class Channels(msgspec.Struct):
    service_running: bool
    channels: dict[str, Json]


class McpServers(msgspec.Struct):
    """Servers by name."""

    mcp_servers: dict[str, Json]


class Install(msgspec.Struct):
    """`path`: of a `.skill` file in the thread, as the agent sees it."""

    thread_id: str
    path: str


class Content(msgspec.Struct):
    content: str


class Rollback(msgspec.Struct):
    history_index: int = -1


class Fact(msgspec.Struct):
    content: Annotated[str, msgspec.Meta(min_length=1)]
    category: str = "context"
    confidence: Unit = 0.5


class FactChange(msgspec.Struct):
    content: str | None = None
    category: str | None = None
    confidence: Unit | None = None


class Goal(msgspec.Struct):
    objective: Annotated[str, msgspec.Meta(min_length=1, max_length=4000)]
    max_continuations: Annotated[int, msgspec.Meta(ge=0)] | None = None


class Page(msgspec.Struct):
    url: str


class Missing(NamedTuple):
    """A subsystem: the beginning of its error code, and what it is to people."""

    code: str
    text: str


class Row(NamedTuple):
    method: str
    path: str
    body: Any = None
    scope: str = ""
    role: str = ""
    query: Sequence[Param] = ()


ADMIN = "admin"
READ, WRITE = "assistants:read", "assistants:write"
RECALL, REMEMBER = "store:read", "store:write"
_T = "/threads/{thread_id}"
_LIMIT = Param("limit", Annotated[int, msgspec.Meta(ge=1, le=200)], "How many at most; default 50")

TABLE: dict[Missing, tuple[Row, ...]] = {
    Missing("mcp", "Tools of MCP servers"): (
        Row("GET", "/mcp/config", scope=READ),
        Row("PUT", "/mcp/config", McpServers, ADMIN, ADMIN),
        Row("PATCH", "/mcp/config", Json, ADMIN, ADMIN),
        Row("POST", "/mcp/cache/reset", None, ADMIN, ADMIN),
    ),
    Missing("mcp_tasks", "Long tasks of MCP servers"): (
        Row("GET", f"{_T}/mcp-tasks", scope="runs:read", query=(_LIMIT,)),
        Row("GET", f"{_T}/mcp-tasks/{{task_id}}", scope="runs:read"),
        Row("POST", f"{_T}/mcp-tasks/{{task_id}}/cancel", scope="runs:cancel"),
    ),
    Missing("skills", "Skills"): (
        Row("GET", "/skills", scope=READ),
        Row("POST", "/skills/install", Install, WRITE),
        Row("POST", "/skills/reload", None, ADMIN, ADMIN),
        Row("GET", "/skills/custom", scope=READ),
        Row("GET", "/skills/custom/{name}", scope=READ),
        Row("PUT", "/skills/custom/{name}", Content, WRITE),
        Row("DELETE", "/skills/custom/{name}", None, WRITE),
        Row("GET", "/skills/custom/{name}/history", scope=READ),
        Row("POST", "/skills/custom/{name}/rollback", Rollback, WRITE),
        Row("GET", "/skills/{name}", scope=READ),
        Row("PUT", "/skills/{name}", Enabled, WRITE),
    ),
    Missing("memory", "Memory across conversations"): (
        Row("GET", "/memory", scope=RECALL),
        Row("DELETE", "/memory", None, REMEMBER),
        Row("POST", "/memory/reload", None, REMEMBER),
        Row("GET", "/memory/export", scope=RECALL),
        Row("POST", "/memory/import", Json, REMEMBER),
        Row("GET", "/memory/config", scope=RECALL),
        Row("GET", "/memory/status", scope=RECALL),
        Row("POST", "/memory/facts", Fact, REMEMBER),
        Row("PATCH", "/memory/facts/{fact_id}", FactChange, REMEMBER),
        Row("DELETE", "/memory/facts/{fact_id}", None, REMEMBER),
    ),
    Missing("goal", "Goals of a thread"): (
        Row("GET", f"{_T}/goal", scope="threads:read"),
        Row("PUT", f"{_T}/goal", Goal, "threads:write"),
        Row("DELETE", f"{_T}/goal", None, "threads:write"),
    ),
    Missing("browser", "Browser control"): (
        Row("POST", f"{_T}/browser/navigate", Page, "runs:create"),
        Row("GET", f"{_T}/browser/stream", scope="runs:read"),
    ),
    Missing("channels", "Chat channels"): (
        Row("POST", "/channels/{name}/restart", None, ADMIN, ADMIN),
        Row("GET", "/channels/providers", scope=ADMIN),
        Row("GET", "/channels/connections", scope=ADMIN),
        Row("DELETE", "/channels/connections/{connection_id}", None, ADMIN),
        Row("POST", "/channels/{provider}/connect", Json, ADMIN),
        Row("POST", "/channels/{provider}/runtime-config", Json, ADMIN, ADMIN),
        Row("DELETE", "/channels/{provider}/runtime-config", None, ADMIN, ADMIN),
    ),
    Missing("integrations", "The Lark command line"): (
        Row("GET", "/integrations/lark/status", scope=ADMIN),
        *(
            Row("POST", f"/integrations/lark/{step}", Json, ADMIN)
            for step in (
                "install",
                "config/start",
                "config/complete",
                "config/credentials",
                "auth/start",
                "auth/complete",
            )
        ),
    ),
}


async def channels(request: web.Request) -> web.Response:
    """The chat channels and whether they run; there are none yet."""
    return plain(Channels(service_running=False, channels={}))


def _unavailable(missing: Missing, row: Row) -> Handler:
    """What is wrong with the request comes first, as it will then."""

    async def handler(request: web.Request) -> web.StreamResponse:
        if "thread_id" in request.match_info:
            await alive.owned(request)
        if row.body is not None:
            await body(request, row.body)
        error = Unavailable(f"{missing.text}: not available in this version")
        error.code = f"{missing.code}_unavailable"
        raise error

    handler.__doc__ = f"{missing.text}; not available in this version."
    return handler


def _routes() -> list[Route]:
    return [
        Route(
            row.method,
            row.path,
            _unavailable(missing, row),
            {},
            row.body,
            tuple(row.query),
            errors=(404,) if row.path.startswith(_T) else (),
            scope=row.scope,
            role=row.role,
            mounts=API,
            tag=missing.code,
        )
        for missing, rows in TABLE.items()
        for row in rows
    ]


ROUTES = (*_routes(), Route("GET", "/channels/", channels, {200: Channels}, scope=ADMIN, mounts=API))

"""Routes of subsystems that are not there yet, known to clients and to the document: lists are empty, settings say
that they are off, what is named is not found; what would change something is answered with 503 and a code.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

import msgspec
from aiohttp import web

from channels.http import live as alive
from channels.http.bodies import body, number, plain
from channels.http.gateway.models import Enabled
from channels.http.routes import API, Handler, Param, Route
from core.errors import NotFound, Unavailable

Json = dict[str, Any]
Unit = Annotated[float, msgspec.Meta(ge=0, le=1)]


class Channels(msgspec.Struct):
    service_running: bool
    channels: dict[str, Json]


class McpServers(msgspec.Struct):
    """Servers by name."""

    mcp_servers: dict[str, Json]


class Skills(msgspec.Struct):
    skills: list[Json]


class Providers(msgspec.Struct):
    enabled: bool
    providers: list[Json]


class Connections(msgspec.Struct):
    connections: list[Json]


class NoGoal(msgspec.Struct):
    goal: Json | None


class Summary(msgspec.Struct, frozen=True):
    summary: str = ""
    updatedAt: str = ""


class OfUser(msgspec.Struct, frozen=True):
    workContext: Summary = Summary()
    personalContext: Summary = Summary()
    topOfMind: Summary = Summary()


class OfHistory(msgspec.Struct, frozen=True):
    recentMonths: Summary = Summary()
    earlierContext: Summary = Summary()
    longTermBackground: Summary = Summary()


class Memory(msgspec.Struct, frozen=True):
    """What is remembered of a person."""

    version: str = "1.0"
    lastUpdated: str = ""
    user: OfUser = OfUser()
    history: OfHistory = OfHistory()
    facts: list[Json] = []


class MemoryConfig(msgspec.Struct, frozen=True):
    enabled: bool = False
    mode: str = "off"
    injection_enabled: bool = False
    manager_class: str = ""
    backend_config: Json = {}
    storage_path: str = ""
    debounce_seconds: float = 0
    max_facts: int = 0
    fact_confidence_threshold: float = 0
    max_injection_tokens: int = 0


class MemoryStatus(msgspec.Struct):
    config: MemoryConfig
    data: Memory


NOT_HERE = "not available in this version"


class LarkProgram(msgspec.Struct, frozen=True):
    available: bool = False
    path: str | None = None
    version: str | None = None
    error: str | None = NOT_HERE


class LarkAccount(msgspec.Struct, frozen=True):
    status: str = "unavailable"
    message: str | None = NOT_HERE
    user: str | None = None
    verified: bool = False


class Lark(msgspec.Struct):
    """How far the Lark command line is set up."""

    installed: bool = False
    version: str = ""
    manifest_version: str | None = None
    latest_available_version: str | None = None
    runtime_version_mismatch: bool = False
    app_configured: bool = False
    app_id: str | None = None
    app_brand: str | None = None
    skills_expected: int = 0
    skills_installed: int = 0
    installed_skills: list[str] = []
    enabled_skills: list[str] = []
    install_path: str = ""
    cli: LarkProgram = LarkProgram()
    auth: LarkAccount = LarkAccount()
    sandbox_runtime_mode: str = "none"
    sandbox_runtime_ready: bool = False
    sandbox_runtime_detail: str | None = None


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
    empty: Any = None
    """What is read."""


ADMIN = "admin"
READ, WRITE = "assistants:read", "assistants:write"
RECALL, REMEMBER = "store:read", "store:write"
_T = "/threads/{thread_id}"
NAMED = (f"{_T}/mcp-tasks", "/skills", "/skills/custom", "/skills/custom/{name}")
"""Folders of things that are read by name, of which there are none."""
_LIMIT = Param("limit", Annotated[int, msgspec.Meta(ge=1, le=200)], "How many at most; default 50")

TABLE: dict[Missing, tuple[Row, ...]] = {
    Missing("mcp", "Tools of MCP servers"): (
        Row("GET", "/mcp/config", scope=READ, empty=McpServers({})),
        Row("PUT", "/mcp/config", McpServers, ADMIN, ADMIN),
        Row("PATCH", "/mcp/config", Json, ADMIN, ADMIN),
        Row("POST", "/mcp/cache/reset", None, ADMIN, ADMIN),
    ),
    Missing("mcp_tasks", "Long tasks of MCP servers"): (
        Row("GET", f"{_T}/mcp-tasks", scope="runs:read", query=(_LIMIT,), empty=[]),
        Row("GET", f"{_T}/mcp-tasks/{{task_id}}", scope="runs:read"),
        Row("POST", f"{_T}/mcp-tasks/{{task_id}}/cancel", scope="runs:cancel"),
    ),
    Missing("skills", "Skills"): (
        Row("GET", "/skills", scope=READ, empty=Skills([])),
        Row("POST", "/skills/install", Install, WRITE),
        Row("POST", "/skills/reload", None, ADMIN, ADMIN),
        Row("GET", "/skills/custom", scope=READ, empty=Skills([])),
        Row("GET", "/skills/custom/{name}", scope=READ),
        Row("PUT", "/skills/custom/{name}", Content, WRITE),
        Row("DELETE", "/skills/custom/{name}", None, WRITE),
        Row("GET", "/skills/custom/{name}/history", scope=READ),
        Row("POST", "/skills/custom/{name}/rollback", Rollback, WRITE),
        Row("GET", "/skills/{name}", scope=READ),
        Row("PUT", "/skills/{name}", Enabled, WRITE),
    ),
    Missing("memory", "Memory across conversations"): (
        Row("GET", "/memory", scope=RECALL, empty=Memory()),
        Row("DELETE", "/memory", None, REMEMBER),
        Row("POST", "/memory/reload", None, REMEMBER),
        Row("GET", "/memory/export", scope=RECALL, empty=Memory()),
        Row("POST", "/memory/import", Json, REMEMBER),
        Row("GET", "/memory/config", scope=RECALL, empty=MemoryConfig()),
        Row("GET", "/memory/status", scope=RECALL, empty=MemoryStatus(MemoryConfig(), Memory())),
        Row("POST", "/memory/facts", Fact, REMEMBER),
        Row("PATCH", "/memory/facts/{fact_id}", FactChange, REMEMBER),
        Row("DELETE", "/memory/facts/{fact_id}", None, REMEMBER),
    ),
    Missing("goal", "Goals of a thread"): (
        Row("GET", f"{_T}/goal", scope="threads:read", empty=NoGoal(None)),
        Row("PUT", f"{_T}/goal", Goal, "threads:write"),
        Row("DELETE", f"{_T}/goal", None, "threads:write"),
    ),
    Missing("browser", "Browser control"): (
        Row("POST", f"{_T}/browser/navigate", Page, "runs:create"),
        Row("GET", f"{_T}/browser/stream", scope="runs:read"),
    ),
    Missing("channels", "Chat channels"): (
        Row("POST", "/channels/{name}/restart", None, ADMIN, ADMIN),
        Row("GET", "/channels/providers", scope=ADMIN, empty=Providers(False, [])),
        Row("GET", "/channels/connections", scope=ADMIN, empty=Connections([])),
        Row("DELETE", "/channels/connections/{connection_id}", None, ADMIN),
        Row("POST", "/channels/{provider}/connect", Json, ADMIN),
        Row("POST", "/channels/{provider}/runtime-config", Json, ADMIN, ADMIN),
        Row("DELETE", "/channels/{provider}/runtime-config", None, ADMIN, ADMIN),
    ),
    Missing("integrations", "The Lark command line"): (
        Row("GET", "/integrations/lark/status", scope=ADMIN, empty=Lark()),
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


def _handler(missing: Missing, row: Row) -> Handler:
    if row.empty is not None:
        return _empty(missing, row)
    return (
        _named(missing) if row.method == "GET" and row.path.rpartition("/")[0] in NAMED else _unavailable(missing, row)
    )


def _empty(missing: Missing, row: Row) -> Handler:
    async def handler(request: web.Request) -> web.StreamResponse:
        if "thread_id" in request.match_info:
            await alive.readable(request)
        for param in row.query:
            number(request, param.name, 50, least=1, most=200)
        return plain(row.empty)

    handler.__doc__ = f"{missing.text}; {NOT_HERE}: there are none."
    return handler


def _named(missing: Missing) -> Handler:
    async def handler(request: web.Request) -> web.StreamResponse:
        if "thread_id" in request.match_info:
            await alive.owned(request)
        raise NotFound(f"{missing.text}: {NOT_HERE}")

    handler.__doc__ = f"{missing.text}; {NOT_HERE}."
    return handler


def _unavailable(missing: Missing, row: Row) -> Handler:
    """What is wrong with the request comes first, as it will then."""

    async def handler(request: web.Request) -> web.StreamResponse:
        if "thread_id" in request.match_info:
            await alive.owned(request)
        if row.body is not None:
            await body(request, row.body)
        error = Unavailable(f"{missing.text}: {NOT_HERE}")
        error.code = f"{missing.code}_unavailable"
        raise error

    handler.__doc__ = f"{missing.text}; {NOT_HERE}."
    return handler


def _kind(empty: Any) -> Any:
    return list[Json] if isinstance(empty, list) else type(empty)


def _routes() -> list[Route]:
    return [
        Route(
            row.method,
            row.path,
            _handler(missing, row),
            {} if row.empty is None else {200: _kind(row.empty)},
            row.body,
            tuple(row.query),
            errors=(404,) if row.path.startswith(_T) or row.path.rpartition("/")[0] in NAMED else (),
            scope=row.scope,
            role=row.role,
            mounts=API,
            tag=missing.code,
        )
        for missing, rows in TABLE.items()
        for row in rows
    ]


ROUTES = (*_routes(), Route("GET", "/channels/", channels, {200: Channels}, scope=ADMIN, mounts=API, tag="channels"))

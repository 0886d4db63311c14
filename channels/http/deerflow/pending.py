"""Subsystems that are not built: lists are empty, settings are off, names are not found; changes answer with 503.

Clients' pages read these at their start, and wait or fail where a read is an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from aiohttp import web

from channels.http.endpoints.call import Call, ReadableThread
from channels.http.server.parsing import plain
from channels.http.server.routes import API, Route
from core.errors import NotFound, Unavailable

NOT_HERE = "not available in this version"
_T = "/threads/{thread_id}"
_LARK_OFF: Mapping[str, Any] = {
    **dict.fromkeys(("installed", "runtime_version_mismatch", "app_configured", "sandbox_runtime_ready"), False),
    **dict.fromkeys(("manifest_version", "latest_available_version", "app_id", "app_brand"), None),
    **dict.fromkeys(("version", "install_path"), ""),
    **dict.fromkeys(("skills_expected", "skills_installed"), 0),
    "installed_skills": [],
    "enabled_skills": [],
    "cli": {"available": False, "path": None, "version": None, "error": NOT_HERE},
    "auth": {"status": "unavailable", "message": NOT_HERE, "user": None, "verified": False},
    "sandbox_runtime_mode": "none",
    "sandbox_runtime_detail": None,
}


class Subsystem(NamedTuple):
    """`path` and all below it. `reads`: answers to GET, by what follows `path`."""

    code: str
    name: str
    path: str
    reads: Mapping[str, Any] = {}


SUBSYSTEMS = (
    Subsystem("mcp_tasks", "Long tasks of MCP servers", f"{_T}/mcp-tasks", {"": []}),
    Subsystem("browser", "Browser control", f"{_T}/browser"),
    Subsystem("integrations", "The Lark command line", "/integrations/lark", {"/status": _LARK_OFF}),
)


def _routes(subsystem: Subsystem) -> tuple[Route, ...]:
    async def handler(request: web.Request) -> web.StreamResponse:
        reading = request.method in ("GET", "HEAD")
        if "thread_id" in request.match_info:
            await ReadableThread.of_call(Call(request))
        rest = request.match_info.get("rest")
        below = "" if rest is None else f"/{rest}"
        if reading and below in subsystem.reads:
            return plain(subsystem.reads[below])
        if reading and subsystem.reads:
            raise NotFound(f"{subsystem.name}: {NOT_HERE}")
        error = Unavailable(f"{subsystem.name}: {NOT_HERE}")
        error.code = f"{subsystem.code}_unavailable"
        raise error

    paths = subsystem.path, f"{subsystem.path}/{{rest:.*}}"
    return tuple(Route("*", path, handler, {}, mounts=API) for path in paths)


UNBUILT = tuple(route for subsystem in SUBSYSTEMS for route in _routes(subsystem))
"""For any method; they are not in the document."""

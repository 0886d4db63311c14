"""Health of the server: that it lives, whether it can take work, its version and abilities."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from channels.http.endpoints.call import Call
from channels.http.endpoints.endpoint import Reply, Routes
from channels.http.server.routes import MOUNTS, ROOT
from core.runtime.admission import Load
from core.runtime.readiness import DEGRADING, Missing


class Ready(msgspec.Struct):
    """`degraded`: runs are done, but as it was configured before the file broke, or some are left to newer versions, or
    the log holds messages that are no events, or an added tool, policy or actor held up everything else.
    """

    status: Literal["ready", "degraded", "unavailable"]
    missing: Sequence[Missing]
    load: Load | None = None
    """What this process has to do, and what bounds it."""


ROUTES = Routes(public=True, tag="server")


@ROUTES("GET", "/health", mounts=ROOT)
async def health(call: Call) -> dict[str, str]:
    """Tell that the server lives. `/ready` tells whether it can take work."""
    return {"status": "healthy", "service": "sika", "version": call.services.version}


@ROUTES("GET", "/ready", mounts=ROOT, answers={503: Ready})
async def ready(call: Call) -> Reply[Ready]:
    """Tell whether the server can take work, and what is missing: the log stores, the workers are loaded, the views are
    current, the configuration can be read. Runs that wait for a place make no server unready: `load` says how many do,
    and what keeps them waiting.
    """
    missing = await call.services.missing()
    load = call.services.load() if call.services.load else None
    if any(part.part not in DEGRADING for part in missing):
        return Reply(Ready("unavailable", missing, load), 503)
    return Reply(Ready("degraded" if missing else "ready", missing, load))


@ROUTES("GET", "/ok", mounts=("", *MOUNTS))
async def ok() -> dict[str, bool]:
    """Tell that the server lives, as LangGraph's clients ask it."""
    return {"ok": True}


@ROUTES("GET", "/info", mounts=("", *MOUNTS))
async def info(call: Call) -> dict[str, Any]:
    """Version and abilities."""
    flags = {"assistants": True, "crons": True, "langsmith": False}
    return {"version": call.services.version, "service": "sika", "flags": flags}

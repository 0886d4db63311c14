"""The actors of all processes, at work; and what installed packages add to this one."""

from __future__ import annotations

from collections.abc import Sequence

from channels.http.endpoints.call import Call
from channels.http.endpoints.endpoint import Routes
from channels.http.server.routes import API
from core.plugins import Listed
from core.runtime.vitals import Overview, overview

ROUTES = Routes(mounts=API)


@ROUTES("GET", "/actors", "admin", role="admin")
async def actors(call: Call) -> Overview:
    """Actors by process: what each consumes, its position in the log, its work, errors and durations.

    Processes have a second to report; those that do not are left out. `backlogs` lists the wake-ups that wait,
    and for how long the first of them does, also those of actors that run nowhere.
    """
    log = call.services.log
    return await overview(log.bus, await log.last())


@ROUTES("GET", "/plugins", "admin", role="admin")
async def plugins(call: Call) -> Sequence[Listed]:
    """Plug-ins of installed packages by group: what each gives, or why this process leaves it out."""
    return call.services.plugins

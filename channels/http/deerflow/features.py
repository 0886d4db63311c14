"""Which optional parts this server has."""

from __future__ import annotations

import msgspec

from channels.http.deerflow.models import Enabled
from channels.http.endpoints.call import Call
from channels.http.endpoints.endpoint import Routes
from channels.http.server.routes import API


class Features(msgspec.Struct):
    agents_api: Enabled
    browser_control: Enabled
    mcp_tasks: Enabled


ROUTES = Routes(mounts=API)


@ROUTES("GET", "/features")
async def get(call: Call) -> Features:
    """Which optional parts of the API work here; clients hide the others."""
    return Features(Enabled(call.config.agents_api.enabled), Enabled(False), Enabled(False))

"""The configuration as it is in force, for administrators."""

from __future__ import annotations

import msgspec
from anyio import to_thread

from channels.http.endpoints.call import Call
from channels.http.endpoints.endpoint import Routes
from channels.http.server.routes import API
from core.config.in_force import KeyInForce, keys_in_force


class InForce(msgspec.Struct):
    """`problem`: why the files as they are now are not in force; null if they are. `warnings`: what is suspicious."""

    problem: str | None
    warnings: list[str]
    keys: list[KeyInForce]


ROUTES = Routes(mounts=API, tag="configuration")


@ROUTES("GET", "/configuration", "admin", role="admin")
async def get(call: Call) -> InForce:
    """Every key of the configuration: its value, where that comes from, and its text. Secrets are masked."""
    config, services = call.config, call.services
    added = (await services.models.state()).models
    keys = await to_thread.run_sync(lambda: keys_in_force(config, services.written(), added))
    return InForce(services.problem(), list(config.warnings), keys)

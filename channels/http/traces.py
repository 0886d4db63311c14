"""The trace that a client has a run be part of."""

from __future__ import annotations

import msgspec
from aiohttp import web

from core.events import RunRequested
from core.traces import TRACEPARENT, parent


def traced(request: web.Request, wanted: RunRequested) -> RunRequested:
    """The run as part of the trace that the request's header names, if it names one (W3C Trace Context)."""
    given = request.headers.getall(TRACEPARENT, [])
    found = parent(given[0]) if len(given) == 1 else None
    return msgspec.structs.replace(wanted, traceparent=str(found)) if found else wanted

"""The trace that a client has a run be part of, and the name that a request has in logs."""

from __future__ import annotations

import re
import secrets

import msgspec
from aiohttp import web

from core.events import RunRequested
from core.traces import TRACEPARENT, parent

TRACE_HEADER = "X-Trace-Id"
TRACE: web.RequestKey[str] = web.RequestKey("trace", str)
_NAME = re.compile(r"[A-Za-z0-9._:-]{1,128}")


def name(request: web.Request) -> str:
    """The request's trace: as the client calls it, by `X-Trace-Id` or `traceparent`, else a new one."""
    given = request.headers.get(TRACE_HEADER, "")
    if _NAME.fullmatch(given):
        return given
    found = parent(request.headers.get(TRACEPARENT))
    return found.trace if found else secrets.token_hex(16)


async def answer(request: web.Request, response: web.StreamResponse) -> None:
    """For `Application.on_response_prepare`."""
    response.headers[TRACE_HEADER] = request[TRACE]


def traced(request: web.Request, wanted: RunRequested) -> RunRequested:
    """The run as part of the trace that the request's header names, if it names one (W3C Trace Context)."""
    given = request.headers.getall(TRACEPARENT, [])
    found = parent(given[0]) if len(given) == 1 else None
    return msgspec.structs.replace(wanted, traceparent=str(found)) if found else wanted

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
    trace = request.headers.get(TRACE_HEADER, "")
    if _NAME.fullmatch(trace):
        return trace
    traceparent = parent(request.headers.get(TRACEPARENT))
    return traceparent.trace if traceparent else secrets.token_hex(16)


async def answer(request: web.Request, response: web.StreamResponse) -> None:
    """For `Application.on_response_prepare`. aiohttp refuses some requests before a middleware sees them."""
    response.headers[TRACE_HEADER] = request.get(TRACE) or name(request)


def traced(request: web.Request, run: RunRequested) -> RunRequested:
    """The run as part of the trace that the request's header names, if it names one (W3C Trace Context)."""
    headers = request.headers.getall(TRACEPARENT, [])
    traceparent = parent(headers[0]) if len(headers) == 1 else None
    return msgspec.structs.replace(run, traceparent=str(traceparent)) if traceparent else run

"""The imports of a package with a protocol; installed, this is called `sika.http`. See `core.extend`."""

from __future__ import annotations

from channels.http.endpoints.call import Call, OwnedRun, OwnedThread
from channels.http.endpoints.endpoint import (
    Accepted,
    Created,
    Depends,
    Header,
    LastEventId,
    Limit,
    Offset,
    Page,
    Reply,
    Routes,
)
from channels.http.server.live import Outlet
from channels.http.server.routes import API, BYTES, ROOT, SSE, Form, Param, Route
from channels.http.streams import sse
from channels.http.streams.sse import Frame, Translator
from core.runs.previews import RunPreview

__all__ = [
    "API",
    "BYTES",
    "ROOT",
    "SSE",
    "Accepted",
    "Call",
    "Created",
    "Depends",
    "Form",
    "Frame",
    "Header",
    "LastEventId",
    "Limit",
    "Offset",
    "Outlet",
    "OwnedRun",
    "OwnedThread",
    "Page",
    "Param",
    "Reply",
    "Route",
    "Routes",
    "RunPreview",
    "Translator",
    "sse",
]

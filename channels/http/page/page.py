"""The page for people at `/`: its document, and the files of `channels/web` under names with hashes."""

from __future__ import annotations

from typing import Annotated

import anyio.to_thread
from aiohttp import hdrs, web

from channels.http.endpoints.call import Call
from channels.http.endpoints.endpoint import Routes
from channels.http.server.compression import accepts_gzip
from channels.http.server.guard import SEEN
from channels.http.server.routes import ROOT
from channels.web import assets

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src 'self' data: blob:",
        "media-src 'self' blob:",
        "font-src 'self'",
        "frame-src 'self'",
        "worker-src 'self'",
        "manifest-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types sika dompurify",
    )
)
"""What the document may load and do: no script and no style but its own files, nothing from elsewhere."""
FRAME_POLICY = (
    "sandbox allow-scripts; default-src 'none'; script-src {origin}; style-src 'unsafe-inline'; img-src data:; "
    "font-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
)
"""What the frame of diagrams may: it has no origin, so that styles in its text reach nobody."""
DOCUMENT_HEADERS = {
    "Content-Security-Policy": POLICY,
    "Cache-Control": "no-cache",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Vary": "Accept-Encoding",
}
FILE_HEADERS = {"Cache-Control": "public, max-age=31536000, immutable", "Vary": "Accept-Encoding"}

ROUTES = Routes(public=True, mounts=ROOT, tag="page", errors=(404,))


@ROUTES("GET", "/")
async def get_page(call: Call) -> Annotated[web.Response, "text/html"]:
    """The page, for people with a browser."""
    return _sent(call, await anyio.to_thread.run_sync(assets.document), DOCUMENT_HEADERS)


@ROUTES("GET", "/shared")
async def get_shared(call: Call) -> Annotated[web.Response, "text/html"]:
    """The page of a conversation that somebody shares. Which one stands after `#`, which browsers do not send."""
    headers = {**DOCUMENT_HEADERS, "Referrer-Policy": "no-referrer", "X-Robots-Tag": "noindex, nofollow"}
    return _sent(call, await anyio.to_thread.run_sync(assets.document), headers)


@ROUTES("GET", "/page/{name}")
async def get_file(call: Call, name: str) -> Annotated[web.Response, "text/javascript", "text/css", "text/html"]:
    """A file of the page. Its name has a hash, so that a browser asks for it once."""
    file = await anyio.to_thread.run_sync(assets.asset, name)
    headers = dict(FILE_HEADERS)
    if file.media == "text/html":
        origin = call.request[SEEN].origin
        headers["Content-Security-Policy"] = FRAME_POLICY.format(origin=origin)
        headers["Vary"] += ", Host"
    if name.startswith(("frame-", "mermaid-")):
        headers["Cross-Origin-Resource-Policy"] = "cross-origin"  # the frame has no origin
    return _sent(call, file, headers)


def _sent(call: Call, file: assets.Asset, headers: dict[str, str]) -> web.Response:
    small = file.compressed if accepts_gzip(call.request) else None
    if small is not None:
        headers = {**headers, hdrs.CONTENT_ENCODING: "gzip"}
    return web.Response(body=small or file.body, content_type=file.media, charset="utf-8", headers=headers)

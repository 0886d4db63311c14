"""The Model Context Protocol, as a server: `/mcp` (streamable HTTP), for clients of other agents.

The SDK's session manager is plain ASGI, and this is the bridge to it. It is stateless: a session would live in the
memory of one process, and clients do not recover when another replica does not know it. Its import takes 0.7 s and
50 MB, so it happens at the first request, in a thread.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Mapping, MutableMapping
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

from aiohttp import web
from anyio import to_thread

from channels.http.endpoints.call import Call
from channels.http.endpoints.endpoint import Routes
from channels.http.server import guard
from channels.http.server.errors import BadRequest, HttpError
from channels.http.server.live import Outlet
from channels.http.server.parsing import decode
from channels.http.server.routes import ROOT, SSE
from core.errors import Invalid, Unavailable

if TYPE_CHECKING:
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

PATH = "/mcp"
METADATA = f"/.well-known/oauth-protected-resource{PATH}"
CALL = "sika.call"
"""Key of the ASGI scope: the request's `Call`."""
START_SECONDS = 30.0


class Endpoint:
    """The SDK's session manager, started at the first request. One per application."""

    def __init__(self, tools: str = "channels.http.protocols.mcp.handlers:server") -> None:
        self._tools = tools
        self._manager: asyncio.Future[StreamableHTTPSessionManager] | None = None

    async def serve(self, call: Call) -> web.StreamResponse:
        """Answers a request. Raises `BadRequest` for a body that is no JSON object: what Python's decoder raises for
        some of them, the SDK takes for defects of the server. Raises `Unavailable` if the SDK cannot be started.
        """
        try:
            decode(await call.request.read(), dict[str, Any])
        except Invalid as error:
            raise BadRequest(str(error)) from None
        if self._manager is None:
            self._manager = asyncio.get_running_loop().create_future()
            call.live.background(self._run(self._manager, call.config.http.max_body_bytes))
        try:
            async with asyncio.timeout(START_SECONDS):
                manager = await asyncio.shield(self._manager)
        except TimeoutError as error:
            raise Unavailable(f"MCP: not started within {START_SECONDS:g} s") from error
        bridge = Bridge(call)
        await manager.handle_request(bridge.scope, bridge.receive, bridge.send)
        return await bridge.finished()

    async def _run(self, ready: asyncio.Future[StreamableHTTPSessionManager], max_body_bytes: int) -> None:
        """Holds the manager open until it is cancelled: it must be left in the task that entered it."""
        try:
            manager = await to_thread.run_sync(_load, self._tools, max_body_bytes)
            async with manager.run():
                ready.set_result(manager)
                await asyncio.Event().wait()
        except Exception:
            self._manager = None
            if not ready.done():
                ready.set_exception(Unavailable("MCP: cannot be started; the server's log says why"))
            raise


def _load(tools: str, max_body_bytes: int) -> StreamableHTTPSessionManager:
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

    module, _, name = tools.partition(":")
    app = getattr(importlib.import_module(module), name)()
    return StreamableHTTPSessionManager(app, stateless=True, max_request_body_size=max_body_bytes)


class Bridge:
    """One request of aiohttp as ASGI has it."""

    def __init__(self, call: Call) -> None:
        self._request = request = call.request
        self._read = False
        self._outlet: Outlet | None = None
        self._done = False
        self.scope: MutableMapping[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": request.method,
            "scheme": request.scheme,
            "path": request.path,
            "raw_path": request.path.encode(),
            "query_string": request.query_string.encode(),
            "root_path": "",
            "headers": [
                (name.lower().encode("latin-1"), value.encode("utf-8", "replace")) for name, value in _headers(request)
            ],
            "client": None,
            "server": None,
            CALL: call,
        }

    async def receive(self) -> MutableMapping[str, Any]:
        if not self._read:
            self._read = True
            return {"type": "http.request", "body": await self._request.read(), "more_body": False}
        await asyncio.Event().wait()  # the handler is cancelled when the client leaves
        raise AssertionError

    async def send(self, message: MutableMapping[str, Any]) -> None:
        """Raises `ConnectionError` if the client is gone or does not read."""
        if message["type"] == "http.response.start":
            headers = {name.decode().title(): value.decode("latin-1") for name, value in message["headers"]}
            self._outlet = Outlet(self._request, headers.pop("Content-Type", "application/json"), headers)
            self._outlet.response.set_status(message["status"])
            return
        if self._outlet is None:
            raise HttpError(500, "MCP: no response", "internal")
        await self._outlet.write(message.get("body", b""))
        self._done = self._done or not message.get("more_body", False)

    async def finished(self) -> web.StreamResponse:
        if self._outlet is None:
            raise HttpError(500, "MCP: no response", "internal")
        with suppress(ConnectionError):  # clients hang up once they have their answer
            await self._outlet.response.write_eof()
        return self._outlet.response


def _headers(request: web.Request) -> list[tuple[str, str]]:
    """Returns the headers but for credentials, which nobody behind the bridge needs."""
    secret = {"authorization", "cookie", "x-api-key", "x-sika-internal-token", "x-deerflow-internal-token"}
    return [(name, value) for name, value in request.headers.items() if name.lower() not in secret]


ENDPOINT: web.AppKey[Endpoint] = web.AppKey("mcp", Endpoint)
ROUTES = Routes(tag="mcp", mounts=ROOT)


@ROUTES(
    "POST",
    PATH,
    body=dict[str, Any],
    metadata=METADATA,
    answers={202: None},
    errors=(400, 406, 415),
    endless="a tool may wait for a run",
)
async def post(call: Call) -> Annotated[web.StreamResponse, dict[str, Any], SSE]:
    """A message of the Model Context Protocol (2025-11-25, streamable HTTP without sessions)."""
    return await call.request.app[ENDPOINT].serve(call)


@ROUTES("GET", METADATA, public=True)
async def metadata(call: Call) -> Mapping[str, Any]:
    """Describe how `/mcp` is authorised (RFC 9728): by an API key as bearer. There is no authorisation server."""
    origin = call.config.http.public_url or call.request[guard.SEEN].origin
    return {
        "resource": f"{origin}{PATH}",
        "resource_name": "Sika",
        "bearer_methods_supported": ["header"],
        "scopes_supported": ["runs:create", "threads:read", "files:read"],
    }

"""The tools of `/mcp` for the files of conversations, which are resources, too."""

from __future__ import annotations

import base64
import re
from urllib.parse import quote, unquote

from anyio import to_thread
from mcp import McpError
from mcp.types import (
    BlobResourceContents,
    CallToolResult,
    EmbeddedResource,
    ErrorData,
    ReadResourceResult,
    ResourceLink,
    ResourceTemplate,
    TextContent,
    TextResourceContents,
)
from pydantic import AnyUrl

from channels.http.accounts.access import demand
from channels.http.deerflow import artifacts
from channels.http.endpoints.call import Call
from channels.http.protocols.mcp.registry import READS, ThreadId, current_call, tool
from core.config.redaction import redactor
from core.errors import Invalid, NotFound, SikaError
from core.ids import safe_id

MOST_BYTES = 1 << 20
"""Limit of a file in an answer."""
SCOPE = "files:read"
NOT_FOUND = -32002
"""Error code of a resource that cannot be read (Model Context Protocol 2025-11-25, resources)."""
_URI = "sika://threads/{thread_id}/artifacts/{path}"
_PARTS = re.compile(r"sika://threads/([^/]+)/artifacts/([^/]+)")
TEMPLATE = ResourceTemplate(
    uriTemplate=_URI, name="artifact", description="A file of a conversation. `path` is percent-encoded."
)


@tool(SCOPE, READS)
async def artifacts_list(thread_id: ThreadId) -> CallToolResult:
    """List the files that the agent has presented in a conversation, as links to resources."""
    call = current_call()
    state = await call.services.commands.state(call.user, safe_id(thread_id, "thread_id"))
    paths = [str(path) for path in state.values.get("artifacts") or ()]
    links = [
        ResourceLink(type="resource_link", name=path.rpartition("/")[2], uri=_uri(thread_id, path)) for path in paths
    ]
    text = TextContent(type="text", text="\n".join(paths) or "There are no files.")
    return CallToolResult(content=[text, *links])


@tool(SCOPE, READS)
async def artifact_read(thread_id: ThreadId, path: str) -> CallToolResult:
    """Read a file of a conversation, by the path under which the agent sees it."""
    contents = await _contents(current_call(), thread_id, path, _uri(thread_id, path))
    return CallToolResult(content=[EmbeddedResource(type="resource", resource=contents)])


async def read_resource(uri: AnyUrl) -> ReadResourceResult:
    """Returns a file of a conversation. Raises `McpError`."""
    try:
        call = current_call()
        demand(call.principal, SCOPE)
        if (parts := _PARTS.fullmatch(str(uri))) is None:
            raise NotFound(f"Unknown resource: {uri}")
        contents = await _contents(call, unquote(parts[1]), unquote(parts[2]), uri)
    except SikaError as error:
        raise McpError(ErrorData(code=NOT_FOUND, message=redactor.text(str(error)))) from None
    return ReadResourceResult(contents=[contents])


async def _contents(call: Call, thread_id: str, path: str, uri: AnyUrl) -> TextResourceContents | BlobResourceContents:
    data, kind = await _file(call, thread_id, path)
    try:
        return TextResourceContents(uri=uri, mimeType=kind, text=data.decode())
    except UnicodeDecodeError:
        return BlobResourceContents(uri=uri, mimeType=kind, blob=base64.b64encode(data).decode())


async def _file(call: Call, thread_id: str, path: str) -> tuple[bytes, str]:
    await call.services.commands.state(call.user, safe_id(thread_id, "thread_id"))
    content = await to_thread.run_sync(artifacts.content_of, call.services.home, call.user, thread_id, path)
    try:
        if content.size > MOST_BYTES:
            raise Invalid(
                f"{path}: {content.size} bytes are too many here; GET /api/threads/{thread_id}/artifacts{path}"
            )
        return await to_thread.run_sync(content.read, 0, content.size), artifacts.type_of(content)
    finally:
        content.close()


def _uri(thread_id: str, path: str) -> AnyUrl:
    return AnyUrl(_URI.format(thread_id=thread_id, path=quote(path.lstrip("/"), safe="")))

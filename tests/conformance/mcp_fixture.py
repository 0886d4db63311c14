"""The fixture of the MCP conformance suite: tools, resources and prompts that its scenarios ask for by name.

Served on our transport (`channels.http.protocols.mcp.server`), in place of the tools of `/mcp`.
"""

from __future__ import annotations

from typing import Any

import anyio
import mcp.types as types
from mcp.server.fastmcp import Context, FastMCP
from mcp.server.fastmcp.prompts.base import UserMessage
from mcp.server.lowlevel import Server

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg=="
WAV = "UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAAB9AAACABAAZGF0YQIAAAA="
FIXTURE = FastMCP("fixture")
LOW: Server[Any, Any] = FIXTURE._mcp_server


def server() -> Server[Any, Any]:
    return LOW


@LOW.set_logging_level()  # type: ignore[no-untyped-call, untyped-decorator]
async def set_level(level: types.LoggingLevel) -> None:
    """Takes any level."""


@LOW.subscribe_resource()  # type: ignore[no-untyped-call, untyped-decorator]
async def subscribe(uri: Any) -> None:
    """Takes any resource."""


@LOW.unsubscribe_resource()  # type: ignore[no-untyped-call, untyped-decorator]
async def unsubscribe(uri: Any) -> None:
    """Takes any resource."""


@FIXTURE.completion()  # type: ignore[no-untyped-call, untyped-decorator]
async def complete(reference: Any, argument: Any, context: Any) -> types.Completion:
    """Completes everything with the same words."""
    return types.Completion(values=["paris", "park", "party"], hasMore=False, total=3)


@FIXTURE.tool()
async def test_simple_text() -> str:
    """Answers a text."""
    return "This is a simple text response for testing."


@FIXTURE.tool()
async def test_image_content() -> types.ImageContent:
    """Answers an image."""
    return types.ImageContent(type="image", data=PNG, mimeType="image/png")


@FIXTURE.tool()
async def test_audio_content() -> types.AudioContent:
    """Answers audio."""
    return types.AudioContent(type="audio", data=WAV, mimeType="audio/wav")


@FIXTURE.tool()
async def test_embedded_resource() -> types.EmbeddedResource:
    """Answers a resource."""
    return _embedded("test://embedded-resource", "This is an embedded resource content.")


@FIXTURE.tool()
async def test_multiple_content_types() -> list[types.ContentBlock]:
    """Answers a text, an image and a resource."""
    return [
        types.TextContent(type="text", text="Multiple content types test:"),
        types.ImageContent(type="image", data=PNG, mimeType="image/png"),
        _embedded("test://mixed-content-resource", '{"test":"data","value":123}', "application/json"),
    ]


@FIXTURE.tool()
async def test_tool_with_logging(ctx: Context[Any, Any, Any]) -> str:
    """Logs three lines."""
    for line in ("Tool execution started", "Tool processing data", "Tool execution completed"):
        await ctx.info(line)
        await anyio.sleep(0.05)
    return "done"


@FIXTURE.tool()
async def test_tool_with_progress(ctx: Context[Any, Any, Any]) -> str:
    """Reports progress."""
    for progress in (0, 50, 100):
        await ctx.report_progress(progress, 100)
        await anyio.sleep(0.05)
    return "done"


@FIXTURE.tool()
async def test_error_handling() -> str:
    """Fails."""
    raise RuntimeError("This tool intentionally returns an error for testing")


@FIXTURE.resource("test://static-text", mime_type="text/plain")
def static_text() -> str:
    """A text."""
    return "This is the content of the static text resource."


@FIXTURE.resource("test://static-binary", mime_type="image/png")
def static_binary() -> bytes:
    """An image."""
    import base64

    return base64.b64decode(PNG)


@FIXTURE.resource("test://template/{id}/data", mime_type="application/json")
def template(id: str) -> str:
    """A resource of a template."""
    return f'{{"id":"{id}","templateTest":true,"data":"Data for ID: {id}"}}'


@FIXTURE.prompt()
def test_simple_prompt() -> str:
    """A prompt."""
    return "This is a simple prompt for testing."


@FIXTURE.prompt()
def test_prompt_with_arguments(arg1: str, arg2: str) -> str:
    """A prompt with arguments."""
    return f"Prompt with arguments: arg1='{arg1}', arg2='{arg2}'"


@FIXTURE.prompt()
def test_prompt_with_embedded_resource(resourceUri: str) -> list[UserMessage]:
    """A prompt with a resource."""
    return [
        UserMessage(_embedded(resourceUri, "Embedded resource content for testing.")),
        UserMessage("Please process the embedded resource above."),
    ]


@FIXTURE.prompt()
def test_prompt_with_image() -> list[UserMessage]:
    """A prompt with an image."""
    return [
        UserMessage(types.ImageContent(type="image", data=PNG, mimeType="image/png")),
        UserMessage("Please analyze the image above."),
    ]


def _embedded(uri: str, text: str, kind: str = "text/plain") -> types.EmbeddedResource:
    content = types.TextResourceContents(uri=uri, mimeType=kind, text=text)  # type: ignore[arg-type]
    return types.EmbeddedResource(type="resource", resource=content)

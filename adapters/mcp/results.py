"""Results and errors of an MCP server, as the frames have them."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Sequence
from typing import Any

import httpx
import mcp.types as protocol
from langchain_core.messages import ToolMessage

from core.errors import Invalid
from core.mcp.challenge import INSUFFICIENT, challenge_of
from core.ports.mcp_frames import Outcome, Part

TEXT = 4000
"""Limit of a description, in characters."""


def outcome_of(result: Any) -> Outcome:
    """Returns what came of a call. Raises `Invalid` for what an interceptor may not return."""
    if isinstance(result, ToolMessage):
        return Outcome(parts=(Part(text=str(result.text)),), failed=result.status == "error")
    if not isinstance(result, protocol.CallToolResult):
        raise Invalid(f"an interceptor returned {type(result).__name__} instead of a result")
    return Outcome(
        parts=tuple(parts_of(result.content)), structured=result.structuredContent, failed=result.isError or False
    )


def parts_of(contents: Sequence[Any]) -> Iterator[Part]:
    """Yields the contents of a result; kinds that the protocol does not have are left out."""
    for content in contents:
        match content:
            case protocol.TextContent():
                yield Part(text=content.text)
            case protocol.ImageContent() | protocol.AudioContent():
                yield Part(data=_decoded(content.data), mime_type=content.mimeType)
            case protocol.ResourceLink():
                yield Part(uri=str(content.uri), text=content.description or content.name)
            case protocol.EmbeddedResource():
                yield part_of(content.resource)


def part_of(content: Any) -> Part:
    """Returns the content of a resource."""
    uri, mime_type = str(content.uri), content.mimeType or ""
    if isinstance(content, protocol.TextResourceContents):
        return Part(text=content.text, uri=uri, mime_type=mime_type)
    return Part(data=_decoded(content.blob), uri=uri, mime_type=mime_type)


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text)
    except (binascii.Error, ValueError):
        return text.encode()


def described(error: BaseException) -> str:
    """Returns an error as text, with the scopes that the server finds missing (RFC 6750 §3.1)."""
    text = f"{type(error).__name__}: {error}"[:TEXT]
    if isinstance(error, httpx.HTTPStatusError) and error.response.status_code == 403:
        challenge = error.response.headers.get("www-authenticate", "")
        if challenge_of(challenge, "error") == INSUFFICIENT:
            return f"{text}\n{INSUFFICIENT}: {challenge_of(challenge, 'scope') or ''}"
    return text

"""Results and errors of an MCP server, as the frames have them."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import httpx
import mcp.types as protocol
import msgspec
from langchain_core.messages import ToolMessage
from pydantic import TypeAdapter, ValidationError

from core.errors import Invalid
from core.mcp.challenge import INSUFFICIENT, challenge_of
from core.mcp.schemas import finite
from core.ports.mcp_frames import NOT_ACCEPTED, NOT_REACHED, Outcome, Part

TEXT = 4000
"""Limit of a description, in characters."""


def result_of(raw: Any) -> protocol.CallToolResult:
    """Returns the result of a call as the server wrote it: each part alone, those that are none as JSON."""
    content = getattr(raw, "content", None)
    contents = content if isinstance(content, list) else [] if content is None else [content]
    structured = getattr(raw, "structuredContent", None)
    failed = getattr(raw, "isError", None) is True
    if not contents and structured is None and (more := raw.model_dump(exclude={"content", "isError"})):
        structured = {key: value for key, value in more.items() if key not in ("_meta", "meta")} or None
    parts: list[Any] = [_content(part) for part in contents]
    structured = finite(structured) if structured is not None else None
    return protocol.CallToolResult.model_construct(content=parts, structuredContent=structured, isError=failed)


_CONTENT = TypeAdapter[Any](protocol.ContentBlock)


def _content(part: Any) -> Any:
    if isinstance(part, str):
        return protocol.TextContent(type="text", text=finite(part))
    try:
        block = _CONTENT.validate_python(part)
    except ValidationError:
        return _loose(part)
    return (
        block if not isinstance(block, protocol.TextContent) else block.model_copy(update={"text": finite(block.text)})
    )


def _loose(part: Any) -> Any:
    """Returns a part that is not as the protocol says: its text or its bytes if it has some, else itself as JSON."""
    if isinstance(part, Mapping):
        if isinstance(part.get("text"), str):
            return protocol.TextContent(type="text", text=finite(part["text"]))
        if isinstance(part.get("data"), str) and part.get("type") in ("image", "audio"):
            kind = part.get("mimeType") if isinstance(part.get("mimeType"), str) else _DATA.get(part["type"], "")
            return protocol.ImageContent(type="image", data=finite(part["data"]), mimeType=str(kind))
    return protocol.TextContent(type="text", text=msgspec.json.encode(finite(part)).decode())


_DATA = {"image": "image/png", "audio": "audio/wav"}
"""Types of data whose type is not said."""


def outcome_of(result: Any) -> Outcome:
    """Returns what came of a call. Raises `Invalid` for what an interceptor may not return."""
    if isinstance(result, ToolMessage):
        return Outcome(parts=(Part(text=str(result.text)),), failed=result.status == "error")
    if not isinstance(result, protocol.CallToolResult):
        raise Invalid(f"an interceptor returned {type(result).__name__} instead of a result")
    return Outcome(
        parts=tuple(parts_of(result.content)),
        structured=finite(result.structuredContent),
        failed=result.isError or False,
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
        return Part(text=finite(content.text), uri=uri, mime_type=mime_type)
    return Part(data=_decoded(content.blob), uri=uri, mime_type=mime_type)


def resource_parts(raw: Any) -> tuple[Part, ...]:
    """Returns the contents of a resource as the server wrote them. Raises `Invalid` if there are none."""
    contents = getattr(raw, "contents", None)
    if not isinstance(contents, list):
        raise Invalid("the server answered without contents")
    return tuple(_resource(content) for content in contents)


def _resource(content: Any) -> Part:
    fields = content if isinstance(content, Mapping) else {}
    uri, mime, text, blob = (finite(fields.get(key)) for key in ("uri", "mimeType", "text", "blob"))
    uri, mime = uri if isinstance(uri, str) else "", mime if isinstance(mime, str) else ""
    if isinstance(blob, str) and not isinstance(text, str):
        return Part(data=_decoded(blob), uri=uri, mime_type=mime)
    text = text if isinstance(text, str) else msgspec.json.encode(finite(content)).decode()
    return Part(text=text, uri=uri, mime_type=mime)


def prompt_parts(raw: Any) -> tuple[Part, ...]:
    """Returns the contents of a prompt's messages. Raises `Invalid` if there are none."""
    messages = getattr(raw, "messages", None)
    if not isinstance(messages, list):
        raise Invalid("the server answered without messages")
    contents = [message.get("content") if isinstance(message, Mapping) else message for message in messages]
    return tuple(parts_of([_content(part) for content in contents for part in _several(content)]))


def _several(content: Any) -> Sequence[Any]:
    return content if isinstance(content, list) else [content]


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text)
    except (binascii.Error, ValueError):
        return text.encode("utf-8", "replace")


def _words(error: BaseException) -> str:
    """Returns an error of the transport in words, without the server's address: people read it in their threads."""
    match error:
        case httpx.HTTPStatusError():
            response = error.response
            kind = NOT_ACCEPTED if response.is_client_error else "it failed"
            return f"{kind}: {response.status_code} {response.reason_phrase}"
        case httpx.ConnectError():
            return NOT_REACHED
        case httpx.TimeoutException():
            return "it did not answer in time"
        case httpx.TransportError():
            return "the connection to it broke"
    return f"{type(error).__name__}: {error}"


def described(error: BaseException) -> str:
    """Returns an error as text, with the scopes that the server finds missing (RFC 6750 §3.1)."""
    text = _words(error)[:TEXT]
    if isinstance(error, httpx.HTTPStatusError) and error.response.status_code == 403:
        challenge = error.response.headers.get("www-authenticate", "")
        if challenge_of(challenge, "error") == INSUFFICIENT:
            return f"{text}\n{INSUFFICIENT}: {challenge_of(challenge, 'scope') or ''}"
    return text

"""Errors of MCP servers, in words that people may read."""

from __future__ import annotations

import httpx
import pytest

from adapters.mcp.results import described
from adapters.mcp.sessions import NOT_TAKEN

PLACE = "http://10.0.0.5:9000/mcp?key=s"


def status(code: int, **headers: str) -> Exception:
    """Returns the client's own error of a response."""
    response = httpx.Response(code, headers=headers, request=httpx.Request("POST", PLACE))
    with pytest.raises(httpx.HTTPStatusError) as raised:
        response.raise_for_status()
    return raised.value


@pytest.mark.parametrize(
    ("error", "text", "taken"),
    [
        (status(401), "it did not accept the request: 401 Unauthorized", False),
        (status(404), "it did not accept the request: 404 Not Found", False),
        (status(503), "it failed: 503 Service Unavailable", True),
        (httpx.ConnectError(f"cannot connect to {PLACE}"), "it cannot be reached", False),
        (httpx.ConnectTimeout(f"{PLACE}"), "it did not answer in time", True),
        (httpx.ReadTimeout(f"{PLACE}"), "it did not answer in time", True),
        (httpx.RemoteProtocolError(f"{PLACE}"), "the connection to it broke", True),
        (httpx.ReadError(f"{PLACE}"), "the connection to it broke", True),
        (ValueError("odd"), "ValueError: odd", True),
    ],
)
def test_what_is_said_of_a_failure(error: Exception, text: str, taken: bool) -> None:
    assert described(error) == text
    assert "10.0.0.5" not in text
    assert text.startswith(NOT_TAKEN) is not taken


def test_missing_scopes_are_named() -> None:
    challenge = {"www-authenticate": 'Bearer error="insufficient_scope", scope="files:read"'}
    assert described(status(403, **challenge)).endswith("insufficient_scope: files:read")

"""HTTP to authorisation servers: bounded in time and size, without redirects, to public addresses unless allowed."""

from __future__ import annotations

import aiohttp

from adapters.egress import PublicResolver
from core import reasons
from core.egress import check_url
from core.errors import Invalid, Unavailable
from core.mcp.oauth import Request, Response

SECONDS = 15.0
MOST_BYTES = 256 * 1024
"""Limit of a response; the rest is not read."""


class OAuthHttp:
    """Implements `core.mcp.authorisation.Http`."""

    async def send(self, request: Request, *, private: bool) -> Response:
        """Sends a request. Raises `Invalid` if its address may not be connected to, `Unavailable`."""
        check_url(request.url, "OAuth", private=private, lifted_by="oauth.allow_private")
        connector = aiohttp.TCPConnector(resolver=None if private else PublicResolver())
        timeout = aiohttp.ClientTimeout(total=SECONDS)
        host = request.url.split("/")[2]
        try:
            async with (
                aiohttp.ClientSession(connector=connector, timeout=timeout) as session,
                session.request(
                    request.method,
                    request.url,
                    headers=request.headers,
                    data=request.body,
                    allow_redirects=False,
                ) as response,
            ):
                body = await _read(response.content)
                return Response(
                    response.status, {name.lower(): value for name, value in response.headers.items()}, body
                )
        except TimeoutError as error:
            raise Unavailable(f"{host}: no answer within {SECONDS:g} s") from error
        except (aiohttp.ClientError, OSError) as error:
            raise Unavailable(f"{host} does not answer: {reasons.lost(error)}") from error
        except ValueError as error:
            raise Invalid(f"{host}: the address cannot be connected to") from error


async def _read(content: aiohttp.StreamReader) -> bytes:
    """Reads a body up to its limit. A server that streams for ever (SSE) is left at its first chunk's end."""
    body = b""
    while len(body) < MOST_BYTES and (chunk := await content.read(MOST_BYTES - len(body))):
        body += chunk
    return body

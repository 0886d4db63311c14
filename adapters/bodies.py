"""Reads the bodies of responses, up to a limit."""

from __future__ import annotations

import aiohttp

BLOCK = 1 << 16


async def read_at_most(response: aiohttp.ClientResponse, limit: int) -> bytes:
    """Returns the first `limit` bytes of a body, decompressed."""
    body = bytearray()
    async for block in response.content.iter_chunked(BLOCK):
        body += block
        if len(body) >= limit:
            break
    return bytes(body[:limit])


async def read_whole(response: aiohttp.ClientResponse, limit: int) -> bytes:
    """Returns a body, decompressed. Raises `aiohttp.ClientPayloadError` if it is longer than `limit` bytes."""
    body = await read_at_most(response, limit + 1)
    if len(body) > limit:
        raise aiohttp.ClientPayloadError(f"an answer of more than {limit} bytes")
    return body

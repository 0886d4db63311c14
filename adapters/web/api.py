"""Asks a provider's HTTP API: JSON there and back, and an error that says what can be done about it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import aiohttp
import msgspec

from core.errors import Unavailable

MAX_BYTES = 4 << 20
"""Of an answer."""
_SPENT = (402, 432, 433)
"""Payment required; Tavily's numbers for a plan, and for a limit of one's own, that is used up."""
T = TypeVar("T")


class Api:
    """Redirects are not followed: they would carry the key to somebody else. Nothing of an answer or of a request gets
    into an error, because either may repeat the key.
    """

    def __init__(self, provider: str, url: str, headers: Mapping[str, str], seconds: float) -> None:
        self._provider = provider
        self._url = url.rstrip("/")
        self._headers = dict(headers)
        self._timeout = aiohttp.ClientTimeout(total=seconds)

    async def post(self, path: str, body: Mapping[str, Any], answer: type[T]) -> T:
        """The answer, read as that type. Raises `Unavailable`."""
        try:
            async with (
                aiohttp.ClientSession(timeout=self._timeout) as session,
                session.post(self._url + path, json=body, headers=self._headers, allow_redirects=False) as response,
            ):
                if not 200 <= response.status < 300:
                    raise self._refused(response.status, response.headers.get("Retry-After", ""))
                raw = await read_at_most(response, MAX_BYTES + 1)
        except TimeoutError:
            raise self._sorry(f"did not answer within {self._timeout.total:g} s", "Try again") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise self._sorry(f"cannot be reached ({type(error).__name__})", "Try again later") from None
        if len(raw) > MAX_BYTES:
            raise self._sorry(f"sent more than {MAX_BYTES >> 20} MB", "Ask for less")
        try:
            return msgspec.json.decode(raw, type=answer)
        except (msgspec.DecodeError, ValueError):
            raise self._sorry("sent an answer that cannot be read", "Try again later") from None

    def _refused(self, status: int, pause: str) -> Unavailable:
        said = f"(HTTP {status})"
        if status in (401, 403):
            return self._sorry(f"does not accept the API key {said}", "Somebody has to correct it in the configuration")
        if status in _SPENT:
            return self._sorry(f"has no credit left {said}", "Somebody has to look after the account")
        if status == 429:
            wait = f"{pause} seconds" if pause.isdecimal() and len(pause) < 6 else "a while"
            return self._sorry(f"gets too many requests {said}", f"Wait {wait} and try again")
        if status < 400:
            return self._sorry(f"points to another address {said}", "Somebody has to correct base_url")
        if status >= 500:
            return self._sorry(f"is out of order {said}", "Try again later")
        return self._sorry(f"cannot do this {said}", "Ask for something else")

    def _sorry(self, problem: str, advice: str) -> Unavailable:
        return Unavailable(f"{self._provider} {problem}. {advice}, or go on without it.")


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"} if key else {}


async def read_at_most(response: aiohttp.ClientResponse, most: int) -> bytes:
    """The first bytes of a body, unpacked."""
    found = bytearray()
    async for chunk in response.content.iter_chunked(64 * 1024):
        found += chunk
        if len(found) >= most:
            break
    return bytes(found[:most])

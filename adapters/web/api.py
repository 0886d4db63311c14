"""Client of a provider's HTTP API: JSON requests and responses, and errors with advice."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import aiohttp
import msgspec

from adapters.bodies import read_at_most
from core import reasons
from core.errors import Unavailable

MAX_BYTES = 4 << 20
"""Limit of a response."""
_SPENT = (402, 432, 433)
"""Payment required; Tavily's codes for an exhausted plan, and for an exhausted limit of one's own."""
T = TypeVar("T")


class Api:
    """A provider's API. Redirects are not followed: they would leak the key. Errors contain no part of a request or a
    response, because either may contain the key.
    """

    def __init__(self, provider: str, url: str, headers: Mapping[str, str], seconds: float) -> None:
        self._provider = provider
        self._url = url.rstrip("/")
        self._headers = dict(headers)
        self._timeout = aiohttp.ClientTimeout(total=seconds)

    async def post(self, path: str, body: Mapping[str, Any], response_type: type[T]) -> T:
        """Posts, and returns the response, decoded as that type. Raises `Unavailable`."""
        try:
            async with (
                aiohttp.ClientSession(timeout=self._timeout) as session,
                session.post(self._url + path, json=body, headers=self._headers, allow_redirects=False) as response,
            ):
                if not 200 <= response.status < 300:
                    raise self._refused(response.status, response.headers.get("Retry-After", ""))
                raw = await read_at_most(response, MAX_BYTES + 1)
        except TimeoutError:
            raise self._unavailable(f"did not answer within {self._timeout.total:g} s", "Try again") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise self._unavailable(f"cannot be reached: {reasons.lost(error)}", "Try again later") from None
        if len(raw) > MAX_BYTES:
            raise self._unavailable(f"sent more than {MAX_BYTES >> 20} MB", "Ask for less")
        try:
            return msgspec.json.decode(raw, type=response_type)
        except (msgspec.DecodeError, ValueError):
            raise self._unavailable("sent an answer that cannot be read", "Try again later") from None

    def _refused(self, status: int, retry_after: str) -> Unavailable:
        code = f"(HTTP {status})"
        if status in (401, 403):
            return self._unavailable(
                f"does not accept the API key {code}", "Somebody has to correct it in the configuration"
            )
        if status in _SPENT:
            return self._unavailable(f"has no credit left {code}", "Somebody has to look after the account")
        if status == 429:
            wait = f"{retry_after} seconds" if retry_after.isdecimal() and len(retry_after) < 6 else "a while"
            return self._unavailable(f"gets too many requests {code}", f"Wait {wait} and try again")
        if status < 400:
            return self._unavailable(f"points to another address {code}", "Somebody has to correct base_url")
        if status >= 500:
            return self._unavailable(f"is out of order {code}", "Try again later")
        return self._unavailable(f"cannot do this {code}", "Ask for something else")

    def _unavailable(self, problem: str, advice: str) -> Unavailable:
        return Unavailable(f"{self._provider} {problem}. {advice}, or go on without it.")


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"} if key else {}

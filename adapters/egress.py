"""HTTP to URLs of users: public addresses only, unless the configuration lifts this."""

from __future__ import annotations

import socket
from collections.abc import Mapping

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.resolver import DefaultResolver

from core.egress import check_url, is_public
from core.errors import Invalid, Unavailable


class PublicResolver(AbstractResolver):
    """Resolves names to their public addresses; connections go to no other address."""

    def __init__(self) -> None:
        self._inner = DefaultResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        results = [result for result in await self._inner.resolve(host, port, family) if is_public(result["host"])]
        if not results:
            raise OSError(f"{host} has no public address")
        return results

    async def close(self) -> None:
        await self._inner.close()


class Poster:
    """Posts to URLs that were checked with `core.egress.check_url`."""

    async def post(self, url: str, body: bytes, headers: Mapping[str, str], *, seconds: float, private: bool) -> int:
        """Posts, and returns the HTTP status; redirects are not followed. Raises `Unavailable` if there is no response
        in time, `Invalid` if the URL may not be posted to.
        """
        check_url(url, "webhook", private=private)
        resolver = None if private else PublicResolver()
        connector = aiohttp.TCPConnector(resolver=resolver)
        timeout = aiohttp.ClientTimeout(total=seconds)
        try:
            async with (
                aiohttp.ClientSession(connector=connector, timeout=timeout) as session,
                session.post(url, data=body, headers=headers, allow_redirects=False) as response,
            ):
                return response.status
        except TimeoutError as error:
            raise Unavailable(f"no answer within {seconds:g} s") from error
        except (aiohttp.ClientError, OSError) as error:
            raise Unavailable(f"{type(error).__name__}: {_reason(error)}") from error
        except ValueError as error:
            raise Invalid("the URL cannot be posted to") from error


def _reason(error: Exception) -> str:
    """Returns the reason of an error without the URL, whose query may hold a secret."""
    inner = getattr(error, "os_error", None) or error
    return getattr(inner, "strerror", None) or type(inner).__name__

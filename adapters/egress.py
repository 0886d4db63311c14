"""HTTP to URLs of users: public addresses only, unless the configuration lifts this."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.resolver import DefaultResolver
from yarl import URL

from core import reasons
from core.egress import Absent, check_url, is_public
from core.errors import Invalid, Unavailable

MAX_REDIRECTS = 5
CHUNK_BYTES = 256 * 1024
_REDIRECTS = (301, 302, 303, 307, 308)


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


@asynccontextmanager
async def following(
    session: aiohttp.ClientSession, url: URL, redirected: Callable[[URL, str], URL]
) -> AsyncIterator[aiohttp.ClientResponse | None]:
    """Yields the response to a GET behind its redirects, None behind more than `MAX_REDIRECTS`. `redirected` returns
    where a URL's `Location` leads, and raises an error if nothing may be asked there.
    """
    for _ in range(MAX_REDIRECTS + 1):
        async with session.get(url, allow_redirects=False) as response:
            location = response.headers.get("Location")
            if response.status not in _REDIRECTS or location is None:
                yield response
                return
        url = redirected(url, location)
    yield None


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


class Downloads:
    """Fetches files from URLs of users."""

    async def fetch(
        self,
        url: str,
        write: Callable[[bytes], Awaitable[object]],
        *,
        limit: int,
        seconds: float,
        private: bool,
        lifted_by: str,
    ) -> None:
        """Gives the body to `write`, chunk by chunk. Each redirect is checked as the URL is. Raises `Invalid` for a URL
        that may not be connected to, leads to no file (`Absent`) or to one beyond the limit of bytes, `Unavailable` if
        there is no response in time, or the server takes no more requests for a while.
        """
        where, host = "url", "the server"

        def permitted(url: str) -> URL:
            nonlocal where, host
            check_url(url, where, private=private, lifted_by=lifted_by)
            host = URL(url).host or host
            where = f"url: {host} redirects"
            return URL(url)

        def redirected(url: URL, location: str) -> URL:
            return permitted(str(url.join(URL(location))))

        connector = aiohttp.TCPConnector(resolver=None if private else PublicResolver())
        headers = {"User-Agent": "Sika", "Accept-Encoding": "identity"}
        try:
            async with (
                asyncio.timeout(seconds),
                aiohttp.ClientSession(connector=connector, auto_decompress=False, headers=headers) as session,
                following(session, permitted(url), redirected) as response,
            ):
                if response is None:
                    raise Invalid(f"url: more than {MAX_REDIRECTS} redirects")
                await _body(response, write, limit)
        except TimeoutError:
            raise Unavailable(f"{host} did not send the file within {seconds:g} s") from None
        except (aiohttp.ClientError, OSError) as error:
            raise Unavailable(f"{host} cannot be reached: {reasons.of_connection(error) or _reason(error)}") from None
        except ValueError:
            raise Invalid("url: the address cannot be connected to") from None


async def _body(response: aiohttp.ClientResponse, write: Callable[[bytes], Awaitable[object]], limit: int) -> None:
    host, size = response.url.host, 0
    if response.status >= 500:
        raise Unavailable(f"{host} answers HTTP {response.status}")
    if response.status == 429 or (response.status == 403 and _limits(response.headers)):
        when = _when(response.headers)
        raise Unavailable(
            f"{host} answers HTTP {response.status}: it takes no more requests from here; try again {when}"
        )
    if not 200 <= response.status < 300:
        error = Absent if response.status in (404, 410) else Invalid
        raise error(f"url: {host} answers HTTP {response.status}; is the address right, and may everybody read it?")
    async for chunk in response.content.iter_chunked(CHUNK_BYTES):
        if (size := size + len(chunk)) > limit:
            raise Invalid(f"url: the file is larger than {limit >> 20} MiB")
        await write(chunk)


def _limits(headers: Mapping[str, str]) -> bool:
    """Tells whether a refusal is about the number of requests, as GitHub says it."""
    return "Retry-After" in headers or headers.get("X-RateLimit-Remaining") == "0"


def _when(headers: Mapping[str, str]) -> str:
    """Returns when a server takes requests again."""
    after, reset = headers.get("Retry-After", ""), headers.get("X-RateLimit-Reset", "")
    if _is_number(after):
        seconds = int(after)
    elif _is_number(reset):
        seconds = max(1, int(reset) - int(time.time()))
    else:
        return "later"
    return f"in {seconds} s" if seconds < 120 else f"in {-(-seconds // 60)} minutes"


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 12


def _reason(error: Exception) -> str:
    """Returns the reason of an error without the URL, whose query may hold a secret."""
    inner = getattr(error, "os_error", None) or error
    return getattr(inner, "strerror", None) or type(inner).__name__

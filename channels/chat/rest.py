"""REST of a platform: calls that are answered in JSON, files, and the token that they need. Nothing is sent twice but
what was refused for its token. The meaning of an error is the platform's own.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

import aiohttp
import anyio
import yarl

from channels.chat.calls import RETRY_SECONDS, certainty, lost, open_session, retry_after
from core.chat.download import save
from core.chat.facts import Attachment
from core.chat.port import RateLimited, Rejected
from core.errors import Unavailable

CHUNK = 1 << 16
CALL_SECONDS = 20.0
FILE_SECONDS = 600.0
CONNECT_SECONDS = 10.0
SILENT_SECONDS = 30.0
"""Most time between two chunks of a file."""
LARGEST_ANSWER = 16 << 20
"""Bytes of an answer in JSON. A longer one counts as cut off."""
RENEWAL_SECONDS = 300.0
"""A token is not used in its last seconds."""


class Answer(NamedTuple):
    """An answer to a call. `body`: an object or a list; None if it is no JSON."""

    status: int
    headers: Mapping[str, str]
    body: Any

    @property
    def fields(self) -> Mapping[str, Any]:
        """The body, if it is an object."""
        return self.body if isinstance(self.body, dict) else {}


class Rest:
    """The REST of one account. Its connections belong to the event loop of the first call. `fresh`: calls that people
    see get connections of their own: of a kept one that the server has closed, nobody knows whether the call left."""

    def __init__(self, base_url: str, *, headers: Mapping[str, str] | None = None, fresh: bool = False) -> None:
        self.base_url = base_url.rstrip("/")
        self._headers = headers
        self._fresh = fresh
        self._sessions: dict[bool, aiohttp.ClientSession] = {}

    def session(self, *, fresh: bool = False) -> aiohttp.ClientSession:
        if fresh not in self._sessions:
            connector = aiohttp.TCPConnector(force_close=fresh)
            by_proxy = yarl.URL(self.base_url).host not in ("127.0.0.1", "localhost")
            self._sessions[fresh] = open_session(connector=connector, headers=self._headers, trust_env=by_proxy)
        return self._sessions[fresh]

    async def send(
        self, method: str, path: str, what: str, *, effect: bool, seconds: float = CALL_SECONDS, **content: Any
    ) -> Answer:
        """Returns the answer to a call, a refusal among them. `path`: below the base address, or a whole address.
        `effect`: people see it, so if no answer comes its fate is unknown."""
        timeout = aiohttp.ClientTimeout(total=seconds, sock_connect=CONNECT_SECONDS)
        request = self.session(fresh=self._fresh and effect).request
        with certainty(what, effect=effect):
            async with request(
                method, self._address(path), timeout=timeout, allow_redirects=False, **content
            ) as response:
                return await _answer(response)

    async def download(
        self,
        path: str,
        attachment: Attachment,
        into: Path,
        limit: int,
        *,
        is_refusal: Callable[[aiohttp.ClientResponse], bool] = lambda response: response.status != 200,
        **content: Any,
    ) -> Answer:
        """Writes a file. Returns the answer, whose body is then an empty object: others are refusals. Raises `Rejected`
        for more than `limit` bytes, and for a page where none is expected: the one at which people sign in."""
        name = attachment.name
        timeout = aiohttp.ClientTimeout(total=FILE_SECONDS, sock_connect=CONNECT_SECONDS, sock_read=SILENT_SECONDS)
        with certainty(name, effect=False):
            async with self.session().get(self._address(path), timeout=timeout, **content) as response:
                if is_refusal(response):
                    return await _answer(response)
                chunks: AsyncIterator[bytes] = response.content.iter_chunked(CHUNK)
                if not _may_be_page(attachment, response):
                    chunks = _without_page(chunks, name, response.content_type)
                await save(chunks, into, limit, name, response.content_length)
                return Answer(response.status, response.headers, {})

    async def close(self) -> None:
        while self._sessions:
            await self._sessions.popitem()[1].close()

    def _address(self, path: str) -> yarl.URL:
        return yarl.URL(path if "://" in path else f"{self.base_url}{path}")


class Token:
    """A token that expires, asked for once for all callers. `issue`: returns a new one and its lifetime in seconds."""

    def __init__(self, issue: Callable[[], Awaitable[tuple[str, float]]]) -> None:
        self._issue = issue
        self._value = ""
        self._renew_at = 0.0
        self._renewing = anyio.Lock()

    async def get(self, refused: str = "") -> str:
        """Returns the token, another one than `refused`. Raises what `issue` raises."""
        async with self._renewing:
            if self._value in ("", refused) or monotonic() >= self._renew_at:
                self._value, lifetime = await self._issue()
                self._renew_at = monotonic() + max(lifetime - RENEWAL_SECONDS, lifetime / 2)
            return self._value

    async def use(self, send: Callable[[str], Awaitable[Answer]], is_refused: Callable[[Answer], bool]) -> Answer:
        """Returns the answer to a call with the token. `is_refused`: it was refused for its token, without effect."""
        token = await self.get()
        answer = await send(token)
        if is_refused(answer):
            answer = await send(await self.get(token))
            if is_refused(answer):
                raise Unavailable("the platform does not accept its own new token")
        return answer


def no_answer(answer: Answer, what: str, *, effect: bool) -> Exception:
    """Returns the error of an answer that is none of the platform's methods: a gateway's page, or one cut off."""
    text = f"{what}: HTTP {answer.status}{'' if answer.body else ' without an answer in JSON'}"
    if answer.status == 429:
        return RateLimited(text, retry_after(answer.headers, RETRY_SECONDS))
    if answer.status < 300 or answer.status == 408 or answer.status >= 500:
        return lost(text, effect=effect)
    return Rejected(text)


def check_transfer(answer: Answer, what: str, refused: str = "") -> None:
    """Raises the error of an answer to a file that is sent or fetched. `refused`: what a refusal means."""
    if answer.status == 429:
        raise RateLimited(f"{what}: HTTP 429", retry_after(answer.headers, RETRY_SECONDS))
    if answer.status >= 500:
        raise Unavailable(f"{what}: HTTP {answer.status}")
    if answer.status != 200:
        raise Rejected(f"{refused or what} (HTTP {answer.status})")


async def _answer(response: aiohttp.ClientResponse) -> Answer:
    raw = bytearray()
    async for chunk in response.content.iter_any():
        raw += chunk
        if len(raw) > LARGEST_ANSWER:
            break
    try:
        body = json.loads(raw)
    except ValueError:
        body = None
    return Answer(response.status, response.headers, body if isinstance(body, dict | list) else None)


def _may_be_page(attachment: Attachment, response: aiohttp.ClientResponse) -> bool:
    """Tells whether a page is what was sent: pages at which people sign in come without a disposition, or from
    elsewhere."""
    is_page = attachment.mime == "text/html" or attachment.name.lower().endswith((".html", ".htm"))
    return "Content-Disposition" in response.headers or (is_page and not response.history)


async def _without_page(chunks: AsyncIterator[bytes], name: str, content_type: str) -> AsyncIterator[bytes]:
    """Yields a file. Raises `Rejected` if it is a page."""
    begun = False
    async for chunk in chunks:
        is_page = content_type == "text/html" or chunk.lstrip()[:14].lower().startswith((b"<!doctype html", b"<html"))
        if is_page and not begun:
            raise Rejected(f"{name}: a page to sign in came, not the file ({content_type}): may the bot read files?")
        begun = True
        yield chunk

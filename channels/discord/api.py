"""Calls of Discord's REST, and what is certain after each.

Limits are not known in advance: each answer names the bucket of its route, how many calls are left in it, and when it
is full again. A call that has none left is refused here, as those that Discord refuses count against the account.
Errors name the route and Discord's code, never the token of an interaction.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import anyio
from cachetools import LRUCache

from channels.chat.calls import CHUNK, Waits, certainty, check_transfer, open_session, pause_of, retry_after
from core.chat.download import save
from core.chat.port import ChatGone, CredentialsDead, FateUnknown, File, RateLimited, Rejected
from core.errors import Unavailable

BASE_URL = "https://discord.com/api/v10"
CALL_SECONDS = 20.0
FILE_SECONDS = 300.0
USER_AGENT = "DiscordBot (https://localhost, 1)"
"""The form that Discord demands: its edge refuses others."""
ROUTES = 1000
GLOBAL = "global"
DEAD = "Discord does not accept the bot token: Developer Portal → Bot → Reset Token"
_GONE = frozenset(
    {
        *(10003, 10004, 10008),  # unknown channel, server, message
        *(40001, 50001, 50007, 50013, 50278),  # no access, closed to messages, no permission, no server in common
        *(50024, 50083, 160005),  # a channel of another type, an archived or a locked thread
    }
)
_SNOWFLAKE = re.compile(r"(?<=/)\d+(?=/|$)")
_TOKEN = re.compile(r"(?<=/)[\w.-]{60,}(?=/|$)")


class Refused(Rejected):
    """Discord's refusal, with its `number`."""

    def __init__(self, text: str, number: int) -> None:
        super().__init__(text)
        self.number = number


class Api:
    """The calls of one bot. Its connections belong to the event loop of the first call."""

    def __init__(self, token: str, base_url: str) -> None:
        self.base_url = base_url.rstrip("/")
        self._token = token
        self._waits = Waits()
        self._buckets: LRUCache[str, str] = LRUCache(ROUTES)
        """The limits of routes, by the names that Discord gives them."""
        self._connected: aiohttp.ClientSession | None = None

    @property
    def session(self) -> aiohttp.ClientSession:
        if self._connected is None:
            self._connected = open_session(trust_env=True, headers={"User-Agent": USER_AGENT})
        return self._connected

    async def close(self) -> None:
        if self._connected is not None:
            await self._connected.close()

    async def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        effect: bool = True,
        form: aiohttp.FormData | None = None,
        params: Mapping[str, str] | None = None,
    ) -> Any:
        """Returns the answer to a call; None if it has no content. `effect`: people see it, and the same again would be
        seen twice. Raises the errors of `core.chat.port`."""
        route, what = _route(method, path), _named(method, path)
        of_interaction = path.startswith(("/interactions/", "/webhooks/"))
        limited = self._buckets.get(route, route)
        self._waits.check(limited, what)
        if not of_interaction:
            self._waits.check(GLOBAL, what)
        headers = {} if of_interaction else {"Authorization": f"Bot {self._token}"}
        timeout = aiohttp.ClientTimeout(total=FILE_SECONDS if form else CALL_SECONDS, sock_connect=10)
        with certainty(what, effect=effect):
            async with self.session.request(
                method,
                self.base_url + path,
                json=body,
                data=form,
                params=params,
                headers=headers,
                timeout=timeout,
                allow_redirects=False,
            ) as response:
                text = await response.text(errors="replace")
        self._note(route, path, response)
        return _content(response, _decoded(text), what, effect)

    def _note(self, route: str, path: str, response: aiohttp.ClientResponse) -> None:
        """Notes what an answer tells of limits."""
        headers = response.headers
        if bucket := headers.get("X-RateLimit-Bucket"):
            self._buckets[route] = f"{bucket} {_major(path)}"
        limited = self._buckets.get(route, route)
        if response.status == 429:
            scope = headers.get("X-RateLimit-Scope", "")
            of_all = scope == "global" or "X-RateLimit-Global" in headers or not (scope or bucket)
            self._waits.note(GLOBAL if of_all else limited, retry_after(headers, 5.0))
        elif headers.get("X-RateLimit-Remaining") == "0":
            self._waits.note(limited, pause_of(headers.get("X-RateLimit-Reset-After"), 1.0))

    def rest(self, method: str, path: str) -> float:
        """Returns the seconds until a call may be made."""
        route = _route(method, path)
        return max(self._waits.rest(GLOBAL), self._waits.rest(self._buckets.get(route, route)))

    async def download(self, url: str, into: Path, limit: int, name: str) -> None:
        """Writes an attachment into a file. Raises `Rejected` if it is over `limit` bytes."""
        timeout = aiohttp.ClientTimeout(total=FILE_SECONDS, sock_connect=10, sock_read=30)
        with certainty(f"the file {name}", effect=False):
            async with self.session.get(url, timeout=timeout) as response:
                check_transfer(response, name, f"{name}: Discord does not have the file any more")
                await save(response.content.iter_chunked(CHUNK), into, limit, name, response.content_length)


async def form_of(body: Mapping[str, Any], files: Sequence[File]) -> aiohttp.FormData:
    """Returns the form of a message with files, which are read at once: together they are at most 10 MB."""
    form = aiohttp.FormData(quote_fields=False)  # else names are percent-encoded
    form.add_field("payload_json", json.dumps(body), content_type="application/json")
    for number, file in enumerate(files):
        content = await anyio.Path(file.path).read_bytes()
        form.add_field(f"files[{number}]", content, filename=file.name, content_type="application/octet-stream")
    return form


def _content(response: aiohttp.ClientResponse, answer: Any, what: str, effect: bool) -> Any:
    """Returns the content of an answer. Raises the error that it is."""
    status = response.status
    if status == 204 or (200 <= status < 300 and isinstance(answer, dict | list)):
        return answer
    body = answer if isinstance(answer, dict) else {}
    number = int(body.get("code") or 0)
    text = f"{what}: {status} {number or ''} {body.get('message', '')}".replace("  ", " ").strip()[:500]
    if status == 429:
        raise RateLimited(text, pause_of(body.get("retry_after"), retry_after(response.headers, 5.0)))
    if status >= 500 or status < 300 or status == 408:
        raise FateUnknown(text) if effect else Unavailable(text)
    if status == 401 and "Authorization" in response.request_info.headers:
        raise CredentialsDead(DEAD)
    if not body:
        raise Unavailable(text)  # of a gateway: Discord's own have a body
    if number in _GONE:
        raise ChatGone(text)
    details = json.dumps(body["errors"])[:300] if body.get("errors") else ""
    raise Refused(f"{text} {details}".strip(), number)


def _decoded(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _route(method: str, path: str) -> str:
    """Returns a route: calls of one share a limit. Ids count only if they are of what is limited."""
    major, rest = _major(path), path.removeprefix(_major(path))
    return f"{method} {major}{_SNOWFLAKE.sub('*', rest)}"


def _major(path: str) -> str:
    """Returns the beginning of a path with the id by which a route is limited: a channel, or a webhook."""
    kind, _, rest = path.removeprefix("/").partition("/")
    return f"/{kind}/{rest.partition('/')[0]}" if kind in ("channels", "guilds", "webhooks", "interactions") else ""


def _named(method: str, path: str) -> str:
    """Returns a call for an error: without ids and tokens."""
    return f"{method} {_SNOWFLAKE.sub('*', _TOKEN.sub('*', path))}"

"""Calls of Discord's REST, and what is certain after each.

Limits are not known in advance: each answer names the bucket of its route, how many calls are left in it, and when it
is full again. A call that has none left is refused here, as those that Discord refuses count against the account.
Errors name the route and Discord's code, never the token of an interaction.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import aiohttp
import anyio
from cachetools import LRUCache

from channels.chat.calls import Waits, pause_of, retry_after
from channels.chat.rest import CALL_SECONDS, FILE_SECONDS, Answer, Rest, no_answer
from core.chat.port import ChatGone, CredentialsDead, File, RateLimited, Rejected
from core.errors import Unavailable

BASE_URL = "https://discord.com/api/v10"
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
    """The calls of one bot."""

    def __init__(self, token: str, base_url: str) -> None:
        self.rest = Rest(base_url, headers={"User-Agent": USER_AGENT})
        self._token = token
        self._waits = Waits()
        self._buckets: LRUCache[str, str] = LRUCache(ROUTES)
        """The limits of routes, by the names that Discord gives them."""

    async def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        effect: bool = True,
        seconds: float = CALL_SECONDS,
        **more: Any,
    ) -> Any:
        """Returns the answer to a call; None if it has no content. `effect`: people see it, and the same again would be
        seen twice. `more`: for aiohttp. Raises the errors of `core.chat.port`."""
        route, what = _route(method, path), _named(method, path)
        of_interaction = path.startswith(("/interactions/", "/webhooks/"))
        limited = self._buckets.get(route, route)
        self._waits.check(limited, what)
        if not of_interaction:
            self._waits.check(GLOBAL, what)
            more["headers"] = {"Authorization": f"Bot {self._token}"}
        answer = await self.rest.send(method, path, what, effect=effect, seconds=seconds, json=body, **more)
        self._note(route, path, answer)
        _check(answer, what, effect, of_bot=not of_interaction)
        return answer.body

    async def post_files(self, path: str, body: Mapping[str, Any], files: Sequence[File]) -> Any:
        """Posts a message with files, which are read at once: together they are at most 10 MB."""
        form = aiohttp.FormData(quote_fields=False)  # else names are percent-encoded
        form.add_field("payload_json", json.dumps(body), content_type="application/json")
        for number, file in enumerate(files):
            content = await anyio.Path(file.path).read_bytes()
            form.add_field(f"files[{number}]", content, filename=file.name, content_type="application/octet-stream")
        return await self.call("POST", path, seconds=FILE_SECONDS, data=form)

    def _note(self, route: str, path: str, answer: Answer) -> None:
        """Notes what an answer tells of limits."""
        headers = answer.headers
        if bucket := headers.get("X-RateLimit-Bucket"):
            self._buckets[route] = f"{bucket} {_major(path)}"
        limited = self._buckets.get(route, route)
        if answer.status == 429:
            scope = headers.get("X-RateLimit-Scope", "")
            of_all = scope == "global" or "X-RateLimit-Global" in headers or not (scope or bucket)
            self._waits.note(GLOBAL if of_all else limited, retry_after(headers, 5.0))
        elif headers.get("X-RateLimit-Remaining") == "0":
            self._waits.note(limited, pause_of(headers.get("X-RateLimit-Reset-After"), 1.0))

    def wait(self, method: str, path: str) -> float:
        """Returns the seconds until a call may be made."""
        route = _route(method, path)
        return max(self._waits.rest(GLOBAL), self._waits.rest(self._buckets.get(route, route)))


def _check(answer: Answer, what: str, effect: bool, *, of_bot: bool) -> None:
    """Raises the error that an answer is. `of_bot`: it was called with the bot's token."""
    status, body = answer.status, answer.fields
    if status == 204 or (200 <= status < 300 and answer.body is not None):
        return
    number = int(body.get("code") or 0)
    text = f"{what}: {status} {number or ''} {body.get('message', '')}".replace("  ", " ").strip()[:500]
    if status == 429:
        raise RateLimited(text, pause_of(body.get("retry_after"), retry_after(answer.headers, 5.0)))
    if status == 401 and of_bot:
        raise CredentialsDead(DEAD)
    if not body and 400 <= status < 500 and status != 408:
        raise Unavailable(text)  # of a gateway: Discord's own have a body
    if not body or status >= 500:
        raise no_answer(answer, what, effect=effect)
    if number in _GONE:
        raise ChatGone(text)
    details = json.dumps(body["errors"])[:300] if body.get("errors") else ""
    raise Refused(f"{text} {details}".strip(), number)


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

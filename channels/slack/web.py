"""Calls of Slack's Web API, and what is certain after each.

No call is repeated here: a post whose answer was lost may be there. A call that was refused
had no effect; one that left without an answer may have had one. Errors name the method and Slack's error code, never a
request or an address.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Coroutine, Mapping
from pathlib import Path
from time import monotonic
from typing import Any

import aiohttp
import anyio
from slack_sdk.errors import SlackApiError, SlackClientError
from slack_sdk.web.async_client import AsyncWebClient
from slack_sdk.web.async_slack_response import AsyncSlackResponse

from channels.chat.calls import CHUNK, Waits, certainty, check_transfer, retry_after
from core.chat.download import save
from core.chat.port import ChatGone, CredentialsDead, FateUnknown, RateLimited, Rejected
from core.errors import Invalid, Unavailable

TIMEOUT = aiohttp.ClientTimeout(total=30, sock_connect=10)
FILE_TIMEOUT = aiohttp.ClientTimeout(total=600, sock_connect=10, sock_read=30)
DRAFT_CALLS: Mapping[str, int] = {
    "assistant.threads.setStatus": 30,
    "chat.appendStream": 80,
    "chat.update": 30,
}
"""Calls in a minute up to which drafts grow, so that Slack's limits for the whole workspace (50 and 100) leave room for
answers."""
DRAFTS = 15
"""Drafts that are begun in a minute. At its end, each needs a `chat.update`, and each stream a `chat.stopStream`.
Slack allows 20 of the latter."""
MINUTE = 61.0
RETRY_SECONDS = 30.0
"""Pause after a refusal that names none."""
_DEAD = frozenset(
    {
        "account_inactive",
        "invalid_auth",
        "not_allowed_token_type",
        "not_authed",
        "org_login_required",
        "token_expired",
        "token_revoked",
    }
)
_GONE = frozenset(
    {
        "cannot_dm_bot",
        "channel_not_found",
        "is_archived",
        "is_inactive",
        "message_not_found",
        "messages_tab_disabled",
        "not_in_channel",
        "restricted_action",
        "thread_not_found",
        "user_disabled",
        "user_not_found",
    }
)
_RATED = frozenset({"message_limit_exceeded", "rate_limited", "ratelimited"})
_REFUSED = frozenset({"accesslimited", "request_timeout", "service_unavailable", "team_added_to_org"})
_UNCERTAIN = frozenset({"fatal_error", "internal_error"})
"""Documented as: some part of the operation may have succeeded."""


class Web:
    """The Web API for one account. Created in the event loop that uses it."""

    def __init__(self, bot_token: str, app_token: str, base_url: str) -> None:
        self.session = aiohttp.ClientSession(timeout=TIMEOUT)
        # The SDK's own handlers would post twice (S1) and wait within a call (S2).
        self.client = AsyncWebClient(bot_token, base_url=base_url, session=self.session, retry_handlers=[])
        # The SDK knows the proxy of the environment.
        self._way: dict[str, Any] = {"timeout": FILE_TIMEOUT, "proxy": self.client.proxy}
        self._bot_token = bot_token
        self._app_token = app_token
        self._waits = Waits()
        self._recent: dict[str, deque[float]] = {method: deque() for method in DRAFT_CALLS}
        self._begun: deque[float] = deque()

    async def call(
        self, method: str, request: Coroutine[Any, Any, AsyncSlackResponse], *, effect: bool = True, chat: str = ""
    ) -> AsyncSlackResponse:
        """Returns the answer to a call of the SDK. Raises the errors of `core.chat.port`. `effect`: people see it, so a
        lost answer is `FateUnknown`. `chat`: of methods that are limited by channel, and not by workspace."""
        limited = (method, chat)
        try:
            self._waits.check(limited, method)
        except RateLimited:
            request.close()
            raise
        if method in self._recent:
            self._recent[method].append(monotonic())
        try:
            return await _answer(method, request)
        except RateLimited as error:
            self._waits.note(limited, error.seconds)
            raise
        except FateUnknown as error:
            if effect:
                raise
            raise Unavailable(str(error)) from None

    def has_room(self, method: str) -> bool:
        """Returns whether a draft may make a call now: it gives way to answers."""
        free = _within_minute(self._recent[method]) < DRAFT_CALLS[method]
        return free and not self._waits.rest((method, ""))

    def begin_draft(self) -> bool:
        """Returns whether one more draft may begin in this minute, and counts it."""
        if _within_minute(self._begun) >= DRAFTS:
            return False
        self._begun.append(monotonic())
        return True

    async def auth(self) -> AsyncSlackResponse:
        return await self.call("auth.test", self.client.auth_test(), effect=False)

    async def socket_url(self) -> str:
        """Returns an address for one connection. Raises `CredentialsDead` if the app may not connect."""
        try:
            request = self.client.apps_connections_open(app_token=self._app_token)
            answer = await self.call("apps.connections.open", request, effect=False)
        except Rejected as error:
            raise CredentialsDead(f"app_token: {error}") from None
        return str(answer["url"])

    async def send_bytes(self, url: str, file: Path) -> None:
        """Sends the content of a file to the address that Slack gave for it. Nobody sees it yet."""
        async with await anyio.open_file(file, "rb") as content:

            async def chunks() -> AsyncIterator[bytes]:
                while chunk := await content.read(CHUNK):
                    yield chunk

            length = {"Content-Length": str(file.stat().st_size)}
            post = self.session.post(url, data=chunks(), headers=length, **self._way)
            with certainty("files upload", effect=False):
                async with post as response:
                    check_transfer(response, "files upload")

    async def load_bytes(self, url: str, into: Path, limit: int, html: bool) -> None:
        """Writes a file of Slack into a file. `html`: a page is what it should be. Raises `Rejected` if it is over
        `limit` bytes, or the page at which people sign in."""
        bearer = {"Authorization": f"Bearer {self._bot_token}"}
        with certainty("files download", effect=False):
            async with self.session.get(url, headers=bearer, **self._way) as response:
                check_transfer(response, "files download")
                if response.content_type == "text/html" and (response.history or not html):
                    raise Rejected("files download: a page to sign in came instead of the file: is files:read granted?")
                chunks = response.content.iter_chunked(CHUNK)
                await save(chunks, into, limit, "files download", response.content_length)

    async def close(self) -> None:
        await self.session.close()


def _within_minute(times: deque[float]) -> int:
    """Returns how many times were within a minute; forgets the others."""
    while times and times[0] <= monotonic() - MINUTE:
        times.popleft()
    return len(times)


async def _answer(method: str, request: Awaitable[AsyncSlackResponse]) -> AsyncSlackResponse:
    with certainty(method, others=(SlackClientError, UnicodeDecodeError, ValueError)):
        try:
            return await request
        except SlackApiError as error:
            answer = error.response
    raise _error(method, answer) from None


def code_of(error: Invalid) -> str:
    """Returns Slack's error code of a refused call."""
    return str(error).partition(": ")[2].partition(" ")[0]


def _error(method: str, response: Any) -> Exception:
    # For a body that is no JSON, the SDK puts aiohttp's response here.
    status = int(getattr(response, "status_code", 0) or getattr(response, "status", 0))
    data = getattr(response, "data", None)
    body: Mapping[str, Any] = data if isinstance(data, Mapping) else {}
    code = str(body.get("error") or f"http_{status}")
    text = f"{method}: {code}"
    if code == "missing_scope":
        return Rejected(f"{text} (the app needs {body.get('needed')})")
    if status == 429 or code in _RATED:
        return RateLimited(text, retry_after(getattr(response, "headers", {}), RETRY_SECONDS))
    if code in _DEAD:
        return CredentialsDead(text)
    if code in _GONE:
        return ChatGone(text)
    if code in _REFUSED:
        return Unavailable(text)
    if "error" not in body and 400 <= status < 500:
        return Unavailable(text)
    if "error" not in body or code in _UNCERTAIN or status >= 500:
        return FateUnknown(text)
    details = (body.get("response_metadata") or {}).get("messages")
    return Rejected(f"{text} {json.dumps(details)}" if details else text)

"""Calls of Slack's Web API, and what is certain after each.

Errors name the method and Slack's error code, never a request or an address.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from time import monotonic
from typing import Any

from channels.chat.calls import RETRY_SECONDS, Waits, lost, retry_after
from channels.chat.rest import FILE_SECONDS, Answer, Rest, check_transfer
from core.chat.facts import Attachment
from core.chat.port import ChatGone, CredentialsDead, RateLimited, Rejected
from core.errors import Invalid, Unavailable

CONNECT = "apps.connections.open"
"""The one method of the app token."""
_BY_CHANNEL = frozenset({"chat.postEphemeral", "chat.postMessage"})
"""Methods that are limited by channel, and not by workspace."""
_QUERIES = frozenset(
    {
        "conversations.history",
        "conversations.replies",
        "files.getUploadURLExternal",
        "files.info",
        "users.info",
    }
)
"""Methods that change nothing and take no JSON."""
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
    """The Web API for one account. `granted`: the scopes of the bot token, as of the last answer that states them."""

    def __init__(self, bot_token: str, app_token: str, base_url: str) -> None:
        self.rest = Rest(base_url)
        self.granted: frozenset[str] = frozenset()
        self._bot_token = bot_token
        self._app_token = app_token
        self._waits = Waits()
        self._recent: dict[str, deque[float]] = {method: deque() for method in DRAFT_CALLS}
        self._begun: deque[float] = deque()

    async def call(self, method: str, **arguments: Any) -> Mapping[str, Any]:
        """Returns the answer to a call; arguments that are None are left out. Raises the errors of `core.chat.port`."""
        limited = (method, arguments["channel"] if method in _BY_CHANNEL else "")
        self._waits.check(limited, method)
        if method in self._recent:
            self._recent[method].append(monotonic())
        content = {name: value for name, value in arguments.items() if value is not None}
        try:
            return await self._answer(method, content)
        except RateLimited as error:
            self._waits.note(limited, error.seconds)
            raise

    async def _answer(self, method: str, content: Mapping[str, Any]) -> Mapping[str, Any]:
        headers = _bearer(self._app_token if method == CONNECT else self._bot_token)
        effect, what = method not in (*_QUERIES, CONNECT), method
        if method in _QUERIES:
            answer = await self.rest.send("GET", f"/{method}", what, effect=effect, headers=headers, params=content)
        else:
            answer = await self.rest.send(
                "POST", f"/{method}", what, effect=effect, headers=headers, json=content or None
            )
        if not answer.fields.get("ok"):
            raise _error(method, answer, effect=effect)
        if method != CONNECT and (scopes := answer.headers.get("x-oauth-scopes")):
            self.granted = frozenset(scopes.replace(" ", "").split(","))
        return answer.fields

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

    async def socket_url(self) -> str:
        """Returns an address for one connection. Raises `CredentialsDead` if the app may not connect."""
        try:
            return str((await self.call(CONNECT))["url"])
        except Rejected as error:
            raise CredentialsDead(f"app_token: {error}") from None

    async def send_bytes(self, url: str, file: Path) -> None:
        """Sends the content of a file to the address that Slack gave for it. Nobody sees it yet."""
        with file.open("rb") as content:
            answer = await self.rest.send("POST", url, "files upload", effect=False, seconds=FILE_SECONDS, data=content)
        check_transfer(answer, "files upload")

    async def load_bytes(self, url: str, attachment: Attachment, into: Path, limit: int) -> None:
        """Writes a file of Slack into a file. Raises `Rejected` if it is over `limit` bytes, or the page at which
        people sign in."""
        check_transfer(
            await self.rest.download(url, attachment, into, limit, headers=_bearer(self._bot_token)), "files download"
        )


def _within_minute(times: deque[float]) -> int:
    """Returns how many times were within a minute; forgets the others."""
    while times and times[0] <= monotonic() - MINUTE:
        times.popleft()
    return len(times)


def code_of(error: Invalid) -> str:
    """Returns Slack's error code of a refused call."""
    return str(error).partition(": ")[2].partition(" ")[0]


def _error(method: str, answer: Answer, *, effect: bool) -> Exception:
    code = str(answer.fields.get("error") or f"http_{answer.status}")
    text = f"{method}: {code}"
    if code == "missing_scope":
        return Rejected(f"{text} (the app needs {answer.fields.get('needed')})")
    if answer.status == 429 or code in _RATED:
        return RateLimited(text, retry_after(answer.headers, RETRY_SECONDS))
    if code in _DEAD:
        return CredentialsDead(text)
    if code in _GONE:
        return ChatGone(text)
    if code in _REFUSED or ("error" not in answer.fields and 400 <= answer.status < 500):
        return Unavailable(text)
    if "error" not in answer.fields or code in _UNCERTAIN or answer.status >= 500:
        return lost(text, effect=effect)
    details = (answer.fields.get("response_metadata") or {}).get("messages")
    return Rejected(f"{text} {json.dumps(details)}" if details else text)


def _bearer(token: str) -> Mapping[str, str]:
    return {"Authorization": f"Bearer {token}"}

"""DingTalk's REST: the token, the calls, and what each refusal means.

The SDK's own calls block, swallow errors and keep a dead token.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import anyio

from channels.chat.calls import CHUNK, Waits, certainty, check_transfer, retry_after
from core.chat.download import save
from core.chat.port import ChatGone, CredentialsDead, FateUnknown, RateLimited, Rejected
from core.errors import Unavailable

BASE_URL = "https://api.dingtalk.com"
UPLOAD_URL = "https://oapi.dingtalk.com"
"""The old host: media are uploaded there only."""
CALL_SECONDS = 15.0
CONNECT_SECONDS = 8.0
TRANSFER_SECONDS = 300.0
RENEWAL_SECONDS = 300.0
"""A token is not used in its last seconds (as in DeerFlow)."""
THROTTLE_SECONDS = 1.0
"""Seconds to wait after a refusal for the rate that names no time."""
GONE = (
    "chatbotnotfound",
    "chatbot.notfound",
    "invalid.openconversationid",
    "openconversationid.notexisted",
    "invalidparameter.robotcode.notexsit",  # the platform's spelling
    "robot.notingroup",
    "staffid.notexisted",
    "param.useridnotexist",
    "usernotexist",
)
"""Codes, in lower case, after which a chat or a person cannot be written to any more."""
LIMITED = ("qpslimit", "throttling", "toomanyrequests", "overquota", "flowcontrol")
DEAD = ("invalidclient", "invalidappkey", "authfailed", "invalid_client", "appnotfound", "forbidden.appstopped")


class Answer(NamedTuple):
    """An HTTP response: `retry_after` in seconds, 0 if it has none."""

    status: int
    body: Mapping[str, Any] | None
    retry_after: float


class Forbidden(Rejected):
    """The app lacks permissions for a call."""

    def __init__(self, text: str, scopes: Sequence[str]) -> None:
        super().__init__(f"{text} (missing permission: {', '.join(scopes)})")
        self.scopes = scopes


class Waiting(RateLimited):
    """A call was not made, as DingTalk has asked to wait."""


class Api:
    """The calls of one app. `base_url` and `upload_url` are the hosts of REST and of uploads."""

    def __init__(self, client_id: str, client_secret: str, base_url: str = "", upload_url: str = "") -> None:
        self.client_id = client_id
        self._client_secret = client_secret
        self._base_url = (base_url or BASE_URL).rstrip("/")
        self._upload_url = (upload_url or UPLOAD_URL).rstrip("/")
        self._sessions: dict[bool, aiohttp.ClientSession] = {}
        self._token = ""
        self._token_until = 0.0
        self._renewal = anyio.Lock()
        self._waits = Waits()

    async def call(
        self, method: str, path: str, body: Mapping[str, Any], *, idempotent: bool = False
    ) -> Mapping[str, Any]:
        """Returns the body of the answer. `idempotent`: the call may be made again, so its fate does not matter.

        Raises `Waiting` while DingTalk, which limits the calls of an app, has asked to wait.
        """
        if (seconds := self._waits.rest(path)) > 0:
            raise Waiting(f"DingTalk {path}: it has asked to wait", seconds)
        try:
            return await self._called(method, path, body, idempotent)
        except RateLimited as error:
            self._waits.note(path, error.seconds)
            raise

    async def _called(self, method: str, path: str, body: Mapping[str, Any], idempotent: bool) -> Mapping[str, Any]:
        for first in (True, False):
            token = await self.token()
            headers = {"x-acs-dingtalk-access-token": token}
            answer = await self._send(method, self._base_url + path, idempotent, json=body, headers=headers)
            if not _token_refused(answer):
                return body_of(path, answer)
            self._forget(token)
            if not first:
                raise Unavailable(f"DingTalk {path}: a fresh token was refused")
        raise AssertionError

    async def open_stream(self, topics: list[dict[str, str]]) -> Mapping[str, Any]:
        """Returns `endpoint` and `ticket` of a connection. Raises `CredentialsDead` if the token is refused, too."""
        path = "/v1.0/gateway/connections/open"
        body = {
            "clientId": self.client_id,
            "clientSecret": self._client_secret,
            "subscriptions": topics,
            "ua": "sika",
        }
        try:
            answer = body_of(path, await self._send("POST", self._base_url + path, True, json=body))
        except (Rejected, ChatGone) as error:
            await self._renew()
            raise Unavailable(f"{error}; is the stream mode of the bot switched on?") from None
        if not answer.get("endpoint") or not answer.get("ticket"):
            raise Unavailable(f"DingTalk {path}: the answer has no endpoint")
        return answer

    async def token(self) -> str:
        """Returns the access token; asks for a new one before the old one expires, once for all callers."""
        async with self._renewal:
            if time.monotonic() >= self._token_until:
                await self._renew()
            return self._token

    async def _renew(self) -> None:
        path = "/v1.0/oauth2/accessToken"
        body = {"appKey": self.client_id, "appSecret": self._client_secret}
        answer = await self._send("POST", self._base_url + path, True, json=body)
        if answer.status in (400, 401, 403) and _matches(answer, DEAD):
            raise CredentialsDead(f"DingTalk does not accept client_id and client_secret ({_code(answer)})")
        content = body_of(path, answer)
        token = content.get("accessToken")
        if not isinstance(token, str) or not token:
            raise Unavailable(f"DingTalk {path}: the answer has no token")
        lifetime = float(content.get("expireIn") or 7200)
        self._token, self._token_until = token, time.monotonic() + max(lifetime - RENEWAL_SECONDS, lifetime / 2)

    def _forget(self, token: str) -> None:
        if token == self._token:
            self._token_until = 0.0

    async def upload(self, file: Path, name: str, kind: str) -> str:
        """Uploads a medium and returns its id. Nobody sees it, so a second time does no harm."""
        for first in (True, False):
            token = await self.token()
            url = f"{self._upload_url}/media/upload"
            query = {"access_token": token, "type": kind}
            stream = await anyio.to_thread.run_sync(file.open, "rb")
            try:
                form = aiohttp.FormData()
                form.add_field("media", stream, filename=name, content_type="application/octet-stream")
                answer = await self._send("POST", url, True, TRANSFER_SECONDS, data=form, params=query)
            finally:
                await anyio.to_thread.run_sync(stream.close)
            error = (answer.body or {}).get("errcode", 0)
            if not _token_refused(answer) and error not in (40001, 40014, 42001):  # tokens that the old host refuses
                break
            self._forget(token)
            if not first:
                raise Unavailable("DingTalk /media/upload: a fresh token was refused")
        content = body_of("/media/upload", answer)
        if error in (88, 90018, 130101):
            raise RateLimited(f"DingTalk /media/upload: {error}", THROTTLE_SECONDS)
        if error or not content.get("media_id"):
            raise Rejected(f"DingTalk does not take the file {name!r}: {content.get('errmsg', error)} ({error})")
        return str(content["media_id"])

    async def download(self, url: str, into: Path, limit: int, is_page: bool) -> None:
        """Writes what lies at an address into a file. `is_page`: it may be HTML."""
        timeout = aiohttp.ClientTimeout(total=TRANSFER_SECONDS, sock_connect=CONNECT_SECONDS, sock_read=CALL_SECONDS)
        with certainty("the file", effect=False):
            async with self._session(kept=True).get(url, timeout=timeout) as response:
                check_transfer(response, "the file's host", "the file's address is not valid any more")
                if response.content_type == "text/html" and not is_page:
                    raise Rejected("the file's address shows a page, not the file")
                chunks = response.content.iter_chunked(CHUNK)
                kept = chunks if is_page else _without_page(chunks)
                await save(kept, into, limit, "the file", response.content_length)

    async def _send(
        self, method: str, url: str, idempotent: bool, seconds: float = CALL_SECONDS, **content: Any
    ) -> Answer:
        """Sends a request. Raises `Unavailable` if it did not leave or may be sent again, else `FateUnknown`."""
        path = url.partition("://")[2].partition("/")[2]
        timeout = aiohttp.ClientTimeout(total=seconds, sock_connect=CONNECT_SECONDS)
        with certainty(f"DingTalk /{path}", effect=not idempotent):
            async with self._session(kept=idempotent).request(method, url, timeout=timeout, **content) as response:
                text = await response.text(errors="replace")
                answer = Answer(response.status, _object(text), retry_after(response.headers, 0.0))
        if answer.status >= 500 and not _matches(answer, LIMITED):
            raise _lost(f"DingTalk /{path} answers {answer.status} {_code(answer)}".rstrip(), idempotent)
        if answer.status < 300 and answer.body is None:
            raise _lost(f"DingTalk /{path}: the answer is no JSON", idempotent)
        return answer

    def _session(self, *, kept: bool) -> aiohttp.ClientSession:
        # A kept connection that the server has closed meanwhile looks like a lost answer, after which the fate is
        # unknown. A fresh one that fails has certainly sent nothing.
        if kept not in self._sessions:
            connector = aiohttp.TCPConnector(force_close=not kept, limit=32)
            self._sessions[kept] = aiohttp.ClientSession(connector=connector, trust_env=True)
        return self._sessions[kept]

    async def close(self) -> None:
        while self._sessions:
            await self._sessions.popitem()[1].close()


def body_of(path: str, answer: Answer) -> Mapping[str, Any]:
    """Returns the body of a call that succeeded. Raises what the refusal means."""
    if answer.status < 300 and answer.body is not None and answer.body.get("success") is not False:
        return answer.body
    text = f"DingTalk {path}: {_code(answer)} {_message(answer)}".strip()
    if answer.status == 429 or _matches(answer, LIMITED):
        raise RateLimited(text, answer.retry_after or THROTTLE_SECONDS)
    if is_gone(_code(answer)):
        raise ChatGone(text)
    detail = (answer.body or {}).get("accessdenieddetail")
    scopes = detail.get("requiredScopes") if isinstance(detail, dict) else None
    if isinstance(scopes, list) and scopes:
        raise Forbidden(text, [str(scope) for scope in scopes])
    raise Rejected(f"{text} ({answer.status})")


def is_gone(code: str) -> bool:
    """Returns whether a refusal says that the chat or the person cannot be written to any more."""
    return any(known in code.lower() for known in GONE)


def _lost(text: str, idempotent: bool) -> Unavailable:
    return Unavailable(text) if idempotent else FateUnknown(text)


def _token_refused(answer: Answer) -> bool:
    return answer.status == 401 or (answer.status in (400, 403) and _matches(answer, ("invalidauthentication",)))


def _matches(answer: Answer, codes: tuple[str, ...]) -> bool:
    code = _code(answer).lower()
    return any(known in code for known in codes)


def _code(answer: Answer) -> str:
    return str((answer.body or {}).get("code", ""))


def _message(answer: Answer) -> str:
    return str((answer.body or {}).get("message", ""))[:300]


def _object(text: str) -> Mapping[str, Any] | None:
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


async def _without_page(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yields a file. Raises `Rejected` if it begins as a page does."""
    begun = False
    async for chunk in chunks:
        if not begun and chunk.lstrip()[:14].lower().startswith((b"<!doctype html", b"<html")):
            raise Rejected("the file's address shows a page, not the file")
        begun = True
        yield chunk

"""REST calls to Feishu, and what their errors mean. Our own, as the SDK's block the loop while they fetch a token (F2),
use a dead token until its cached end (F3), and fail on an answer that is not JSON (F7).
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import aiohttp
import anyio
import yarl

from channels.chat.calls import certainty, open_session
from core.chat.port import ChatGone, CredentialsDead, FateUnknown, RateLimited, Rejected
from core.errors import Unavailable

CALL_SECONDS = 20.0
"""A call that posts takes the platform some 100 ms."""
FILE_SECONDS = 300.0
LARGEST_ANSWER = 1 << 20
"""Bytes of an answer that is JSON."""
RENEW_SECONDS = 300.0
"""A token is renewed this long before its end."""

WRONG_CREDENTIALS = frozenset((10003, 10012, 10013, 10014, 10015, 99991662))
"""The app is unknown, its secret is another one, or it is switched off."""
WRONG_TOKEN = frozenset((99991661, 99991663, 99991664, 99991665, 99991668, 99991671, 99991677))
TOO_FAST = frozenset((99991400, 11232, 230020))
"""Limits of the app, of a chat, and of the changes of one message."""
GONE = frozenset((230002, 230011, 230013, 230015, 230019, 230029, 230034, 230050, 230053, 230110, 231003, 232009))
"""The message was withdrawn or deleted, the chat dissolved, the person has left, blocked the bot or may not use it, or
the bot is not in the chat any more."""
UNKNOWN = frozenset((1500, 2200, 230049, 1000040343))
"""Internal errors; 230049: a message with the same key is being sent."""
WITHDRAWN = 230011
NO_PERMISSION = frozenset((99991672, 99991679, 230027))


class Refused(Rejected):
    """The platform's refusal with its `number`, by which some callers do something else."""

    def __init__(self, text: str, number: int) -> None:
        super().__init__(text)
        self.number = number


class Withdrawn(ChatGone):
    """The message that is replied to, or changed, was deleted. The chat may be there."""


class Endpoint(NamedTuple):
    """The address of a long connection, good for one, and the platform's settings for it."""

    url: str
    settings: Mapping[str, Any]


class Api:
    """The platform's methods, called with the app's token. `domain`: https://open.feishu.cn or another."""

    def __init__(self, domain: str, app_id: str, app_secret: str) -> None:
        self.app_id = app_id
        self._app_secret = app_secret
        self._domain = yarl.URL(domain.rstrip("/"))
        self._session: aiohttp.ClientSession | None = None
        self._token = ""
        self._renew_at = 0.0
        self._renewing = anyio.Lock()

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def call(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        params: Mapping[str, str] | None = None,
        form: aiohttp.FormData | None = None,
    ) -> dict[str, Any]:
        """Calls a method below `/open-apis/`. Returns the `data` of its answer. Raises the errors of the port."""
        token = await self.token()
        for renewed in (False, True):
            async with self._request(method, f"/open-apis/{path}", token, body, params, form) as response:
                answer = await _json(response, f"{method} {path}")
            if answer.get("code") not in WRONG_TOKEN:
                break
            # The platform did nothing, so the call may be repeated; a form was used up by the first one.
            if renewed or form is not None:
                await self.token(token)
                raise Unavailable(f"Feishu does not accept its token: {answer.get('code')} {answer.get('msg')}")
            token = await self.token(token)
        _check(answer, response, f"{method} {path}")
        data = answer.get("data")
        return data if isinstance(data, dict) else answer

    @asynccontextmanager
    async def download(self, path: str, params: Mapping[str, str]) -> AsyncIterator[aiohttp.ClientResponse]:
        """Opens a file. Raises the errors of the port if the answer is none."""
        token = await self.token()
        for renewed in (False, True):
            async with self._request("GET", f"/open-apis/{path}", token, None, params, None) as response:
                if response.status == 200 and _is_file(response):
                    yield response
                    return
                if response.content_type != "application/json" and response.status < 500:
                    raise Rejected(f"Feishu sent no file but {response.content_type} (HTTP {response.status})")
                answer = await _json(response, f"GET {path}")
            if renewed or answer.get("code") not in WRONG_TOKEN:
                break
            token = await self.token(token)
        _check(answer, response, f"GET {path}")
        raise Rejected("Feishu sent JSON where a file should be")

    async def token(self, refused: str = "") -> str:
        """Returns the app's token, another one than `refused`. Raises `CredentialsDead` and `Unavailable`."""
        async with self._renewing:
            if self._token and self._token != refused and time.monotonic() < self._renew_at:
                return self._token
            body = {"app_id": self.app_id, "app_secret": self._app_secret}
            path = "/open-apis/auth/v3/tenant_access_token/internal"
            answer = await self._unauthorized(path, body, "token")
            if answer.get("code") in WRONG_CREDENTIALS:
                raise CredentialsDead(f"Feishu does not accept app_id and app_secret: {_reason(answer)}")
            if answer.get("code") != 0 or not isinstance(answer.get("tenant_access_token"), str):
                raise Unavailable(f"Feishu gives no token: {_reason(answer)}")
            self._token = answer["tenant_access_token"]
            lifetime = float(answer.get("expire") or 0)
            self._renew_at = time.monotonic() + max(lifetime - RENEW_SECONDS, lifetime / 2)
            return self._token

    async def endpoint(self) -> Endpoint:
        """Asks for a long connection. Raises `CredentialsDead` only if the app gets no token either: other refusals
        were seen to pass (F5)."""
        body = {"AppID": self.app_id, "AppSecret": self._app_secret}
        answer = await self._unauthorized("/callback/ws/endpoint", body, "long connection")
        data = answer.get("data")
        if answer.get("code") == 0 and isinstance(data, dict) and isinstance(data.get("URL"), str):
            settings = data.get("ClientConfig")
            return Endpoint(data["URL"], settings if isinstance(settings, dict) else {})
        if answer.get("code") not in (1, 1000040343, 1000040350):
            await self.token(self._token)
        raise Unavailable(f"Feishu gives no long connection: {_reason(answer)}")

    async def _unauthorized(self, path: str, body: Mapping[str, Any], what: str) -> dict[str, Any]:
        """Returns the answer to a call without a token. It changes nothing, so every failure is `Unavailable`."""
        try:
            async with self._request("POST", path, "", body, None, None) as response:
                answer = await _json(response, what)
                if answer.get("code") in TOO_FAST or response.status == 429:
                    _check(answer, response, what)
                return answer
        except RateLimited:
            raise
        except (Unavailable, Rejected) as error:
            raise Unavailable(str(error)) from None

    @asynccontextmanager
    async def _request(
        self,
        method: str,
        path: str,
        token: str,
        body: Mapping[str, Any] | None,
        params: Mapping[str, str] | None,
        form: aiohttp.FormData | None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Makes a request. The errors that it raises name neither token nor secret."""
        if self._session is None:
            # A PUT that is repeated would have a number that the platform has seen.
            self._session = open_session(trust_env=self._domain.host not in ("127.0.0.1", "localhost"))
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        is_file = form is not None or path.rpartition("/resources/")[1] != ""
        timeout = aiohttp.ClientTimeout(total=FILE_SECONDS if is_file else CALL_SECONDS, sock_connect=10.0)
        what = f"{method} {path.removeprefix('/open-apis/')}"
        with certainty(what):
            async with self._session.request(
                method,
                self._domain.join(yarl.URL(path)),
                json=body,
                data=form,
                params=params,
                headers=headers,
                timeout=timeout,
                allow_redirects=False,
            ) as response:
                yield response


async def _json(response: aiohttp.ClientResponse, what: str) -> dict[str, Any]:
    """Returns an answer. Raises the error of one that is not of the platform's methods, as a gateway's page (F7)."""
    raw = await response.content.read(LARGEST_ANSWER)
    while not response.content.at_eof() and len(raw) < LARGEST_ANSWER:
        raw += await response.content.read(LARGEST_ANSWER - len(raw))
    try:
        answer = json.loads(raw)
    except ValueError:
        answer = None
    if isinstance(answer, dict):
        return answer
    text = f"{what}: HTTP {response.status} without an answer in JSON"
    if response.status == 429:
        raise RateLimited(text, _wait(response))
    if response.status in (200, 408) or response.status >= 500:
        raise FateUnknown(text)
    raise Rejected(text)


def _check(answer: Mapping[str, Any], response: aiohttp.ClientResponse, what: str) -> None:
    """Raises the error of an answer, if it is one."""
    code = answer.get("code")
    if code == 0:
        return
    text = f"{what}: {_reason(answer)}"
    if code in TOO_FAST or response.status == 429:
        raise RateLimited(text, _wait(response))
    if code in UNKNOWN or response.status >= 500 or not isinstance(code, int):
        raise FateUnknown(text)
    if code in GONE:
        raise Withdrawn(text) if code == WITHDRAWN else ChatGone(text)
    if code in WRONG_CREDENTIALS:
        raise CredentialsDead(text)
    raise Refused(text, code)


def _reason(answer: Mapping[str, Any]) -> str:
    return f"{answer.get('code')} {answer.get('msg', '')}"[:500]


def _wait(response: aiohttp.ClientResponse) -> float:
    """Returns the seconds to wait after a refusal: the platform's own header, or HTTP's."""
    for name in ("x-ogw-ratelimit-reset", "Retry-After"):
        try:
            return max(float(response.headers[name]), 0.1)
        except (KeyError, ValueError):
            continue
    return 1.0


def _is_file(response: aiohttp.ClientResponse) -> bool:
    """Tells a file from an error and from a page that asks to sign in: those come without a disposition."""
    return "Content-Disposition" in response.headers or response.content_type not in ("text/html", "application/json")

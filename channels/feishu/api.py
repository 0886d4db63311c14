"""REST calls to Feishu, and what their errors mean."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp

from channels.chat.calls import lost, pause_of, retry_after
from channels.chat.rest import FILE_SECONDS, Answer, Rest, Token, no_answer
from core.chat.facts import Attachment
from core.chat.port import ChatGone, CredentialsDead, RateLimited, Rejected
from core.errors import Unavailable

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
        self.rest = Rest(domain)
        self.token = Token(self._issue)
        self._app_secret = app_secret

    async def call(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, *, params: Mapping[str, str] | None = None
    ) -> Mapping[str, Any]:
        """Calls a method below `/open-apis/`. Returns the `data` of its answer. Raises the errors of the port."""
        what, effect = f"{method} {path}", method != "GET"

        async def send(token: str) -> Answer:
            headers = _bearer(token)
            return await self.rest.send(
                method, f"/open-apis/{path}", what, effect=effect, json=body, params=params, headers=headers
            )

        return _data(await self.token.use(send, _is_token_refused), what, effect=effect)

    async def upload(self, path: str, fields: Mapping[str, str], part: str, file: Path, name: str) -> Mapping[str, Any]:
        """Uploads a file, which nobody sees yet. Returns the `data` of the answer."""
        what = f"POST {path}"

        async def send(token: str) -> Answer:
            with file.open("rb") as stream:
                form = aiohttp.FormData(fields)
                form.add_field(part, stream, filename=name)
                return await self.rest.send(
                    "POST",
                    f"/open-apis/{path}",
                    what,
                    effect=False,
                    seconds=FILE_SECONDS,
                    data=form,
                    headers=_bearer(token),
                )

        return _data(await self.token.use(send, _is_token_refused), what, effect=False)

    async def download(
        self, path: str, params: Mapping[str, str], attachment: Attachment, into: Path, limit: int
    ) -> None:
        """Writes a file. Raises the errors of the port."""

        async def send(token: str) -> Answer:
            return await self.rest.download(
                f"/open-apis/{path}",
                attachment,
                into,
                limit,
                is_refusal=_is_refusal,
                params=params,
                headers=_bearer(token),
            )

        answer = await self.token.use(send, _is_token_refused)
        if answer.status == 200 and answer.body == {}:
            return
        if answer.status < 500 and answer.body is None:
            raise Rejected(f"Feishu sent no file but {answer.headers.get('Content-Type')} (HTTP {answer.status})")
        _data(answer, f"GET {path}", effect=False)
        raise Rejected("Feishu sent JSON where a file should be")

    async def _issue(self) -> tuple[str, float]:
        body = {"app_id": self.app_id, "app_secret": self._app_secret}
        answer = await self._unauthorized("/open-apis/auth/v3/tenant_access_token/internal", body, "token")
        if answer.get("code") in WRONG_CREDENTIALS:
            raise CredentialsDead(f"Feishu does not accept app_id and app_secret: {_reason(answer)}")
        if answer.get("code") != 0 or not isinstance(answer.get("tenant_access_token"), str):
            raise Unavailable(f"Feishu gives no token: {_reason(answer)}")
        return answer["tenant_access_token"], float(answer.get("expire") or 0)

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
            await self.token.get(await self.token.get())
        raise Unavailable(f"Feishu gives no long connection: {_reason(answer)}")

    async def _unauthorized(self, path: str, body: Mapping[str, Any], what: str) -> Mapping[str, Any]:
        """Returns the answer to a call without a token, which changes nothing."""
        answer = await self.rest.send("POST", path, what, effect=False, json=body)
        if answer.body is None or answer.fields.get("code") in TOO_FAST or answer.status == 429:
            _data(answer, what, effect=False)
        return answer.fields


def _data(answer: Answer, what: str, *, effect: bool) -> Mapping[str, Any]:
    """Returns the `data` of an answer. Raises the error that it is."""
    code, text = answer.fields.get("code"), f"{what}: {_reason(answer.fields)}"
    if code == 0:
        data = answer.fields.get("data")
        return data if isinstance(data, dict) else answer.fields
    if code in TOO_FAST or (code is not None and answer.status == 429):
        header = answer.headers.get("x-ogw-ratelimit-reset")
        raise RateLimited(text, max(0.1, pause_of(header, retry_after(answer.headers, 1.0))))
    if code in UNKNOWN:
        raise lost(text, effect=effect)
    if answer.status >= 500 or not isinstance(code, int):
        raise no_answer(answer, what, effect=effect)
    if code in GONE:
        raise Withdrawn(text) if code == WITHDRAWN else ChatGone(text)
    if code in WRONG_CREDENTIALS:
        raise CredentialsDead(text)
    raise Refused(text, code)


def _reason(answer: Mapping[str, Any]) -> str:
    return f"{answer.get('code')} {answer.get('msg', '')}"[:500]


def _bearer(token: str) -> Mapping[str, str]:
    return {"Authorization": f"Bearer {token}"}


def _is_token_refused(answer: Answer) -> bool:
    return answer.fields.get("code") in WRONG_TOKEN


def _is_refusal(response: aiohttp.ClientResponse) -> bool:
    """Tells an error, or a page at which people sign in, from a file: those come without a disposition."""
    is_file = "Content-Disposition" in response.headers or response.content_type not in (
        "text/html",
        "application/json",
    )
    return response.status != 200 or not is_file

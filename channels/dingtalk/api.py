"""DingTalk's REST: the token, the calls, and what each refusal means."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp

from channels.chat.calls import Waits, retry_after
from channels.chat.rest import FILE_SECONDS, Answer, Rest, Token, no_answer
from core.chat.port import ChatGone, CredentialsDead, RateLimited, Rejected
from core.errors import Unavailable

BASE_URL = "https://api.dingtalk.com"
UPLOAD_URL = "https://oapi.dingtalk.com"
"""The old host: media are uploaded there only."""
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
OLD_HOST_REFUSES = (40001, 40014, 42001)
"""Codes by which the host of uploads refuses a token."""
DEAD = ("invalidclient", "invalidappkey", "authfailed", "invalid_client", "appnotfound", "forbidden.appstopped")


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
        self.rest = Rest(base_url or BASE_URL, fresh=True)
        self.token = Token(self._issue)
        self._client_secret = client_secret
        self._upload_url = (upload_url or UPLOAD_URL).rstrip("/")
        self._waits = Waits()

    async def call(
        self, method: str, path: str, body: Mapping[str, Any], *, idempotent: bool = False
    ) -> Mapping[str, Any]:
        """Returns the body of the answer. `idempotent`: the call may be made again, so its fate does not matter.

        Raises `Waiting` while DingTalk, which limits the calls of an app, has asked to wait.
        """
        if (seconds := self._waits.rest(path)) > 0:
            raise Waiting(f"DingTalk {path}: it has asked to wait", seconds)

        async def send(token: str) -> Answer:
            headers = {"x-acs-dingtalk-access-token": token}
            return await self._send(method, path, effect=not idempotent, json=body, headers=headers)

        try:
            return body_of(path, await self.token.use(send, _is_token_refused), effect=not idempotent)
        except RateLimited as error:
            self._waits.note(path, error.seconds)
            raise

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
            answer = body_of(path, await self._send("POST", path, json=body))
        except (Rejected, ChatGone) as error:
            await self.token.get(await self.token.get())
            raise Unavailable(f"{error}; is the stream mode of the bot switched on?") from None
        if not answer.get("endpoint") or not answer.get("ticket"):
            raise Unavailable(f"DingTalk {path}: the answer has no endpoint")
        return answer

    async def _issue(self) -> tuple[str, float]:
        path = "/v1.0/oauth2/accessToken"
        body = {"appKey": self.client_id, "appSecret": self._client_secret}
        answer = await self._send("POST", path, json=body)
        if answer.status in (400, 401, 403) and _matches(answer, DEAD):
            raise CredentialsDead(f"DingTalk does not accept client_id and client_secret ({_code(answer)})")
        content = body_of(path, answer)
        token = content.get("accessToken")
        if not isinstance(token, str) or not token:
            raise Unavailable(f"DingTalk {path}: the answer has no token")
        return token, float(content.get("expireIn") or 7200)

    async def upload(self, file: Path, name: str, kind: str) -> str:
        """Uploads a medium and returns its id. Nobody sees it, so a second time does no harm."""
        path = "/media/upload"

        async def send(token: str) -> Answer:
            with file.open("rb") as stream:
                form = aiohttp.FormData()
                form.add_field("media", stream, filename=name, content_type="application/octet-stream")
                params = {"access_token": token, "type": kind}
                return await self._send("POST", self._upload_url + path, seconds=FILE_SECONDS, data=form, params=params)

        content = body_of(path, await self.token.use(send, _is_token_refused))
        error = content.get("errcode", 0)
        if error in (88, 90018, 130101):
            raise RateLimited(f"DingTalk {path}: {error}", THROTTLE_SECONDS)
        if error or not content.get("media_id"):
            raise Rejected(f"DingTalk does not take the file {name!r}: {content.get('errmsg', error)} ({error})")
        return str(content["media_id"])

    async def _send(self, method: str, path: str, *, effect: bool = False, **options: Any) -> Answer:
        what = f"DingTalk {path.removeprefix(self._upload_url)}"
        return await self.rest.send(method, path, what, effect=effect, **options)


def body_of(path: str, answer: Answer, *, effect: bool = False) -> Mapping[str, Any]:
    """Returns the body of a call that succeeded. Raises what the refusal means."""
    body = answer.fields
    if answer.status < 300 and body and body.get("success") is not False:
        return body
    text = f"DingTalk {path}: {_code(answer)} {str(body.get('message', ''))[:300]}".strip()
    if answer.status == 429 or _matches(answer, LIMITED):
        raise RateLimited(text, retry_after(answer.headers, THROTTLE_SECONDS))
    if not body or answer.status >= 500:
        raise no_answer(answer, text, effect=effect)
    if is_gone(_code(answer)):
        raise ChatGone(text)
    detail = body.get("accessdenieddetail")
    scopes = detail.get("requiredScopes") if isinstance(detail, dict) else None
    if isinstance(scopes, list) and scopes:
        raise Forbidden(text, [str(scope) for scope in scopes])
    raise Rejected(f"{text} ({answer.status})")


def is_gone(code: str) -> bool:
    """Returns whether a refusal says that the chat or the person cannot be written to any more."""
    return any(known in code.lower() for known in GONE)


def _is_token_refused(answer: Answer) -> bool:
    is_named = answer.status in (400, 403) and _matches(answer, ("invalidauthentication",))
    return answer.status == 401 or is_named or answer.fields.get("errcode") in OLD_HOST_REFUSES


def _matches(answer: Answer, codes: tuple[str, ...]) -> bool:
    code = _code(answer).lower()
    return any(known in code for known in codes)


def _code(answer: Answer) -> str:
    return str(answer.fields.get("code", ""))

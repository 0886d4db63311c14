"""The webhook behind the port of chat platforms: requests of another program come in, answers are posted to it.

Each post has an `Idempotency-Key`: one whose fate is unknown is made again, and the other side knows it by the key.
"""

from __future__ import annotations

import base64
import hashlib
import socket
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import aiohttp
import anyio
import msgspec
from aiohttp import web
from aiohttp.abc import AbstractResolver, ResolveResult

from channels.chat.calls import RETRY_SECONDS, certainty, retry_after
from channels.markup.split import split
from channels.webhook.signature import HEADER, Signatures, signed
from channels.webhook.traits import TRAITS
from core import egress
from core.chat.facts import Attachment, ChatReceived, Choice, Target
from core.chat.port import (
    ChatGone,
    Content,
    CredentialsDead,
    FateUnknown,
    Finding,
    RateLimited,
    Receive,
    Rejected,
    Report,
)
from core.chat.sizes import too_large
from core.errors import Invalid, Unavailable
from core.ids import ordinal

LISTEN = "127.0.0.1:2030"
LARGEST = 1 << 20
"""Bytes of a request."""
CUSTODY_SECONDS = 10.0
CALL_SECONDS = 30.0
LIMIT = 30_000
"""Characters of an answer; longer ones are several."""
SECRET = 32
Id = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]


class Incoming(msgspec.Struct, frozen=True):
    """The body of a request. `id`: the same at each attempt. `group`: several people write there, each with a
    `mentioned` of their own."""

    id: Id
    chat: Id
    sender: Id
    text: Annotated[str, msgspec.Meta(max_length=200_000)] = ""
    sender_name: Annotated[str, msgspec.Meta(max_length=200)] = ""
    topic: Annotated[str, msgspec.Meta(max_length=200)] = ""
    group: bool = False
    mentioned: bool = True
    choice: Choice | None = None


def connect(settings: Mapping[str, Any]) -> Webhook:
    """Returns the account of these settings. Raises `Invalid`."""
    secret, url = str(settings.get("secret") or ""), str(settings.get("answer_url") or "")
    if len(secret) < SECRET:
        raise Invalid(f"secret: at least {SECRET} characters are expected")
    private = settings.get("allow_private", False)
    if not isinstance(private, bool):
        raise Invalid("allow_private: expected true or false")
    egress.check_url(url, "answer_url", private=private, lifted_by="allow_private")
    host, colon, port = str(settings.get("listen") or LISTEN).rpartition(":")
    number = ordinal(port, 65535)
    if not colon or not host or number is None:
        raise Invalid(f"listen: expected an address and a port, as {LISTEN}")
    return Webhook(secret, url, host.strip("[]"), number, private=private)


class Public(AbstractResolver):
    """Resolves names to public addresses only: what a name means may have changed since it was checked."""

    def __init__(self) -> None:
        self._resolver = aiohttp.ThreadedResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        addresses = [
            each for each in await self._resolver.resolve(host, port, family) if egress.is_public(each["host"])
        ]
        if not addresses:
            raise OSError(None, f"{host} has no public address")
        return addresses

    async def close(self) -> None:
        await self._resolver.close()


class Webhook:
    """One account. Implements `core.chat.port.Platform`."""

    traits = TRAITS

    def __init__(self, secret: str, url: str, host: str, port: int, *, private: bool) -> None:
        self._secret, self._url, self._private = secret, url, private
        self._listen = (host, port)
        self._signatures = Signatures(secret)
        self._session: aiohttp.ClientSession | None = None

    async def check(self) -> Sequence[Finding]:
        try:
            await self._send({"type": "ping"}, "ping")
        except (Invalid, Unavailable) as error:
            return [Finding(False, f"answer_url: {error}", "It answers a signed POST with 2xx.")]
        return [Finding(True, "answer_url takes signed requests")]

    async def listen(self, receive: Receive, report: Report) -> None:
        async def take(request: web.Request) -> web.Response:
            report.heard()
            return await self._take(request, receive)

        app = web.Application(client_max_size=LARGEST)
        app.router.add_post("/", take)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        try:
            await web.TCPSite(runner, *self._listen).start()
            report.connected()
            await anyio.sleep_forever()
        except OSError as error:
            address = ":".join(map(str, self._listen))
            raise Unavailable(f"listen: {address} cannot be listened at: {error.strerror}") from None
        finally:
            with anyio.CancelScope(shield=True):
                await runner.cleanup()

    async def _take(self, request: web.Request, receive: Receive) -> web.Response:
        """Answers 202 when a message is in custody, and 503 if it may be sent again."""
        body, header = await request.read(), request.headers.get(HEADER, "")
        try:
            self._signatures.check(header, body)
        except Invalid as error:
            return _answer(401, str(error))
        if self._signatures.is_used(header):
            return _answer(409, "this request was taken already: another attempt has a signature of its own")
        try:
            message = msgspec.json.decode(body, type=Incoming)
        except msgspec.MsgspecError as error:
            return _answer(400, str(error))
        try:
            with anyio.fail_after(CUSTODY_SECONDS):
                await receive(_received(message))
        except (Unavailable, TimeoutError):
            return _answer(503, "it cannot be taken just now")
        self._signatures.use(header)
        return web.json_response({"id": message.id}, status=202)

    def parts(self, text: str) -> Sequence[str]:
        return split(text, lambda part: len(part) <= LIMIT)

    def draft(self, target: Target, key: str, message: str = "") -> Quiet:
        return Quiet(self, target)

    async def post(self, target: Target, content: Content, key: str) -> str:
        buttons = [{"id": each.id, "label": each.label} for each in content.buttons]
        return await self._send({**_place(target), "text": content.text, "buttons": buttons, "plan": content.plan}, key)

    async def edit(self, target: Target, message: str, content: Content) -> None:
        raise Rejected("a message that was posted cannot be changed")

    async def find(self, target: Target, key: str, since: datetime) -> str | None:
        """Returns None: it may be posted again with the same key."""
        return None

    async def upload(self, target: Target, file: Path, name: str, key: str) -> str:
        size = (await anyio.Path(file).stat()).st_size
        if size > TRAITS.largest_file:
            raise too_large(name, size, TRAITS.largest_file)
        content = base64.b64encode(await anyio.Path(file).read_bytes()).decode()
        return await self._send({**_place(target), "file": {"name": name, "content": content}}, key)

    async def fetch(self, attachment: Attachment, message: str, into: Path, limit: int) -> None:
        raise Rejected(f"{attachment.name}: a webhook brings no files")

    async def working(self, target: Target, on: bool) -> None:
        """Shows nothing: a program does not look."""

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def _send(self, content: Mapping[str, Any], key: str) -> str:
        """Posts a message. Returns its id, which is its `Idempotency-Key`, too."""
        identity = hashlib.blake2b(key.encode(), digest_size=16).hexdigest()
        body = msgspec.json.encode({"type": "message", "id": identity, **content})
        if self._session is None:
            resolver = None if self._private else Public()
            connector = aiohttp.TCPConnector(resolver=resolver, force_close=True, limit=32)
            self._session = aiohttp.ClientSession(connector=connector)
        headers = {"Content-Type": "application/json", "Idempotency-Key": identity, HEADER: signed(self._secret, body)}
        timeout = aiohttp.ClientTimeout(total=CALL_SECONDS, sock_connect=10)
        host = urlsplit(self._url).hostname
        with certainty(f"answer_url ({host})"):
            post = self._session.post(self._url, data=body, headers=headers, timeout=timeout, allow_redirects=False)
            async with post as response:
                _check(response)
        return identity


class Quiet:
    """An answer that is not shown before it is there. Implements `core.chat.port.Draft`."""

    message = ""

    def __init__(self, platform: Webhook, target: Target) -> None:
        self._platform = platform
        self._target = target

    async def show(self, text: str, status: str) -> None:
        """Shows nothing."""

    async def finish(self, content: Content, key: str) -> str:
        return await self._platform.post(self._target, content, key)

    async def drop(self) -> None:
        """There is nothing to take back."""


def _received(message: Incoming) -> ChatReceived:
    kind: Any = "group" if message.group else "private"
    return ChatReceived(
        message=message.id,
        target=Target(message.chat, message.topic, kind, message.id, message.sender),
        sender=message.sender,
        sender_name=message.sender_name,
        text=message.text.strip(),
        mentioned=message.mentioned or not message.group,
        choice=message.choice,
    )


def _place(target: Target) -> dict[str, str]:
    return {"chat": target.chat, "topic": target.topic, "reply_to": target.reply_to, "recipient": target.sender}


def _check(response: aiohttp.ClientResponse) -> None:
    """Raises the error that an answer is."""
    status, text = response.status, f"answer_url: HTTP {response.status}"
    if 200 <= status < 300:
        return
    if status == 429:
        raise RateLimited(text, retry_after(response.headers, RETRY_SECONDS))
    if status >= 500 or status == 408:
        raise FateUnknown(text)
    if status in (401, 403):
        raise CredentialsDead(f"{text}: the other side does not accept the signature")
    if status in (404, 410):
        raise ChatGone(text)
    raise Rejected(text)


def _answer(status: int, text: str) -> web.Response:
    return web.json_response({"error": text}, status=status)

"""The other side of a webhook: a program that posts signed messages, and takes the answers."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from typing import Any, Self

import aiohttp
from aiohttp import web

from channels.webhook.signature import HEADER, Signatures, signed
from core.errors import Invalid

SECRET = "s" * 32


class Program:
    """The other side: it posts messages, and keeps what is posted to it, by key."""

    def __init__(self) -> None:
        self.messages: dict[str, dict[str, Any]] = {}
        self.posts = 0
        self.next: list[str] = []
        self.problems: list[str] = []
        self.again = False
        self.secret = SECRET
        self.unauthorised = 0
        """Posts that were refused for their signature."""
        self._ids = 0
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.sika = free.getsockname()[1]

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=20 << 20)
        app.router.add_post("/answers", self._answer)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.port = self._runner.addresses[0][1]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    @property
    def settings(self) -> dict[str, Any]:
        answers = f"http://127.0.0.1:{self.port}/answers"
        return {"secret": self.secret, "answer_url": answers, "allow_private": True, "listen": f"127.0.0.1:{self.sika}"}

    async def _answer(self, request: web.Request) -> web.Response:
        body = await request.read()
        try:
            Signatures(self.secret).check(request.headers[HEADER], body)
        except Invalid:
            self.unauthorised += 1
            return web.Response(status=401)
        self.posts += 1
        match self.next.pop(0) if self.next else "":
            case "reset":
                assert request.transport is not None
                request.transport.abort()
            case "lose":
                self.messages[request.headers["Idempotency-Key"]] = json.loads(body)
                assert request.transport is not None
                request.transport.abort()
            case "done":
                self.messages[request.headers["Idempotency-Key"]] = json.loads(body)
                return web.Response(status=502)
            case "":
                self.messages[request.headers["Idempotency-Key"]] = json.loads(body)
            case status:
                return web.Response(status=int(status), headers={"Retry-After": "1", "Location": "/answers"})
        return web.Response(status=204)

    async def sends(self, message: Mapping[str, Any], *, header: str = "", secret: str = "") -> int:
        body = json.dumps(message).encode()
        headers = {HEADER: header or signed(secret or self.secret, body)}
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"http://127.0.0.1:{self.sika}/", data=body, headers=headers) as response,
        ):
            return response.status

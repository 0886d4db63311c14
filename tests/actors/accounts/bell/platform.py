"""The platform's client: takes messages from the tower, and acknowledges each after custody."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from core.chat.facts import Attachment, ChatReceived, Target
from core.chat.port import Content, CredentialsDead, Draft, Finding, Platform, Receive, Report
from core.errors import Unavailable
from tests.actors.accounts.bell.traits import TRAITS


def connect(settings: Mapping[str, Any]) -> Platform:
    return Bell(settings)


class Bell:
    traits = TRAITS

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._token = settings["bot_token"]
        host, _, port = settings["base_url"].rpartition(":")
        self._address = host, int(port)
        self._writer: asyncio.StreamWriter | None = None

    async def check(self) -> Sequence[Finding]:
        good = self._token.startswith("good")
        return [Finding(good, "the token is accepted" if good else "the token is refused", "" if good else "get one")]

    async def listen(self, receive: Receive, report: Report) -> None:
        try:
            reader, self._writer = await asyncio.open_connection(*self._address)
        except OSError as error:
            raise Unavailable(f"the tower is not there: {error.strerror}") from None
        self._writer.write(json.dumps({"token": self._token}).encode() + b"\n")
        while line := await reader.readline():
            frame = json.loads(line)
            if frame == "refused":
                raise CredentialsDead("the tower refuses the token")
            report.heard()
            if frame == "welcome":
                report.connected()
                continue
            await receive(ChatReceived(message=frame["id"], target=Target(chat=frame["chat"]), sender="u", text="x"))
            self._writer.write(json.dumps({"ack": frame["id"]}).encode() + b"\n")
        raise Unavailable("the tower hung up")

    def parts(self, text: str) -> Sequence[str]:
        return [text]

    def draft(self, target: Target, key: str, message: str = "") -> Draft:
        raise NotImplementedError

    async def post(self, target: Target, content: Content, key: str) -> str:
        assert self._writer is not None
        self._writer.write(json.dumps({"post": content.text}).encode() + b"\n")
        return key

    async def edit(self, target: Target, message: str, content: Content) -> None:
        raise NotImplementedError

    async def find(self, target: Target, key: str, since: datetime) -> str | None:
        return None

    async def upload(self, target: Target, file: Path, name: str, key: str) -> str:
        raise NotImplementedError

    async def fetch(self, attachment: Attachment, message: str, into: Path, limit: int) -> None:
        raise NotImplementedError

    async def working(self, target: Target, on: bool) -> None:
        return

    async def close(self) -> None:
        if self._writer is not None:
            self._writer.close()

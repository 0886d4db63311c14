"""The connection."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import anyio

from sika.channels import Attachment, ChatReceived, Content, Finding, Receive, Rejected, Report, Target

from .traits import TRAITS


def connect(settings: Mapping[str, Any]) -> Slot:
    return Slot(anyio.Path(settings["folder"]))


class Slot:
    """A platform, and its drafts: nobody sees an answer before it is whole."""

    traits = TRAITS
    message = ""

    def __init__(self, folder: anyio.Path) -> None:
        self._folder = folder

    async def check(self) -> Sequence[Finding]:
        return [Finding(await self._folder.is_dir(), f"the folder {self._folder}")]

    async def listen(self, receive: Receive, report: Report) -> None:
        report.connected()
        while True:
            if await (self._folder / "in").exists():
                text = await (self._folder / "in").read_text()
                await receive(ChatReceived("1", Target("slot"), sender="ada", text=text, mentioned=True))
                await (self._folder / "in").unlink()
            await anyio.sleep(0.1)

    def parts(self, text: str) -> Sequence[str]:
        return [text] if text else []

    def draft(self, target: Target, key: str, message: str = "") -> Slot:
        return self

    async def show(self, text: str, status: str) -> None: ...

    async def finish(self, content: Content, key: str) -> str:
        return await self.post(Target("slot"), content, key)

    async def drop(self) -> None: ...

    async def post(self, target: Target, content: Content, key: str) -> str:
        await (self._folder / "out").write_text(content.text)
        return ""

    async def edit(self, target: Target, message: str, content: Content) -> None: ...

    async def find(self, target: Target, key: str, since: datetime) -> str | None:
        return None

    async def upload(self, target: Target, file: Path, name: str, key: str) -> str:
        raise Rejected("too thick for the slot")

    async def fetch(self, attachment: Attachment, message: str, into: Path, limit: int) -> None:
        raise Rejected("letters have no files")

    async def working(self, target: Target, on: bool) -> None: ...

    async def close(self) -> None: ...

"""The files of a thread, for tools: through the sandbox actor, whatever sandbox there is (`core.tools.Files`)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from core.errors import Invalid
from core.files.paths import file_path
from core.ids import uuid7
from core.tools import MOST_BYTES

PART_BYTES = 400 << 10
"""Bytes of a file in one request, which is twice as large; a message of NATS takes 1 MiB."""


class SandboxFiles:
    """Implements `core.tools.Files`. `ask` sends a request to the sandbox, `about` is part of each."""

    def __init__(self, ask: Callable[[Mapping[str, Any]], Awaitable[Any]], about: Mapping[str, str]) -> None:
        self._ask, self._about = ask, about

    async def read(self, path: str) -> bytes:
        path, content, version = file_path(path), b"", None
        while True:
            part = await self._send("get", path=path, offset=len(content), size=PART_BYTES, most=MOST_BYTES)
            if version not in (None, part["sha256"]):
                raise Invalid(f"{path}: was changed while it was read")
            version = part["sha256"]
            content += bytes.fromhex(part["data"])
            if len(content) >= part["size"]:
                return content

    async def write(self, path: str, content: bytes | str) -> str:
        path = file_path(path)
        data = content.encode("utf-8", "surrogateescape") if isinstance(content, str) else bytes(content)
        if len(data) > MOST_BYTES:
            raise Invalid(f"{path}: larger than {MOST_BYTES >> 20} MB")
        for start in range(0, len(data) or 1, PART_BYTES):
            part = data[start : start + PART_BYTES].hex()
            await self._send("put", path=path, data=part, append=start > 0, call_id=f"file-{uuid7()}")
        return path

    async def list(self, path: str = "") -> Sequence[str]:
        names = await self._send("names", path=file_path(path))
        return [str(name) for name in names]

    async def _send(self, op: str, **fields: Any) -> Any:
        about = self._about if op == "put" else {key: self._about[key] for key in ("user", "thread")}
        return await self._ask({"op": op, **about, **fields})

"""The HTTP API of the all-in-one image: five of its endpoints are enough.

A request is never repeated here, as it may have taken effect. Callers repeat what is safe to repeat.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import aiohttp
import anyio
import msgspec
from aiohttp import hdrs
from anyio import to_thread

from adapters.bodies import read_whole
from core.errors import Unavailable

READY_SECONDS, READY_PAUSE = 60.0, 1.0
"""Time for the image to answer, and between two questions (DeerFlow's)."""
ORDER_SECONDS = 30.0
"""Timeout of a control command, which the image is told, too."""
ANSWER_BYTES = 1 << 20
"""Limit of an answer of the API; those of our orders are below 30 000 characters, where the image cuts."""
TRANSFER_SECONDS = 600.0
SILENCE_SECONDS = 30.0
"""Timeout of a transfer that stands still."""
SESSIONS = 4
"""Shells of the image that one worker keeps for a sandbox; each runs one command at a time."""
BLOCK = 1 << 18


class ImageAway(Unavailable):
    """The image does not answer. It may still run, and what was asked may have been done."""


class Refused(Unavailable):
    """The image answers that it did not do it."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"the sandbox's image answers {status}: {text[:300]}")
        self.status = status


class _Image(msgspec.Struct):
    home_dir: str = "/tmp"


class _Result(msgspec.Struct):
    """The answer of `/v1/bash/exec` (`stdout`), or of `/v1/shell/exec` (`output`)."""

    session_id: str = ""
    status: str = ""
    stdout: str | None = None
    output: str | None = None
    stderr: str | None = None


class Image:
    """Guarantees: a method returns or raises within its deadline. Raises `ImageAway` if the image does not answer, and
    `Refused` if it answers with an error.
    """

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")
        self._free: list[str] = []
        self._limiter = anyio.Semaphore(SESSIONS)
        self._shell = False
        """True for an older image, which has `/v1/shell` only."""

    async def ready(self, seconds: float = READY_SECONDS) -> str:
        """Waits until the image answers. Returns its user's home directory."""
        begun = time.monotonic()
        while True:
            try:
                data = await self._call(hdrs.METH_GET, "/v1/sandbox", seconds=min(seconds, 10.0))
                return (msgspec.convert(data, _Image)).home_dir
            except (Unavailable, msgspec.ValidationError) as error:
                if time.monotonic() - begun + READY_PAUSE > seconds:
                    raise ImageAway(f"the sandbox at {self._url} was not ready in {seconds:.0f} s: {error}") from error
            await anyio.sleep(READY_PAUSE)

    async def order(self, *words: str) -> str:
        """Runs a short command in a shell of the image, and returns its standard output."""
        async with self._limiter:
            session = self._free.pop() if self._free else None
            try:
                result = await self._exec(shlex.join(words), session)
            except Refused as error:
                if error.status != 404 or session is None:
                    raise
                result = await self._exec(shlex.join(words), None)  # evicted, or the image was started again
            if result.status == "completed" and result.session_id:
                self._free.append(result.session_id)
        text = result.stdout if result.stdout is not None else result.output
        if result.status != "completed" or text is None:
            raise ImageAway(f"the sandbox's image did not finish an order: {result.status}")
        return text

    async def upload(self, path: str, file: BinaryIO | bytes) -> None:
        form = aiohttp.FormData()
        form.add_field("path", path)
        form.add_field("file", file, filename=path.rpartition("/")[2], content_type="application/octet-stream")
        await self._call(hdrs.METH_POST, "/v1/file/upload", data=form, seconds=TRANSFER_SECONDS)

    async def download(self, path: str, target: Path, limit: int) -> None:
        """Writes a file of the image to a local one. Raises `Unavailable` for one of more than `limit` bytes."""
        try:
            async with (
                aiohttp.ClientSession(timeout=_timeout(TRANSFER_SECONDS)) as session,
                session.get(f"{self._url}/v1/file/download", params={"path": path}) as response,
            ):
                if response.status != 200:
                    raise Refused(response.status, (await response.content.read(1000)).decode(errors="replace"))
                with await to_thread.run_sync(target.open, "wb") as file:
                    size = 0
                    async for block in response.content.iter_chunked(BLOCK):
                        size += len(block)
                        if size > limit:
                            raise Unavailable(f"the sandbox's image sends more than {limit >> 20} MB")
                        await to_thread.run_sync(file.write, block)
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise ImageAway(f"the sandbox at {self._url} does not answer: {error or type(error).__name__}") from error

    async def _exec(self, command: str, session: str | None) -> _Result:
        if not self._shell:
            body: dict[str, Any] = {"command": command, "timeout": ORDER_SECONDS, "hard_timeout": ORDER_SECONDS}
            try:
                return await self._run("/v1/bash/exec", body | ({"session_id": session} if session else {}))
            except Refused as error:
                if error.status not in (404, 405) or session is not None:
                    raise
            self._shell = True  # a shell without a session exists always: the endpoint does not
        body = {"command": command, "timeout": ORDER_SECONDS, "hard_timeout": ORDER_SECONDS, "truncate": False}
        return await self._run("/v1/shell/exec", body | ({"id": session} if session else {}))

    async def _run(self, path: str, body: Mapping[str, Any]) -> _Result:
        data = await self._call(hdrs.METH_POST, path, json=body, seconds=ORDER_SECONDS + 5)
        try:
            return msgspec.convert(data, _Result)
        except msgspec.ValidationError as error:
            raise ImageAway(f"the sandbox's image answers with something else than a result: {error}") from error

    async def _call(self, method: str, path: str, *, seconds: float, **options: Any) -> Any:
        try:
            async with (
                aiohttp.ClientSession(timeout=_timeout(seconds)) as session,
                session.request(method, self._url + path, **options) as response,
            ):
                text = await read_whole(response, ANSWER_BYTES)
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise ImageAway(f"the sandbox at {self._url} does not answer: {error or type(error).__name__}") from error
        if response.status in (502, 503, 504):  # its nginx is there before what is behind it (research §6)
            raise ImageAway(f"the sandbox at {self._url} answers {response.status}")
        if response.status >= 400:
            raise Refused(response.status, text.decode(errors="replace"))
        try:
            return msgspec.json.decode(text)["data"]
        except (msgspec.DecodeError, KeyError, TypeError) as error:
            raise ImageAway(f"the sandbox at {self._url} answers no JSON of the image") from error


def _timeout(seconds: float) -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(total=seconds, sock_connect=min(seconds, 10.0), sock_read=SILENCE_SECONDS + 10)

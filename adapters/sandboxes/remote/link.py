"""The orders that a sandbox's machine obeys (`agent.sh`), and what it answers.

Every order may be sent again: a command is claimed by its directory on the machine. So a lost answer is no question.
"""

from __future__ import annotations

import base64
import binascii
import secrets
import shlex
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

from adapters.sandboxes.docker import agent as docker_agent
from adapters.sandboxes.process.supervisor import HEAD, TAIL
from core.errors import Unavailable
from core.files.paths import USER_DATA, WORKSPACE
from core.ports.sandbox import MachineLost

PART = 9000
"""Bytes of a stream in one answer: two of them in base64 stay below 30 000 characters, where the image cuts."""
INLINE = 15_000
"""Bytes of a file in an answer; a larger one is downloaded."""
SHORT_ORDER = 2000
"""Bytes of an order in the shell's command line; the words of a longer one are uploaded."""
LOOKS = 15
"""Rounds of one look at a command, about a second."""
BLOCK = 512
"""Bytes of a unit of `ulimit -f` (POSIX)."""
_FUNCTIONS = Path(docker_agent.__file__).with_name("agent.sh")
_OWN = Path(__file__).with_name("agent.sh")


AGENT_ALONE = "SIKA_ALONE=yes\n"
"""A setting of the agent: all other processes of the container are those of commands (`docker/agent.sh`, sweep)."""


class Api(Protocol):
    """The way to a machine. Guarantees: a method returns or raises within its deadline. Raises `MachineLost` if the
    machine is known to be gone, `Unavailable` if it does not answer or refuses. A request is never repeated here.
    """

    async def ready(self, seconds: float = ...) -> str:
        """Waits until the machine answers. Returns a directory where the agent may lie."""
        ...

    async def order(self, *words: str) -> str:
        """Runs a program that ends soon, and returns its standard output."""
        ...

    async def upload(self, path: str, file: BinaryIO | bytes) -> None: ...

    async def download(self, path: str, target: Path, limit: int) -> None:
        """Writes a file of the machine to a local one. Raises `Unavailable` for one of more than `limit` bytes."""
        ...


def script(further: str = "") -> bytes:
    """Returns the agent. `further`: lines with settings."""
    settings = {
        "SIKA_WORKSPACE": WORKSPACE,
        "SIKA_FILES": USER_DATA,
        "SIKA_ROOT": "/mnt",
        "SIKA_HEAD": HEAD // BLOCK,
        "SIKA_TAIL": TAIL,
        "SIKA_PART_BYTES": PART,
        "SIKA_INLINE_BYTES": INLINE,
    }
    head = "".join(f"{name}={value}\n" for name, value in settings.items())
    return (head + further).encode() + _FUNCTIONS.read_bytes() + b"\n" + _OWN.read_bytes()


@dataclass(frozen=True, slots=True)
class Look:
    """A command as its machine sees it: `none`, `running` with new output, or `ended` with an archive of its record."""

    state: str
    stdout: bytes = b""
    stderr: bytes = b""
    at: tuple[int, int] = (0, 0)
    """Where the new output begins in both streams."""
    inline: bytes | None = None
    file: str = ""


class Link:
    """Guarantees: each method returns or raises within its deadline. Raises `MachineLost` if the machine is gone, or if
    another one answers at its address; `Unavailable` if it does not answer now.
    """

    def __init__(self, image: Api, folder: str, token: str, gone: Callable[[], Awaitable[bool]]) -> None:
        self.image, self.folder, self._token, self._gone = image, folder, token, gone

    async def go(
        self,
        name: str,
        seconds: int,
        max_file_mb: int,
        command: str,
        environment: Mapping[str, str],
        at: tuple[int, int],
    ) -> Look:
        """Starts a command unless it was started before, and looks at it."""
        fixed = ["go", name, str(at[0]), str(at[1]), str(LOOKS), str(seconds), str((max_file_mb << 20) // BLOCK)]
        words = ["", command, *(f"{key}={value}" for key, value in environment.items())]
        if sum(map(len, words)) > SHORT_ORDER:
            file = f"order-{name}-{secrets.token_hex(4)}"
            text = f'"$@" {shlex.join(words)}\n'.encode("utf-8", "surrogateescape")
            await self.upload(file, text)
            return _look(await self.ask("order", file, *fixed), at)
        return _look(await self.ask(*fixed, *words), at)

    async def peek(self, name: str, at: tuple[int, int], rounds: int = LOOKS) -> Look:
        return _look(await self.ask("peek", name, str(at[0]), str(at[1]), str(rounds)), at)

    async def finish(self, name: str, verdict: str = "interrupted", reason: str = "") -> Look:
        """Ends a command and everything it started."""
        return _look(await self.ask("finish", name, str(LOOKS), verdict, reason))

    async def sockets(self, name: str) -> bytes:
        """Returns the sockets of a command, for `listening.ports_in`."""
        return "\n".join(await self.ask("sockets", name)).encode(errors="replace")

    async def usage(self) -> tuple[int, int]:
        """Returns the bytes on the machine's disk and the number of the thread's files and folders."""
        words = " ".join(await self.ask("usage")).split()
        if len(words) != 2 or not all(word.isdigit() for word in words):
            raise Unavailable("the sandbox's machine answers with something else than the usage of its files")
        return int(words[0]) << 10, int(words[1])

    async def upload(self, name: str, file: bytes) -> None:
        await self._reach(lambda: self.image.upload(f"{self.folder}/{name}", file))

    async def upload_file(self, name: str, path: Path) -> None:
        async def send() -> None:
            with path.open("rb") as file:
                await self.image.upload(f"{self.folder}/{name}", file)

        await self._reach(send)

    async def emitted(self, lines: list[str], target: Path, limit: int) -> None:
        """Writes a file that the agent shows (`emit`) to a local one."""
        if lines[0] == "inline":
            target.write_bytes(decoded(lines[1] if len(lines) > 1 else ""))
            return
        name = lines[0].removeprefix("file ")
        await self._reach(lambda: self.image.download(f"{self.folder}/{name}", target, limit))
        await self.image.order("rm", "-f", f"{self.folder}/{name}")

    async def ask(self, *words: str) -> list[str]:
        """Returns the lines of the answer to an order."""
        text = ""

        async def send() -> None:
            nonlocal text
            text = await self.image.order("sh", f"{self.folder}/agent.sh", self._token, *words)

        await self._reach(send)
        lines = text.splitlines()
        if lines[:1] == ["lost"]:
            raise MachineLost("the sandbox's machine was started again, without what was on it")
        if not lines:  # the agent always answers something
            raise MachineLost("the sandbox's machine was started again, without its agent")
        return lines

    async def _reach(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except MachineLost:
            raise
        except Unavailable as error:
            if await self._gone():
                raise MachineLost("the sandbox's machine is gone") from error
            raise


def decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise Unavailable("the sandbox's machine answers with something else than base64") from error


def _look(lines: list[str], at: tuple[int, int] = (0, 0)) -> Look:
    match lines:
        case ["running", out, err]:
            return Look("running", decoded(out), decoded(err), at)
        case ["running", *_]:
            return Look("running")
        case ["ended", "inline", text]:
            return Look("ended", inline=decoded(text))
        case ["ended", file]:
            return Look("ended", file=file)
        case ["none"]:
            return Look("none")
    raise Unavailable(f"the sandbox's machine answers with something else than the state of a command: {lines[0][:80]}")

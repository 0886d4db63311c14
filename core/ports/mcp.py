"""The port of MCP sessions: third-party programs that run beside the server, or servers elsewhere."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, NamedTuple, Protocol

from core.config.mcp import McpServer
from core.errors import Unavailable
from core.ports.mcp_frames import Ask, Command, Reply

OnProgress = Callable[[str], Awaitable[None]]


class Place(NamedTuple):
    """The session that a command belongs to: who shares it, as `McpServer.sharing` says."""

    server: str
    user: str = ""
    thread: str = ""


OnChange = Callable[[Place], Awaitable[None]]


class Broken(Unavailable):
    """The session cannot be started. Nothing was sent to the server."""


class Caller(Protocol):
    """Answers what the server asks during a call."""

    @property
    def place(self) -> tuple[str, str]:
        """The user and the thread of the call."""
        ...

    async def answer(self, ask: Ask) -> Mapping[str, Any] | None:
        """Returns the answer as the protocol writes it, or `{"error": text}`; None if the call has ended."""
        ...


class McpSessions(Protocol):
    """Sessions with MCP servers, each in a process of its own.

    Guarantees: a session is started by its first command, and again after it ended; ends when it is idle, or its server
    is configured otherwise; its memory, output and time are bounded, and its processes end with it. Cancelling `send`
    cancels the request at the server. A reply `lost` means that the outcome is unknown, `gone` never reaches a caller.
    Non-guarantees: nothing survives this process.
    """

    async def send(
        self,
        place: Place,
        server: McpServer,
        command: Command,
        progress: OnProgress,
        caller: Caller | None = None,
    ) -> Reply:
        """Returns the last reply to a command. `caller` answers what the server asks meanwhile; the protocol does not
        say which call a request belongs to, so it is answered where all open calls of the session have one place.
        Raises `Broken` with the reason, `Unavailable` if there are too many sessions.
        """
        ...

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Does work until it ends, or this process does. It must not raise."""
        ...

    def watch(self, listener: OnChange) -> None:
        """Calls the listener, some time later, when the lists of a session's server have changed."""
        ...

    async def save(self, user: str, thread: str, content: bytes, mime_type: str) -> str:
        """Writes a file into the thread's workspace. Returns its virtual path. Raises `Invalid`."""
        ...

    async def stop(self, server: str | None = None) -> None:
        """Ends the sessions with a server, or all."""
        ...

"""The port of other agents: programs that work on a prompt, and may ask for permission meanwhile."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from core.config.acp import AcpAgent


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt for another agent. `key` names the call in its thread: the same key is the same work."""

    user: str
    thread: str
    key: str
    agent: str
    prompt: str
    servers: Sequence[Mapping[str, Any]] = ()
    """The MCP servers that it gets, as the protocol writes them."""
    asks: bool = True
    """False: nobody can be asked, so what needs permission is rejected."""


class Permission(msgspec.Struct, frozen=True, kw_only=True):
    """A request for permission: the agent waits for it. `step` is what a person is shown."""

    id: str
    step: Mapping[str, Any]
    text: str


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The end of the work."""

    text: str
    failed: bool = False


class OtherAgents(Protocol):
    """Guarantees: a key has one process at most, which ends with all its children when the work ends, is stopped or
    takes too long. The end of the work is recorded: advancing again returns it. Non-guarantees: work does not survive
    the server; `AcpAgent.effect` says what happens to it then.
    """

    async def advance(
        self,
        work: Work,
        settings: AcpAgent,
        decisions: Mapping[str, bool],
        progress: Callable[[str], Awaitable[None]],
    ) -> Permission | Report:
        """Begins the work or goes on with it, until it ends or needs a permission that `decisions` does not have."""
        ...

    async def stop(self, user: str, thread: str, key: str) -> None:
        """Cancels the work; ends it if the agent does not."""
        ...

"""Facts about a thread's sandbox: who starts and uses its machine, and what runs on in the background."""

from __future__ import annotations

from typing import Literal

from core.events import Event

Reason = Literal["idle", "evicted", "erased", "stopped", "lost"]


class SandboxClaimed(Event, frozen=True):
    """A worker is about to start or end the thread's machine. Until the time `until`, nobody else does."""

    claim: str
    """Identifies the claim."""
    worker: str
    until: str
    user: str
    thread: str


class SandboxAcquired(Event, frozen=True):
    """The machine runs, and is the thread's from here on. The claim is over. `worker` uses it until `until`."""

    provider: str
    machine: str
    """The machine's id at its engine."""
    worker: str
    until: str
    address: str = ""
    """The address at which it answers, if it does by HTTP."""


class SandboxFailed(Event, frozen=True):
    """The machine could not be started, or not ended. The claim is over, and nothing else has changed."""

    claim: str
    reason: str


class SandboxUsed(Event, frozen=True):
    """A worker uses the machine for tool calls, and may do so until `until`: before, nobody ends the machine."""

    worker: str
    until: str


class SandboxReleased(Event, frozen=True):
    """The machine has ended. `idle`: not used for long. `evicted`: another thread needed room. `erased`: with its
    thread. `stopped`: with its server. `lost`: it was gone, or nobody held it.
    """

    machine: str
    reason: Reason


class CommandStarted(Event, frozen=True):
    """A command runs in the background, until `until` at the longest."""

    command: str
    """The command's id."""
    until: str
    machine: str = ""
    """The machine that it runs on, if the provider starts any."""


class CommandRead(Event, frozen=True):
    """A call has shown the agent the command's output from `after` to `place`, both in bytes."""

    command: str
    call: str
    """Identifies the call: one that is repeated shows the same again."""
    after: int
    place: int


class CommandEnded(Event, frozen=True):
    """The command has ended, as an `ExecResult` says it: `exited`, `timeout` or `interrupted`."""

    command: str
    ended: str
    exit_code: int | None = None

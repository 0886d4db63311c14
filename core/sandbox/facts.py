"""Facts about a thread's sandbox: who starts and uses its machine, and what runs on in the background."""

from __future__ import annotations

from typing import Literal

from core.events import Event
from core.phrases import Phrase

Reason = Literal["idle", "evicted", "erased", "stopped", "lost"]


class SandboxClaimed(Event, frozen=True):
    """A worker is about to start or end the thread's machine. Until the time `until`, nobody else does."""

    phrase = Phrase(
        "Sandbox claimed",
        "沙箱已预占",
        "by {worker} until {until}, for thread {thread}",
        "{worker}，至 {until}，对话 {thread}",
    )
    claim: str
    """Identifies the claim."""
    worker: str
    until: str
    user: str
    thread: str


class SandboxAcquired(Event, frozen=True):
    """The machine runs, and is the thread's from here on. The claim is over. `worker` uses it until `until`."""

    phrase = Phrase(
        "Sandbox runs",
        "沙箱已运行",
        "{provider} {machine}< at {address}>",
        "{provider} {machine}<，{address}>",
    )
    provider: str
    machine: str
    """The machine's id at its engine."""
    worker: str
    until: str
    address: str = ""
    """The address at which it answers, if it does by HTTP."""


class SandboxFailed(Event, frozen=True):
    """The machine could not be started, or not ended. The claim is over, and nothing else has changed."""

    phrase = Phrase("Sandbox failed", "沙箱失败", "{reason}")
    claim: str
    reason: str


class SandboxUsed(Event, frozen=True):
    """A worker uses the machine for tool calls, and may do so until `until`: before, nobody ends the machine."""

    phrase = Phrase("Sandbox in use", "沙箱使用中", "by {worker} until {until}", "{worker}，至 {until}")
    worker: str
    until: str


class SandboxReleased(Event, frozen=True):
    """The machine has ended. `idle`: not used for long. `evicted`: another thread needed room. `erased`: with its
    thread. `stopped`: with its server. `lost`: it was gone, or nobody held it.
    """

    phrase = Phrase("Sandbox ended", "沙箱已结束", "{machine}: {reason}")
    machine: str
    reason: Reason


class CommandStarted(Event, frozen=True):
    """A command runs in the background, until `until` at the longest."""

    phrase = Phrase(
        "Command runs in the background",
        "命令在后台运行",
        "{command} in the background, until {until} at the longest",
        "{command} 在后台，最长至 {until}",
    )
    command: str
    """The command's id."""
    until: str
    machine: str = ""
    """The machine that it runs on, if the provider starts any."""


class CommandRead(Event, frozen=True):
    """A call has shown the agent the command's output from `after` to `place`, both in bytes."""

    phrase = Phrase(
        "Output of a command read",
        "已读取命令输出",
        "{command}: bytes {after} to {place}",
        "{command}：字节 {after} 到 {place}",
    )
    command: str
    call: str
    """Identifies the call: one that is repeated shows the same again."""
    after: int
    place: int


class CommandEnded(Event, frozen=True):
    """The command has ended, as an `ExecResult` says it: `exited`, `timeout` or `interrupted`."""

    phrase = Phrase(
        "Command ended",
        "命令已结束",
        "{command}: <exit code {exit_code}><!exit_code?{ended}>",
        "{command}：<退出码 {exit_code}><!exit_code?{ended}>",
    )
    command: str
    ended: str
    exit_code: int | None = None

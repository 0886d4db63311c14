"""The sandbox of a thread as it stands: its machine, who uses it, and its commands in the background.

Rules.
1. A worker passes calls to a machine only while a fact says that it uses the machine, until a time that has not come.
2. A machine is ended under a claim, which nobody gets while another worker uses the machine. Exception: its thread was
erased.
3. A machine is started under a claim: of several workers, one starts it, and the others wait for its address.
4. Times are compared between workers, so their clocks may differ by less than half a use (`actors.sandbox.machines`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

import msgspec

from core.events import Record
from core.log.repository import Repository
from core.log.store import EventLog
from core.ports.sandbox import Machine
from core.sandbox.facts import (
    CommandEnded,
    CommandRead,
    CommandStarted,
    SandboxAcquired,
    SandboxClaimed,
    SandboxFailed,
    SandboxReleased,
    SandboxUsed,
)

KIND = "sandbox"
MOST_COMMANDS = 100
"""Limit of commands of a thread that are remembered; those that have ended are forgotten first."""


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """A command in the background. `place`: the end of the output that the agent has seen, in bytes."""

    until: str
    machine: str = ""
    ended: str = ""
    """How it ended, as an `ExecResult` says it; `lost`: with its machine. Empty: not known to have ended."""
    call: str = ""
    after: int = 0
    place: int = 0

    def runs(self, now: str) -> bool:
        """Tells whether it may run: it is not known to have ended, and its time is not over."""
        return not self.ended and now < self.until


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """The sandbox of a thread, as it stands."""

    user: str = ""
    thread: str = ""
    provider: str = ""
    machine: Machine | None = None
    uses: Mapping[str, str] = {}
    """The time until which each worker uses the machine."""
    claim: SandboxClaimed | None = None
    released: str = ""
    """The reason why the machine before this one has ended, if there was one."""
    commands: Mapping[str, Command] = {}

    def claimed(self, now: str) -> bool:
        """Tells whether a worker starts or ends the machine."""
        return self.claim is not None and now < self.claim.until

    @property
    def used_until(self) -> str:
        """The time until which the machine is used, by workers or by a command."""
        commands = (command.until for command in self.commands.values() if command.machine and not command.ended)
        return max((*self.uses.values(), *commands), default="")

    def busy(self, now: str) -> bool:
        return now < self.used_until

    def running(self, now: str) -> list[str]:
        """Returns the ids of the commands in the background that may run."""
        return [name for name, command in self.commands.items() if command.runs(now)]


NONE = Lease()


def key_of(user: str, thread: str) -> str:
    """Returns the id of the aggregate of a thread's sandbox."""
    return hashlib.blake2b(f"{user}\0{thread}".encode(), digest_size=12).hexdigest()


def leases(log: EventLog) -> Repository[Lease]:
    """Returns the sandboxes of all threads."""
    return Repository(log, KIND, fold, NONE)


def fold(records: Iterable[Record], lease: Lease) -> Lease:
    """Returns the sandbox after these events."""
    for record in records:
        lease = _folded(lease, record)
    return lease


def _folded(lease: Lease, record: Record) -> Lease:
    change = msgspec.structs.replace
    match record.event:
        case SandboxClaimed(user=user, thread=thread) as claim:
            return change(lease, claim=claim, user=user, thread=thread)
        case SandboxAcquired(provider=provider, machine=machine, address=address, worker=worker, until=until):
            there = Machine(id=machine, address=address)
            return change(lease, provider=provider, machine=there, uses={worker: until}, claim=None)
        case SandboxFailed(claim=failed):
            return change(lease, claim=None) if lease.claim and lease.claim.claim == failed else lease
        case SandboxUsed(worker=worker, until=until):
            uses = {other: end for other, end in lease.uses.items() if end > record.at}
            return change(lease, uses={**uses, worker: until})
        case SandboxReleased(machine=machine, reason=reason):
            return _released(lease, machine, reason)
        case CommandStarted() | CommandRead() | CommandEnded() as event:
            return change(lease, commands=_commands(lease.commands, event))
    return lease


def _released(lease: Lease, machine: str, reason: str) -> Lease:
    change = msgspec.structs.replace
    if lease.machine is None or lease.machine.id != machine:
        return change(lease, claim=None)
    commands = {
        name: change(command, ended="lost") if command.machine == machine and not command.ended else command
        for name, command in lease.commands.items()
    }
    return change(lease, machine=None, uses={}, claim=None, released=reason, commands=commands)


def _commands(
    commands: Mapping[str, Command], event: CommandStarted | CommandRead | CommandEnded
) -> Mapping[str, Command]:
    if isinstance(event, CommandStarted):
        started = {**commands, event.command: Command(until=event.until, machine=event.machine)}
        surplus = max(0, len(started) - MOST_COMMANDS)
        old = [name for name, command in started.items() if command.ended][:surplus]
        return {name: command for name, command in started.items() if name not in old}
    if (command := commands.get(event.command)) is None:
        return commands
    if isinstance(event, CommandRead):
        command = msgspec.structs.replace(command, call=event.call, after=event.after, place=event.place)
    else:
        command = msgspec.structs.replace(command, ended=event.ended)
    return {**commands, event.command: command}

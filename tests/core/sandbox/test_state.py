"""The sandbox of a thread, folded from its facts."""

from __future__ import annotations

from core.events import Event
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
from core.sandbox.state import MOST_COMMANDS, NONE, Lease, fold, key_of
from tests.support.records import AT, log_of

LATER, LATEST = AT.replace("00:00:00", "00:02:00", 1), AT.replace("00:00:00", "01:00:00", 1)
CLAIMED = SandboxClaimed(claim="c", worker="a", until=LATER, user="ada", thread="t1")
ACQUIRED = SandboxAcquired(provider="docker", machine="m1", address="http://m1", worker="a", until=LATER)


def after(*events: Event) -> Lease:
    return fold(log_of(*events), NONE)


def test_a_claim_ends_with_a_machine_with_a_failure_or_with_its_time() -> None:
    assert after(CLAIMED).claimed(AT)
    assert not after(CLAIMED).claimed(LATER)
    assert not after(CLAIMED, SandboxFailed(claim="c", reason="no image")).claimed(AT)
    assert after(CLAIMED, SandboxFailed(claim="another", reason="no image")).claimed(AT)
    acquired = after(CLAIMED, ACQUIRED)
    assert not acquired.claimed(AT)
    assert acquired.machine == Machine(id="m1", address="http://m1")


def test_a_machine_is_busy_while_any_other_worker_uses_it() -> None:
    lease = after(CLAIMED, ACQUIRED, SandboxUsed(worker="b", until=LATEST))
    assert lease.busy(LATER)
    assert not lease.busy(LATEST)


def test_uses_that_have_run_out_are_not_kept() -> None:
    lease = after(ACQUIRED, SandboxUsed(worker="b", until="2025-01-01T00:00:00.000000+00:00"), ACQUIRED)
    assert dict(lease.uses) == {"a": LATER}
    old = after(SandboxUsed(worker="b", until=AT), SandboxUsed(worker="a", until=LATER))
    assert dict(old.uses) == {"a": LATER}


def test_a_command_keeps_its_machine_until_it_ends() -> None:
    started = CommandStarted(command="bg", until=LATEST, machine="m1")
    assert after(ACQUIRED, started).used_until == LATEST
    assert after(ACQUIRED, started, CommandEnded(command="bg", ended="exited", exit_code=0)).used_until == LATER


def test_commands_end_with_their_machine_and_only_with_theirs() -> None:
    started = CommandStarted(command="bg", until=LATEST, machine="m1")
    lost = after(ACQUIRED, started, SandboxReleased(machine="m1", reason="lost"))
    assert (lost.machine, lost.released, lost.commands["bg"].ended) == (None, "lost", "lost")
    stray = after(ACQUIRED, started, CLAIMED, SandboxReleased(machine="m0", reason="lost"))
    assert stray.machine is not None
    assert (stray.claim, stray.released, stray.commands["bg"].ended) == (None, "", "")


def test_the_commands_that_ended_are_forgotten_first() -> None:
    events: list[Event] = [CommandStarted(command="first", until=LATEST)]
    events += [CommandStarted(command="second", until=LATEST), CommandEnded(command="second", ended="exited")]
    events += [CommandStarted(command=f"c{number}", until=LATEST) for number in range(MOST_COMMANDS - 1)]
    events += [CommandRead(command="second", call="x", after=0, place=1)]
    commands = after(*events).commands
    assert len(commands) == MOST_COMMANDS
    assert "first" in commands
    assert "second" not in commands


def test_keys_tell_users_and_threads_apart() -> None:
    assert len({key_of("a", "bc"), key_of("ab", "c"), key_of("a", "b")}) == 3

"""The lease of an account: one holder at a time, also when answers are lost."""

from __future__ import annotations

import sys

import anyio
import msgspec
import pytest

from core.bus.connection import Bus
from core.chat import process
from core.chat.lease import NEAR_SECONDS, Holder, Lease, free
from core.errors import OwnershipLost, Unavailable
from tests.support.nats import DEADLINE

SECONDS = 1.0


def lease(bus: Bus, holder: str, seconds: float = SECONDS, account: str = "slack") -> Lease:
    return Lease(bus, account, holder, seconds)


async def test_a_lease_that_is_given_back_is_taken_at_once(bus: Bus) -> None:
    first, second = lease(bus, "first", 60), lease(bus, "second", 60)
    with anyio.fail_after(DEADLINE):
        await first.take()
        first.require()
        await first.give_back()
        assert not first.held
        await second.take()
    assert second.held


async def test_a_lease_that_is_not_renewed_passes_to_another(bus: Bus) -> None:
    first, second = lease(bus, "first"), lease(bus, "second")
    with anyio.fail_after(DEADLINE):
        await first.take()
        await second.take()
        assert not first.held
        with pytest.raises(Unavailable, match="does not hold the account"):
            first.require()
        with pytest.raises(OwnershipLost):
            await first.keep()
        await first.give_back()
        await second._store(second._sequence)
    assert second.held, "giving back what was lost takes nothing from the new holder"


async def test_another_waits_for_as_long_as_the_lease_is_renewed(bus: Bus) -> None:
    first, second = lease(bus, "first"), lease(bus, "second")
    with anyio.fail_after(DEADLINE):
        await first.take()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(first.keep)
            with anyio.move_on_after(3 * SECONDS) as waiting:
                await second.take()
            assert waiting.cancelled_caught
            assert first.held
            tasks.cancel_scope.cancel()


async def test_a_renewal_whose_answer_was_lost_is_the_holders(bus: Bus) -> None:
    first = lease(bus, "first", 60)
    with anyio.fail_after(DEADLINE):
        await first.take()
        known = first._sequence
        assert await first._store(known)
        first._sequence = known  # as if that answer had not come
        assert await first._store(known)
    assert first.held


async def test_the_lease_of_a_process_that_is_dead_on_this_machine_is_taken_at_once(bus: Bus) -> None:
    """Also while another one waits for it; one of another machine may live."""
    waits = await anyio.open_process([sys.executable, "-c", "input()"])
    lives = process.own().rsplit(" ", 2)[0] + f" {waits.pid} {process._started(waits.pid)}"
    with anyio.fail_after(DEADLINE):
        for identity in (lives, "another machine 1 1"):
            stored = msgspec.json.encode(Holder("first", 60, identity))
            await bus.store(bus.names.place("-account-slack"), stored, {})
            with anyio.move_on_after(4 * NEAR_SECONDS) as waiting:
                await lease(bus, "second", 60).take()
            assert waiting.cancelled_caught
        await bus.store(bus.names.place("-account-slack"), msgspec.json.encode(Holder("first", 60, lives)), {})
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lease(bus, "second", 60).take)
            waits.kill()
            await waits.wait()


def test_a_process_is_dead_if_its_number_is_another_ones_now() -> None:
    space, number, started = process.own().rsplit(" ", 2)
    assert process.is_near(process.own())
    assert not process.is_dead(process.own())
    assert process.is_dead(f"{space} {number} {int(started) - 1}")
    for other in ("", f"other {number} {started}", f"{space} no number", "1"):
        assert not process.is_dead(other)


async def test_accounts_have_leases_of_their_own(bus: Bus) -> None:
    with anyio.fail_after(DEADLINE):
        for account in ("slack", "slack-work"):
            await lease(bus, "first", 60, account).take()


async def test_the_lease_of_a_dead_process_is_freed_by_its_name_only(bus: Bus) -> None:
    first, second = lease(bus, "first", 60), lease(bus, "second", 60)
    with anyio.fail_after(DEADLINE):
        assert not await free(bus, "slack", "first")
        await first.take()
        assert not await free(bus, "slack", "second")
        assert await free(bus, "slack", "first")
        assert not await free(bus, "slack", "first")
        await second.take()
        assert not await free(bus, "slack", "first"), "what another has taken meanwhile stays"
    assert second.held

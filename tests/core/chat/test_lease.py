"""The lease of an account: one holder at a time, also when answers are lost."""

from __future__ import annotations

import anyio
import pytest

from core.bus.connection import Bus
from core.chat.lease import Lease, free
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

"""An account whose credentials the platform does not accept any more says so, waits, and works again with new ones."""

from __future__ import annotations

from actors.contracts.seat import Revoking
from actors.contracts.table import Table

MOST_CALLS = 20
"""Refused calls until a person has new credentials: an account that began anew without a pause would make hundreds."""


class Credentials:
    """Any platform; at a table where no runs of other tests are at work."""

    async def test_revoked_credentials_are_a_state_until_there_are_new_ones(self, here: Table[Revoking]) -> None:
        event = await here.hears("zora", "hello")
        routed = await here.works(event)
        process = (await here.status()).process
        settings = here.seat.revoke()
        await here.ends(routed, "The answer that waits for new credentials.")
        status = await here.becomes("credentials dead")
        assert status.reason, "where people look"
        assert status.process == process
        here.configure(**settings)
        await here.shows("waits for new credentials", "zora")
        await here.becomes("connected")
        assert here.seat.refused() <= MOST_CALLS
        plan = await here.delivered(event, routed.run_id)
        assert (plan.failed, len(plan.messages)) == ("", 1)
        await here.answers(await here.hears("zora", "and now?"), "Now, too.")
        await here.shows("Now, too.", "zora")

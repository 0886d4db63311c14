"""Ends the open runs of an account that is disabled.

Requests are refused at the intake, and a run that is claimed later fails at its preparation: between them nothing
is left but runs that are at work.
"""

from __future__ import annotations

from contextlib import suppress

from core.actor import Actor, Context, Retries
from core.errors import NotFound, Refused
from core.identity.accounts import AccountDisabled
from core.lifecycle import OPEN
from core.runs.intake import Intake
from core.views.projections import Views


class Offboarding(Actor[AccountDisabled]):
    """Cancels the account's runs, whoever began them. What they did stays."""

    retries = Retries(attempts=60)
    """For an hour: who was sent away must not go on because of a fault that passes."""

    def __init__(self, views: Views, intake: Intake) -> None:
        self._views = views
        self._intake = intake

    async def handle(self, event: AccountDisabled, ctx: Context) -> None:
        await self._views.current()
        for thread, run in await self._views.open_runs(event.user, sorted(OPEN)):
            with suppress(NotFound, Refused):  # it ended meanwhile
                await self._intake.cancel(thread, run, user=event.user, actor=self.name)

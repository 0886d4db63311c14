"""Permission to have work done: asked wherever work begins or goes on for a user, not only where a request comes in.

Schedules, bots, goals and third-party actors start runs without a request. An account that is disabled gets none.
"""

from __future__ import annotations

from core.identity import accounts
from core.identity.accounts import ACCOUNTS
from core.identity.errors import Inactive
from core.log.repository import Repository
from core.log.store import EventLog


class Standing:
    """Knows which accounts are disabled. Users without an account, as in an installation without accounts, may work."""

    def __init__(self, log: EventLog) -> None:
        self._accounts = Repository(log, accounts.KIND, accounts.fold, accounts.EMPTY)

    async def active(self, user: str, *, at_least: int | None = None) -> bool:
        """Tells whether work may be done for a user: as of now, or (cheaper) as of any moment not before sequence
        `at_least` of the log. Raises `Unavailable`.
        """
        account = (await self._accounts.load(ACCOUNTS.id, at_least=at_least)).by_id.get(user)
        return account is None or not account.disabled

    async def name(self, user: str) -> str:
        """Returns how people call a user: the account's address, or its id. Raises `Unavailable`."""
        account = (await self._accounts.load(ACCOUNTS.id)).by_id.get(user)
        return account.email if account is not None else user

    async def require(self, user: str, *, at_least: int | None = None) -> None:
        """Raises `Inactive` if no work may be done for a user (see `active`)."""
        if not await self.active(user, at_least=at_least):
            raise Inactive("The account is disabled: nothing runs for it until an administrator enables it")

    async def may_ask(self, user: str) -> None:
        """Raises `Inactive` if no work may be done for a user, as far as this process has heard.

        Enough for a request: a run is looked at again when it begins, as of its request (`require`).
        """
        await self.require(user, at_least=self._accounts.log.position)

"""Permission to have work done: asked wherever work begins or goes on for a user, not only where a request comes in.

Schedules, bots, goals and actors of others start runs without a request. An account that is disabled gets none.
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

    async def active(self, user: str) -> bool:
        """Tells whether work may be done for a user. Raises `Unavailable`."""
        account = (await self._accounts.load(ACCOUNTS.id)).by_id.get(user)
        return account is None or not account.disabled

    async def name(self, user: str) -> str:
        """Returns how people call a user: the account's address, or its id. Raises `Unavailable`."""
        account = (await self._accounts.load(ACCOUNTS.id)).by_id.get(user)
        return account.email if account is not None else user

    async def require(self, user: str) -> None:
        """Raises `Inactive` if no work may be done for a user."""
        if not await self.active(user):
            raise Inactive("The account is disabled: nothing runs for it until an administrator enables it")

"""A process that does nothing but supervise accounts: `python -m tests.actors.accounts.supervisor HOME CONFIG`."""

from __future__ import annotations

import sys
from pathlib import Path

import anyio

from actors.wiring.account_processes import Supervisor
from core.bus.endpoint import configured
from core.chat.account import Accounts
from core.config.load import ConfigSource
from core.identity.seal import Seal
from core.runtime import system


async def main(home: Path, config: Path) -> None:
    source = ConfigSource(config)
    nats = source.current().nats
    endpoint = configured(nats, nats.url or "")
    async with (
        source.watched(),
        system.start(endpoint, home / "views.db", lease_seconds=2, slots=1, keep_views=False) as running,
    ):
        accounts = Accounts(running.log, source.current, Seal(home))
        await Supervisor(accounts, source, home, config, endpoint, embedded=False).run()


if __name__ == "__main__":
    anyio.run(main, Path(sys.argv[1]), Path(sys.argv[2]))

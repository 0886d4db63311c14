"""Deliveries to a chat platform, and drafts while a run is at work: the actors of one account.

They run in the account's process, which holds the only connection to the platform. Reading order: `pacing.py` (when a
call may be made) → `outlet.py` (calls and facts) → `signs.py` (a message was received) → `job.py` and `delivering.py`
(plans) → `drafts.py` with `growing.py` and `progress.py` (answers while they grow) → `fetcher.py` and
`files.py` (files in and out).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from actors.delivery import files
from actors.delivery.delivering import Delivery, Link
from actors.delivery.drafts import Drafts, Lives
from actors.delivery.fetcher import Admits, Fetcher
from actors.delivery.outlet import Outlet
from actors.delivery.signs import Signs
from core.actor import Actor
from core.chat.objects import Objects
from core.chat.port import Platform
from core.runtime.system import System


def actors(
    account: str,
    platform: Platform,
    system: System,
    home: Path,
    admits: Admits,
    link: Link = lambda plan, artifact: None,
    awaits: Admits | None = None,
) -> Sequence[Actor[Any]]:
    """Returns the actors of an account. They must be served before the platform is listened to: an actor that is new
    begins with new events. `admits`: whose files are fetched. `link`: for artifacts that are too large for the
    platform. `awaits`: which messages are for the agent, so that their senders are shown a sign at once (default: all
    of those whose files are fetched).
    """
    outlet, lives = Outlet(account, platform, system.chats), Lives()
    passing = files.passing(home, account)
    return [
        Delivery(outlet, lives, home, passing, link),
        Drafts(outlet, lives, system),
        Fetcher(outlet, Objects(system.bus), passing, admits),
        Signs(outlet, awaits or admits),
    ]

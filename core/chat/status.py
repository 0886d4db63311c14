"""The status of an account, from its process: asked over the bus, stored nowhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import anyio
import msgspec

from core.bus import rpc
from core.bus.connection import Bus
from core.bus.errors import ApiError
from core.errors import SikaError, Unavailable

ASK_SECONDS = 1.0
"""Timeout of a process's answer."""

State = Literal["disabled", "not running", "starting", "connected", "disconnected", "credentials dead", "failed"]
"""`starting`: not connected yet. `disconnected`: it reconnects by itself. `credentials dead`: a person must replace
them. `failed`: it cannot begin, `reason` says why."""


class Status(msgspec.Struct, frozen=True, omit_defaults=True):
    """An account. Times are those of events; empty: never. Counts begin with the process."""

    account: str
    state: State
    reason: str = ""
    process: str = ""
    """The process that serves it."""
    connected_since: str = ""
    last_heard: str = ""
    """The last frame or answer of the platform."""
    last_in: str = ""
    """The last message from a person."""
    last_out: str = ""
    received: int = 0
    sent: int = 0
    failures: int = 0
    """Calls of the platform that failed."""
    last_failure: str = ""
    reconnects: int = 0
    rate_limited_until: str = ""
    open_deliveries: int | None = None
    """Conversations in which something is to be said. None: unknown."""


def service(account: str) -> str:
    """Returns the name under which an account's process answers requests."""
    return f"account-{account}"


async def statuses(bus: Bus, accounts: Mapping[str, bool]) -> list[Status]:
    """Returns the accounts' status, by name. `accounts`: whether each is enabled."""
    results: dict[str, Status] = {}

    async def ask(name: str, enabled: bool) -> None:
        status = await _ask(bus, name, enabled)
        results[name] = msgspec.structs.replace(status, open_deliveries=await _open(bus, name))

    async with anyio.create_task_group() as tasks:
        for name, enabled in accounts.items():
            tasks.start_soon(ask, name, enabled)
    return [results[name] for name in sorted(results)]


async def request(bus: Bus, account: str, op: str) -> Any:
    """Sends a request to an account's process. Raises `Unavailable` if there is none."""
    try:
        with anyio.fail_after(ASK_SECONDS):
            return await rpc.call(bus, service(account), {"op": op})
    except TimeoutError:
        raise Unavailable(f"{account}: its process does not answer within {ASK_SECONDS:g} s") from None
    except rpc.Declined:
        raise
    except Unavailable as error:
        raise Unavailable(f"{account}: no process serves it; the server's log says why") from error


async def _ask(bus: Bus, name: str, enabled: bool) -> Status:
    try:
        return msgspec.convert(await request(bus, name, "status"), Status)
    except (SikaError, msgspec.ValidationError) as error:
        reason = "" if not enabled else str(error)
        return Status(name, "not running" if enabled else "disabled", reason)


async def _open(bus: Bus, name: str) -> int | None:
    """Returns the wake-ups of the account's deliveries that are not done."""
    try:
        info = await bus.api(f"CONSUMER.INFO.{bus.names.stream('cmd')}.delivery-{name}")
        return int(info["num_pending"]) + int(info["num_ack_pending"])
    except (ApiError, Unavailable):
        return None

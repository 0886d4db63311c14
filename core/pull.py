"""Pulling from a durable consumer: as many messages as there is room for, through reconnects and lost requests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import msgspec
import structlog
from nats.aio.msg import Msg

from core.bus import SECOND, Bus
from core.errors import Unavailable

log = structlog.get_logger("sika.pull")

PULL_SECONDS = 20.0
"""How long one pull request waits at the server. A request lost with its server is noticed at the reconnect, else
this much later.
"""
RETRY_SECONDS = 1.0
WRONG_PIN = "423"
"""Status of a request with the pin of a process that is not the pinned one any more."""


class Room:
    """How many more messages may be taken. The taker of a message calls `free` when it is done with it."""

    def __init__(self, slots: int) -> None:
        self._left = slots
        self._some = asyncio.Event()
        self._some.set()

    async def wait(self) -> int:
        await self._some.wait()
        return self._left

    def take(self) -> None:
        self._left -= 1
        if self._left <= 0:
            self._some.clear()

    def free(self) -> None:
        self._left += 1
        self._some.set()


async def pull(bus: Bus, stream: str, consumer: str, room: Room, group: str | None = None) -> AsyncIterator[Msg]:
    """The consumer's messages, for ever. One request is outstanding at a time, for no more than there is room for.

    `group`: a priority group of the consumer with the policy `pinned_client` (ADR-42): one process gets all its
    messages until it is gone, the others wait.
    """
    inbox = bus.nc.new_inbox()
    arrived: asyncio.Queue[Msg | None] = asyncio.Queue()

    async def on_message(msg: Msg) -> None:
        arrived.put_nowait(msg)

    subscription = await bus.subscribe(f"{inbox}.*", on_message)
    request = 0
    pin = ""
    try:
        with bus.on_reconnect(lambda: arrived.put_nowait(None)):
            while True:
                batch = await room.wait()
                request += 1
                wanted: dict[str, int | str] = {"batch": batch, "expires": int(PULL_SECONDS * SECOND)}
                if group is not None:
                    wanted |= {"group": group, "id": pin} if pin else {"group": group}
                payload = msgspec.json.encode(wanted)
                subject = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}"
                try:
                    await bus.request_from(subject, payload, f"{inbox}.{request}")
                except Unavailable as error:
                    log.warning("consumer out of reach", consumer=consumer, error=str(error))
                    await asyncio.sleep(RETRY_SECONDS)
                    continue
                async for msg in _answers(arrived, f"{inbox}.{request}", batch):
                    if msg is None:
                        pin = ""
                        break
                    pin = (msg.headers or {}).get("Nats-Pin-Id", "") if group else ""
                    room.take()
                    yield msg
    finally:
        await subscription.unsubscribe()


async def _answers(arrived: asyncio.Queue[Msg | None], mine: str, batch: int) -> AsyncIterator[Msg | None]:
    """The messages of one request, until it is used up, ended by the server, or lost. Late ones of earlier requests
    come too. None: another process is pinned now.
    """
    for _ in range(batch):
        while True:
            try:
                async with asyncio.timeout(PULL_SECONDS + 5):
                    msg = await arrived.get()
            except TimeoutError:
                return
            if msg is None:  # reconnected: the server has forgotten the request
                return
            status = msg.headers.get("Status") if msg.headers else None
            if status is None:
                break
            if status == WRONG_PIN and msg.subject == mine:
                yield None
                return
            if msg.subject == mine and status != "100":
                if status != "408":  # 408: nothing came in time
                    log.debug("pull ended", status=status, text=(msg.headers or {}).get("Description"))
                    await asyncio.sleep(RETRY_SECONDS if status in ("503", "409", "404") else 0)
                return
        yield msg

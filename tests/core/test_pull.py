"""Pulling wake-ups: no more than there is room for, on over reconnections, and not from a consumer that is gone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing

import anyio
import pytest
from nats.js.api import AckPolicy, ConsumerConfig

from core.bus import pull as pulling
from core.bus.connection import Bus, connect
from core.bus.errors import ApiError
from core.bus.pull import Room, pull
from tests.support.nats import Nats

pytestmark = pytest.mark.anyio
STREAM, CONSUMER = "PULLED", "puller"


@pytest.fixture
async def bus(nats: Nats) -> AsyncIterator[Bus]:
    async with connect(nats.endpoint("pulled"), "test") as bus:
        js = bus.nc.jetstream()
        await js.add_stream(name=STREAM, subjects=["pulled.*"])
        await js.add_consumer(STREAM, ConsumerConfig(durable_name=CONSUMER, ack_policy=AckPolicy.NONE))
        yield bus
        await js.delete_stream(STREAM)


async def put(bus: Bus, count: int) -> None:
    for number in range(count):
        await bus.nc.jetstream().publish("pulled.x", str(number).encode())


async def test_no_more_come_than_there_is_room_for(bus: Bus) -> None:
    await put(bus, 5)
    room, received = Room(2), list[bytes]()
    async with aclosing(pull(bus, STREAM, CONSUMER, room)) as messages:
        received += [(await anext(messages)).data for _ in range(2)]
        with anyio.move_on_after(0.5) as waited:
            received.append((await anext(messages)).data)
    assert waited.cancelled_caught
    info = await bus.nc.jetstream().consumer_info(STREAM, CONSUMER)
    assert (received, info.num_pending) == ([b"0", b"1"], 3)


async def test_what_is_freed_is_filled_in_order(bus: Bus) -> None:
    await put(bus, 20)
    room, received = Room(3), list[bytes]()
    async with aclosing(pull(bus, STREAM, CONSUMER, room)) as messages:
        with anyio.fail_after(60):
            while len(received) < 20:
                received.append((await anext(messages)).data)
                room.free()
    assert received == [str(number).encode() for number in range(20)]


async def test_a_consumer_that_is_gone_is_an_error_and_not_waited_for(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pulling, "RETRY_SECONDS", 0.01)
    await put(bus, 1)
    async with aclosing(pull(bus, STREAM, CONSUMER, Room(4))) as messages:
        await anext(messages)
        await bus.nc.jetstream().delete_consumer(STREAM, CONSUMER)
        with anyio.fail_after(60), pytest.raises(ApiError):
            await anext(messages)

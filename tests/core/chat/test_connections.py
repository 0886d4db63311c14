"""Connections of users with people: what is erased when one ends."""

from __future__ import annotations

from core.bus.connection import Bus
from core.chat.connections import CONNECTIONS, Connections
from core.log.store import EventLog
from tests.support.nats import read


async def test_a_connection_that_ended_leaves_nothing_of_the_person(bus: Bus) -> None:
    log = EventLog(bus)
    connections = Connections(log, actor="test")
    for user, person in (("ada", "U1"), ("bob", "U2")):
        code = await connections.offer(user, "slack")
        assert await connections.bind(code, "slack", person, f"Name of {person}")
    [ada] = (await connections.state()).of_user("ada")
    await connections.revoke("ada", ada.id)
    raw = b"".join([record.raw for record in await read(log, CONNECTIONS)])
    assert b"U1" not in raw
    assert b"Name of U2" in raw
    again = await Connections(log, actor="test").state()
    assert (again.of_user("ada"), [each.external for each in again.of_user("bob")]) == ([], ["U2"])
    assert await connections.bind(await connections.offer("ada", "slack"), "slack", "U1")

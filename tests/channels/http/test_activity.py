"""Sign-ins, uses of keys and refusals are in the log, and those who may look them up: a list that stays short."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from core.events import Aggregate
from core.identity.activity import KIND, LISTED, AccessRefused, Activities, KeyUsed
from tests.channels.http.people import ADA, ADMIN, AUTH, BOB, PASSWORD, Browser, Place
from tests.channels.http.people import fixture_config as fixture_config
from tests.channels.http.people import fixture_here as fixture_here


async def entries(browser: Browser, user: str = "") -> list[tuple[str, dict[str, str]]]:
    answer = await browser.ask("GET", f"{AUTH}/activity?user={user}")
    assert answer.status == 200, answer
    return [(entry["type"], entry["about"]) for entry in answer.body["entries"]]


async def test_what_people_do_to_get_in_is_listed(here: Place) -> None:
    admin, ada = await here.admin(), await here.person(ADA)
    await here.browser().sign_in(ADA, "wrong one")
    await here.browser().sign_in(ADA)
    await here.browser().sign_in("nobody@example.org", "wrong one")
    key = await here.key(ADA, ["threads:read"])
    program = here.browser(**{"X-Api-Key": key})
    for _ in range(3):
        assert (await program.ask("POST", "/api/threads/search", {})).status == 200
        assert (await program.ask("POST", "/api/threads", {})).status == 403
    user = (await ada.me()).body["id"]
    listed = await entries(ada)
    kinds = [kind for kind, _ in listed]
    assert sorted(kinds[:2]) == ["access.refused", "key.used"], "each once"
    assert kinds[2:] == ["session.opened", "session.refused", "session.opened"]
    about = dict(listed)
    assert about["access.refused"] == {
        "operation": "POST /threads",
        "code": "forbidden",
        "ip": "127.0.0.1",
        "key": about["key.used"]["key"],
    }
    assert about["session.refused"]["reason"] == "invalid_credentials"
    assert await entries(admin, user) == listed
    assert [kind for kind, _ in await entries(admin, "unknown")] == ["session.refused"]
    raw = b"".join([record.raw async for record in here.system.log.read(Aggregate(KIND, user))])
    assert key.encode() not in raw
    assert PASSWORD.encode() not in raw
    assert b"wrong one" not in raw


async def test_the_activity_of_others_is_for_administrators(here: Place) -> None:
    admin, bob = await here.admin(), await here.person(BOB)
    for name in (ADMIN, "unknown"):
        assert (await bob.ask("GET", f"{AUTH}/activity?user={name}")).status == 403
    assert (await admin.ask("GET", f"{AUTH}/activity?user=nobody@example.org")).status == 404


async def test_a_list_is_bounded_and_repeats_once_an_hour(here: Place) -> None:
    now = datetime(2026, 11, 26, 12, tzinfo=UTC)
    times: list[datetime] = [now]
    activities = Activities(here.system.log, clock=lambda: times[-1])
    used: Any = KeyUsed(key="k", ip="127.0.0.1")
    for minutes in (0, 1, 59, 60):
        times.append(now + timedelta(minutes=minutes))
        await activities.note("ada", used)
    assert len(await activities.of("ada")) == 2
    for number in range(2 * LISTED + 50):
        await activities.note("bob", AccessRefused(operation=f"GET /{number}", code="forbidden", ip="::1"))
    listed = await activities.of("bob")
    assert len(listed) == LISTED
    assert [each.entry for each in listed] == [each.entry for each in await Activities(here.system.log).of("bob")]
    records = [record async for record in here.system.log.read(Aggregate(KIND, "bob"))]
    assert len(records) < 2 * LISTED

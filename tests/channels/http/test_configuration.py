"""The configuration in force over HTTP: for administrators, and without a secret."""

from __future__ import annotations

import pytest

from tests.channels.http.people import ADA, Place
from tests.channels.http.people import fixture_config as fixture_config
from tests.channels.http.people import fixture_here as fixture_here

pytestmark = pytest.mark.anyio


async def test_an_administrator_reads_it_and_a_member_does_not(here: Place) -> None:
    root, ada = await here.admin(), await here.person(ADA)
    assert (await ada.ask("GET", "/api/configuration")).status == 403
    answer = await root.ask("GET", "/api/configuration")
    assert (answer.status, answer.body["problem"]) == (200, None)
    [key] = [key for key in answer.body["keys"] if key["path"] == "auth.registration"]
    assert (key["value"], key["default"], key["restart"]) == ("true", "false", False)
    assert key["text"]
    for scopes, status in ((["admin"], 200), (["threads"], 403)):
        program = here.browser(**{"X-Api-Key": await here.key("admin@example.org", scopes)})
        assert (await program.ask("GET", "/api/configuration")).status == status

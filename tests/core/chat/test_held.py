"""What an account says of its connection."""

from __future__ import annotations

import pytest

from core.chat.held import LeasedDraft, LeasedPlatform, Meter
from core.chat.port import Bundling, ChatGone, CredentialsDead, Draft, FateUnknown, Platform, Whispering


def test_a_revoked_token_is_no_connection_until_something_was_sent() -> None:
    meter = Meter("slack", "p")
    meter.connected()
    meter.failed(CredentialsDead("token_revoked"))
    status = meter.status()
    assert (status.state, "token_revoked" in status.reason) == ("credentials dead", True)
    assert status.connected_since, "the socket is open all the same"
    meter.sent()
    assert (meter.status().state, meter.status().reason) == ("connected", "")


@pytest.mark.parametrize("error", [ChatGone("gone"), FateUnknown("no answer")])
def test_other_failures_change_no_state(error: Exception) -> None:
    meter = Meter("slack", "p")
    meter.connected()
    meter.failed(error)
    assert (meter.status().state, meter.status().failures) == ("connected", 1)


def test_a_connection_that_is_lost_says_why() -> None:
    meter = Meter("slack", "p")
    meter.connected()
    meter.failed(CredentialsDead("token_revoked"))
    meter.disconnected("closed")
    assert (meter.status().state, meter.status().reason) == ("disconnected", "closed")


@pytest.mark.parametrize(
    ("port", "held"),
    [(Platform, LeasedPlatform), (Bundling, LeasedPlatform), (Whispering, LeasedPlatform), (Draft, LeasedDraft)],
)
def test_all_calls_of_the_port_go_through_the_lease(port: type, held: type) -> None:
    calls = {name for name in vars(port) if not name.startswith("_")} - {"traits"}
    assert calls
    assert calls <= set(vars(held))

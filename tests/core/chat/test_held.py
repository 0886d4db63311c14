"""What an account says of its connection."""

from __future__ import annotations

import pytest

from core.chat.held import Meter
from core.chat.port import ChatGone, CredentialsDead, FateUnknown


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

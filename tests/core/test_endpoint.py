"""The endpoint of a NATS, made from the configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from core.bus.endpoint import configured, reach
from core.config.load import parse
from core.errors import Invalid

URLS = "nats://one:4222,nats://two:4222"
NOBODY: dict[str, Any] = {"user": None, "password": None, "token": None, "user_credentials": None, "tls": None}


@pytest.mark.parametrize(
    ("section", "signing_in"),
    [
        ({}, {}),
        ({"user": "ada", "password": "secret-1"}, {"user": "ada", "password": "secret-1"}),
        ({"token": "secret-2"}, {"token": "secret-2"}),
        ({"credentials": "/etc/sika/nats.creds"}, {"user_credentials": Path("/etc/sika/nats.creds")}),
    ],
    ids=["nobody", "password", "token", "credentials"],
)
def test_how_a_process_signs_in(section: dict[str, Any], signing_in: dict[str, Any]) -> None:
    nats = parse(msgspec.json.encode({"nats": {**section, "prefix": "other", "replicas": 3}}).decode()).nats
    endpoint = configured(nats, URLS)
    assert reach(endpoint) == {**NOBODY, "servers": ["nats://one:4222", "nats://two:4222"], **signing_in}
    assert (endpoint.prefix, endpoint.replicas) == ("other", 3)
    assert "secret" not in repr(endpoint)


def test_an_address_has_no_credentials() -> None:
    with pytest.raises(Invalid, match=r"use nats\.user and nats\.password"):
        configured(parse("").nats, "nats://ada:secret@one:4222")

"""Pauses that platforms name in their refusals: whatever they name, an account is not silent for good."""

from __future__ import annotations

import math

import pytest

from channels.chat.calls import LONGEST_WAIT, pause_of, retry_after

DEFAULT = 7.0


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("3", 3.0),
        (0.25, 0.25),
        (0, 0.0),
        ("-1", 0.0),
        ("nan", 0.0),
        ("inf", LONGEST_WAIT),
        (1e300, LONGEST_WAIT),
        (10**400, DEFAULT),
        ("Wed, 21 Oct 2026 07:28:00 GMT", DEFAULT),
        ("", DEFAULT),
        (None, DEFAULT),
        ({}, DEFAULT),
    ],
)
def test_a_pause_is_finite(value: object, seconds: float) -> None:
    assert pause_of(value, DEFAULT) == seconds
    assert math.isfinite(pause_of(value, DEFAULT))


def test_a_header_names_a_pause() -> None:
    assert [retry_after(headers, DEFAULT) for headers in ({"Retry-After": "2"}, {})] == [2.0, DEFAULT]

"""What failed model calls mean, and when a provider is left alone."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from types import SimpleNamespace
from typing import Any

import httpx
import openai
import pytest
from langchain_openai import StreamChunkTimeoutError

from actors.lead.model.failures import CAP_MS, LONGEST_MS, RETRIABLE_STATUS, Breaker, address, classify, pause_ms

REQUEST: Any = httpx.Request("POST", "http://model/v1")


class Failed(Exception):
    """An error as providers' clients raise it."""

    def __init__(self, status: int | None = None, text: str = "no", /, headers: Any = None, **fields: Any) -> None:
        super().__init__(text)
        self.response = SimpleNamespace(headers=headers if headers is not None else {})
        if status is not None:
            self.status_code = status
        for name, value in fields.items():
            setattr(self, name, value)


def named(name: str, *, base: str = "") -> Exception:
    """An error of a class with this name, or derived from one with that name."""
    parent = type(base, (Exception,), {}) if base else Exception
    error: Exception = type(name, (parent,), {})("gone")
    return error


def answered(status: int, message: str, **body: Any) -> openai.APIStatusError:
    response: Any = httpx.Response(status, request=REQUEST)
    return openai.APIStatusError(message, response=response, body={"message": message, **body})


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        # quota, before everything
        (Failed(429, "insufficient_quota"), "quota"),
        (Failed(429, "You exceeded your current quota, please check your plan and billing details"), "quota"),
        (answered(429, "slow down", code="insufficient_quota"), "quota"),
        (Failed(402, "Insufficient Balance"), "quota"),
        (Failed(429, "余额不足"), "quota"),
        (Failed(503, "账户已欠费"), "quota"),
        (Failed(401, "quota exceeded"), "quota"),
        # auth, before the status
        (Failed(401), "auth"),
        (Failed(403), "auth"),
        (Failed(400, "Invalid API key"), "auth"),
        (Failed(500, "Unauthorized"), "auth"),
        (answered(500, "no", code="invalid_api_key"), "auth"),
        (Failed(400, "未授权访问"), "auth"),
        # status, before what busy providers say
        *((Failed(status), "transient") for status in sorted(RETRIABLE_STATUS)),
        (Failed(429, "rate limit"), "transient"),
        (Failed(503, "overloaded"), "transient"),
        (Failed(None, status=503), "transient"),
        (Failed(None, code=502), "transient"),
        (openai.APIError("no", REQUEST, body={"code": 502}), "transient"),
        (openai.APIError("no", REQUEST, body={"type": "server_error"}), "transient"),
        (openai.APIError("no", REQUEST, body={"code": "1234"}), "generic"),
        # class names, also of base classes
        *(
            (named(name), "transient")
            for name in ("APITimeoutError", "APIConnectionError", "InternalServerError", "ReadError", "ReadTimeout")
        ),
        (named("RemoteProtocolError"), "transient"),
        (named("ConnectError"), "transient"),
        (named("OpenAITimeoutError", base="APITimeoutError"), "transient"),
        (openai.APIConnectionError(request=REQUEST), "transient"),
        (httpx.RemoteProtocolError("peer closed connection"), "transient"),
        (StreamChunkTimeoutError(120), "transient"),
        # too long, in the words of OpenAI, vLLM, Anthropic, llama.cpp
        (Failed(400, "no", code="context_length_exceeded"), "context"),
        (Failed(400, "This model's maximum context length is 8192 tokens. However, you requested 9000"), "context"),
        (Failed(400, "prompt is too long: 208310 tokens > 200000 maximum"), "context"),
        (Failed(400, "the request exceeds the available context size, try increasing it"), "context"),
        # busy
        (Failed(400, "系统繁忙"), "busy"),
        (Failed(None, "当前请求过多,请稍后重试"), "busy"),
        (Failed(400, "The engine is overloaded"), "busy"),
        (openai.APIError("no", REQUEST, body={"type": "overloaded_error"}), "busy"),
        (openai.APIError("no", REQUEST, body={"code": "rate_limit_exceeded"}), "busy"),
        # else
        (Failed(400), "generic"),
        (Failed(404, "no such model"), "generic"),
        (Failed(None, status="503"), "generic"),
        (Failed(True), "generic"),
        (ValueError("odd"), "generic"),
        (ValueError(), "generic"),
    ],
)
def test_classify(error: Exception, expected: str) -> None:
    assert classify(error) == (expected, expected in ("transient", "busy"))


@pytest.mark.parametrize(
    ("headers", "attempt", "expected"),
    [
        ({}, 1, 1000),
        ({}, 2, 2000),
        ({}, 3, 4000),
        ({}, 4, CAP_MS),
        ({}, 5, CAP_MS),
        ({}, 2000, CAP_MS),
        ({"retry-after": "7"}, 1, 7000),
        ({"retry-after": " 1.5 "}, 1, 1500),
        ({"retry-after": "0"}, 3, 0),
        ({"retry-after": "-3"}, 3, 0),
        ({"retry-after": "9999"}, 1, LONGEST_MS),
        ({"retry-after": "soon"}, 2, 2000),
        ({"retry-after": ""}, 2, 2000),
        ({"retry-after": "Sat, 99 Nov 2026 00:00:00 GMT"}, 2, 2000),
        ({"Retry-After": "7"}, 1, 7000),
        ({"retry-after-ms": "12"}, 1, 12),
        ({"retry-after-ms": "20", "retry-after": "9"}, 1, 20),
        ({"retry-after-ms": "soon", "retry-after": "9"}, 1, 9000),
        ({"retry-after-ms": "-5"}, 1, 0),
        ({"retry-after-ms": "nan"}, 1, 1000),
        ({"retry-after-ms": "inf"}, 1, LONGEST_MS),
        ({"retry-after-ms": "-inf"}, 1, 0),
        (httpx.Headers({"Retry-After": "7"}), 1, 7000),
        ({"retry-after": format_datetime(datetime.now(UTC) - timedelta(days=1))}, 1, 0),
        ({"retry-after": format_datetime(datetime.now(UTC) + timedelta(days=1), usegmt=True)}, 1, LONGEST_MS),
        (
            {"retry-after": (datetime.now(UTC) + timedelta(days=1)).strftime("%a, %d %b %Y %H:%M:%S -0000")},
            1,
            LONGEST_MS,
        ),
        ("nothing that has headers", 1, 1000),
    ],
)
def test_pause(headers: Mapping[str, str], attempt: int, expected: int) -> None:
    assert pause_ms(Failed(429, headers=headers), attempt) == expected


def test_an_address_has_no_secrets() -> None:
    model = SimpleNamespace(model_name="typo-5", openai_api_base="https://me:key@api.example/v1?k=s")
    error = Exception("404")
    assert address(error, model) == "typo-5 at https://api.example/v1"
    error.request = SimpleNamespace(url="https://me:key@api.example:8443/v1/chat?key=s")  # type: ignore[attr-defined]
    assert address(error, model) == "typo-5 at https://api.example:8443/v1/chat"
    assert address(ValueError(), object()) == ""


def test_a_failure_without_a_response_has_a_pause() -> None:
    assert pause_ms(ValueError("odd"), 1) == 1000


# ── the circuit breaker ─────────────────────────────────────────────────────────────────────────────────────────────


def opened() -> Breaker:
    """Open since second 0."""
    breaker = Breaker(threshold=2, recovery_seconds=60)
    for _ in range(2):
        fail(breaker, 0)
    return breaker


def fail(breaker: Breaker, now: float, *, retriable: bool = True) -> None:
    admission = breaker.admit(now)
    assert admission is not None
    breaker.failed(admission, now, retriable=retriable)


def test_it_opens_after_so_many_failures_in_a_row() -> None:
    breaker = Breaker()
    for _ in range(4):
        fail(breaker, 0)
    breaker.succeeded("call")
    for _ in range(4):
        fail(breaker, 0)
    assert breaker.state(0) == "closed"
    fail(breaker, 10)
    assert (breaker.state(69.9), breaker.state(70)) == ("open", "half-open")
    assert (breaker.admit(69.9), breaker.wait_seconds(69)) == (None, 1)


def test_failures_that_another_try_cannot_help_do_not_count() -> None:
    breaker = Breaker(threshold=1)
    fail(breaker, 0, retriable=False)
    assert breaker.state(0) == "closed"
    fail(breaker, 0)
    assert breaker.state(0) == "open"


def test_half_open_it_lets_one_try() -> None:
    breaker = opened()
    assert breaker.admit(60) == "probe"
    assert breaker.admit(60) is None
    breaker.failed("probe", 61, retriable=True)
    assert (breaker.state(120), breaker.admit(120)) == ("open", None)
    assert breaker.admit(121) == "probe"
    breaker.succeeded("probe")
    assert (breaker.state(121), breaker.failures, breaker.wait_seconds(121)) == ("closed", 0, 0)
    fail(breaker, 122)
    assert breaker.state(122) == "closed"


@pytest.mark.parametrize("how", ["freed", "failed"])
def test_a_probe_without_an_outcome_leaves_the_slot(how: str) -> None:
    breaker = opened()
    assert breaker.admit(60) == "probe"
    if how == "freed":
        breaker.freed("probe")
    else:
        breaker.failed("probe", 60, retriable=False)
    assert breaker.state(60) == "half-open"
    assert breaker.admit(60) == "probe"


def test_calls_from_before_it_opened_change_little() -> None:
    breaker = opened()
    breaker.failed("call", 59, retriable=True)
    assert breaker.state(60) == "half-open"
    assert breaker.admit(60) == "probe"
    breaker.freed("call")
    breaker.failed("call", 60, retriable=True)
    assert breaker.admit(60) is None
    breaker.succeeded("call")
    assert breaker.state(60) == "closed"
    breaker.failed("probe", 61, retriable=True)
    assert (breaker.state(61), breaker.failures) == ("closed", 1)

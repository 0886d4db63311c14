"""What failed model calls mean, and when a provider is left alone."""

from __future__ import annotations

import json
import re
import socket
import ssl
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from types import SimpleNamespace
from typing import Any, cast

import httpx
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_openai import StreamChunkTimeoutError

from actors.agent.model.failures import (
    CAP_MS,
    ELSEWHERE,
    LONGEST_MS,
    RETRIABLE_STATUS,
    address,
    classify,
    pause_ms,
    unreachable,
    without_address,
)
from actors.agent.model.refusals import read, text_of_error, window_named
from actors.agent.run.breaker import Breaker
from tests.support.errors import caused

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


def instead_of(error: Exception, text: str = "no") -> Exception:
    """An error that was raised from another one."""
    try:
        raise ValueError(text) from error
    except ValueError as raised:
        return raised


def amazon(code: str, status: int, message: str = "no") -> Exception:
    error = Failed(None, f"An error occurred ({code}): {message}")
    about = {"HTTPStatusCode": status, "HTTPHeaders": {}}
    error.response = {"Error": {"Code": code, "Message": message}, "ResponseMetadata": about}  # type: ignore[assignment]
    return error


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        # quota
        (Failed(429, "insufficient_quota"), "quota"),
        (Failed(429, "You exceeded your current quota, please check your plan and billing details"), "quota"),
        (answered(429, "slow down", code="insufficient_quota"), "quota"),
        (Failed(402, "Insufficient Balance"), "quota"),
        (Failed(429, "余额不足"), "quota"),
        (Failed(503, "账户已欠费"), "transient"),
        (Failed(401, "quota exceeded"), "auth"),
        # auth
        (Failed(401), "auth"),
        (Failed(403), "auth"),
        (Failed(400, "Invalid API key"), "auth"),
        (Failed(500, "Unauthorized"), "transient"),
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
        # an error within a stream, whose response says 200
        (answered(200, "no", type="overloaded_error"), "busy"),
        (Failed(200, "no", code=503), "transient"),
        # an error of LangChain's instead of the SDK's
        (instead_of(Failed(503)), "transient"),
        (
            instead_of(Failed(429, "no", body={"error": {"details": [{"retryDelay": "2s"}]}}), "exceeded quota"),
            "transient",
        ),
        (instead_of(Failed(400, "no", body={"details": [{"reason": "API_KEY_INVALID"}]})), "auth"),
        # Amazon's
        (amazon("ThrottlingException", 429), "transient"),
        (amazon("throttlingException", 400, "Too many tokens, please wait before trying again."), "transient"),
        (amazon("modelStreamErrorException", 400), "transient"),
        (amazon("ServiceUnavailableException", 503), "transient"),
        (amazon("UnrecognizedClientException", 403), "auth"),
        (amazon("ValidationException", 400, "Input is too long for requested model."), "context"),
        (amazon("ValidationException", 400, "The provided model identifier is invalid."), "generic"),
        (ConnectionError("Incomplete Bedrock response stream: missing messageStop event."), "transient"),
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


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("Cannot connect to host models.corp:8443 ssl:default [Connect call failed ('10.0.0.5', 8443)]", "10.0.0.5"),
        ("Connection error. ([Errno 111] Connect call failed ('127.0.0.1', 8000))", "127.0.0.1"),
        ("[Errno 111] Connect call failed ('models.corp', 8443)", "models.corp"),
        ("[Errno 111] Connect call failed ('::1', 8000, 0, 0)", "::1"),
        ("404 at https://me:key@models.corp:8443/v1/chat: no such page", "models.corp"),
        ("proxy http://192.168.7.3:3128/ refused", "192.168.7.3"),
        ("proxy http://[fe80::1]:3128/ refused", "fe80"),
        ("MODELS.CORP does not answer", "MODELS.CORP"),
    ],
)
def test_people_are_not_told_where_a_model_is(text: str, place: str) -> None:
    model = SimpleNamespace(openai_api_base="https://models.corp:8443/v1")
    shown = without_address(text, Exception(), model)
    assert place in text
    assert place not in shown
    assert ELSEWHERE in shown
    assert not {"8443", "8000", "3128"} & set(re.findall(r"\d+", shown))


@pytest.mark.parametrize(
    "text",
    [
        "Limit 6000, Used 5500. Try again in 4.2s. Upgrade at https://x.example/settings/billing",
        "model 1.2.3 was retired at 12:30:45; use models.corporation",
        "This model's maximum context length is 4096 tokens: 5000 were sent",
        "see https://platform.openai.com/docs or 8.8.8.8",
    ],
)
def test_what_a_provider_says_stays(text: str) -> None:
    assert without_address(text, Exception(), SimpleNamespace(base_url="https://models.corp/v1")) == text


REFUSED = "[Errno 111] Connect call failed ('10.0.0.5', 8443)"
CONNECTION = openai.APIConnectionError(request=cast(Any, None))


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (caused(CONNECTION, ConnectionRefusedError(111, REFUSED)), "it refuses connections"),
        (
            caused(
                Exception("All connection attempts failed"), OSError("several"), ConnectionRefusedError(111, REFUSED)
            ),
            "it refuses connections",
        ),
        (OSError(113, "No route to host"), "there is no way to it in the network"),
        (caused(Exception(), socket.gaierror(-2, "models.corp")), "its name is not known"),
        (ssl.SSLCertVerificationError("models.corp"), "its certificate is not accepted"),
        (ssl.SSLError("WRONG_VERSION_NUMBER"), "no secure connection can be made"),
        (caused(Exception(), TimeoutError()), "it does not answer in time"),
        (ConnectionResetError(104, "reset by 10.0.0.5"), "the connection broke"),
        (TimeoutError("the model sent nothing for 60 s"), None),
        (Failed(503), None),
        (caused(Failed(503), ConnectionResetError()), None),
        (ValueError("the model sent an empty answer"), None),
    ],
)
def test_why_a_server_cannot_be_reached_is_said_in_words(error: BaseException, words: str | None) -> None:
    assert unreachable(error) == (words and f"The model's server cannot be reached: {words}")


def test_an_address_has_no_secrets() -> None:
    model = SimpleNamespace(model_name="typo-5", openai_api_base="https://me:key@api.example/v1?k=s")
    error = Exception("404")
    assert address(error, model) == "typo-5 at https://api.example/v1"
    error.request = SimpleNamespace(url="https://me:key@api.example:8443/v1/chat?key=s")  # type: ignore[attr-defined]
    assert address(error, model) == "typo-5 at https://api.example:8443/v1/chat"
    assert address(ValueError(), object()) == ""


def test_a_failure_without_a_response_has_a_pause() -> None:
    assert pause_ms(ValueError("odd"), 1) == 1000


# ── in providers' own words ─────────────────────────────────────────────────────────────────────────────────────────

TOO_LONG: list[tuple[int | None, Any, int | None]] = [
    # status, body, the window that it names
    (400, {"error": {"message": "This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens. Please reduce the length of the messages.", "code": "context_length_exceeded"}}, 8192),  # noqa: E501
    (400, {"error": {"message": "Your input exceeds the context window of this model. Please adjust your input and try again."}}, None),  # noqa: E501
    (400, {"type": "error", "error": {"type": "invalid_request_error", "message": "prompt is too long: 208310 tokens > 200000 maximum"}}, 200000),  # noqa: E501
    (400, {"error": {"message": "input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000, decrease input length or `max_tokens` and try again"}}, 200000),  # noqa: E501
    (413, {"error": {"type": "request_too_large", "message": "Request exceeds the maximum size"}}, None),
    (413, "", None),
    (413, "<html><head><title>413</title></head><body>Request Entity Too Large</body></html>", None),
    (413, {"error": {"message": "Request too large for model `m` on tokens per minute (TPM): Limit 6000, Requested 9000, please reduce your message size and try again.", "type": "tokens", "code": "rate_limit_exceeded"}}, 6000),  # noqa: E501
    (429, {"error": {"message": "Request too large for gpt-4o on tokens per min (TPM): Limit 30000, Requested 52000.", "type": "tokens", "code": "rate_limit_exceeded"}}, 30000),  # noqa: E501
    (400, [{"error": {"code": 400, "message": "The input token count (1200001) exceeds the maximum number of tokens allowed (1048576).", "status": "INVALID_ARGUMENT"}}], 1048576),  # noqa: E501
    (400, {"message": "Input is too long for requested model."}, None),
    (400, {"message": "Too many input tokens. Max input tokens: 8192, request input token count: 9000"}, 8192),
    (400, {"code": "Client specified an invalid argument", "error": "This model's maximum prompt length is 131072 but the request contains 537812 tokens."}, 131072),  # noqa: E501
    (400, {"error": {"message": "Invalid request: Your request exceeded model token limit: 262144 (requested: 270001)", "type": "invalid_request_error"}}, 262144),  # noqa: E501
    (400, {"error": {"code": "invalid_parameter_error", "message": "<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, 98304]"}}, 98304),  # noqa: E501
    (400, {"error": {"code": "1261", "message": "Prompt exceeds max length"}}, None),
    (400, {"error": {"message": "Prompt 超长"}}, None),
    (400, {"error": {"code": "InvalidParameter", "message": "Total tokens of image and text exceed max message tokens."}}, None),  # noqa: E501
    (400, {"error": {"message": "prompt token count of 140000 exceeds the limit of 128000", "code": "model_max_prompt_tokens_exceeded"}}, 128000),  # noqa: E501
    (422, {"error": {"message": "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 8193. Given: 9000 `inputs` tokens and 512 `max_new_tokens`"}}, 8193),  # noqa: E501
    (400, {"object": "error", "message": "The prompt (total length 9000) is longer than the maximum model length of 8192."}, 8192),  # noqa: E501
    (400, {"error": {"message": "输入长度超过模型最大长度限制"}}, None),
    (400, {"error": {"message": "the request exceeds the available context size. try increasing the context size or enable context shift"}}, None),  # noqa: E501
    (400, {"error": {"code": 400, "message": "request (9001 tokens) exceeds the available context size (4096 tokens), try increasing it", "type": "exceed_context_size_error"}}, 4096),  # noqa: E501
    (400, {"error": "Trying to keep the first 9001 tokens when context the overflows. However, the model is loaded with context length of only 4096 tokens"}, 4096),  # noqa: E501
    (500, {"error": "The number of tokens to keep from the initial prompt is greater than the context length."}, None),
    (400, {"message": "Prompt contains 40000 tokens and 0 draft tokens, too large for model with 32768 maximum context length"}, 32768),  # noqa: E501
    (400, {"message": "too many tokens: total number of tokens in the prompt cannot exceed 4081 - received 5000."}, 4081),  # noqa: E501
    (400, {"error": {"message": "Please reduce the length of the messages or completion. Current length is 9000 while limit is 8192"}}, 8192),  # noqa: E501
    (400, {"error": {"message": "The prompt is too long: 140000, model maximum context length: 131071"}}, 131071),
    (400, {"error": {"message": "The input (9000 tokens) is longer than the model's context length (8192 tokens)."}}, 8192),  # noqa: E501
    (413, {"error": {"code": "tokens_limit_reached", "message": "Request body too large for gpt-4o model. Max size: 8000 tokens."}}, 8000),  # noqa: E501
    (400, {"error": {"message": "context window exceeds limit (2013)"}}, None),
    (400, {"error_code": 336007, "error_msg": "the max input characters is 11200"}, None),
    (400, {"detail": "Requested input length 9000 exceeds maximum input length 8192"}, 8192),
    (400, {"detail": [{"loc": ["body"], "msg": "prompt tokens too long"}]}, None),
    (400, {"error": {"message": "Invalid 'messages[3].content': string too long. Expected a string with maximum length 10485760.", "code": "string_above_max_length"}}, None),  # noqa: E501
    (400, {"error": {"message": "Provider returned error", "code": 400, "metadata": {"raw": '{"error":{"message":"prompt is too long: 210000 tokens > 200000 maximum"}}'}}}, 200000),  # noqa: E501
    (None, {"message": "This endpoint's maximum context length is 131072 tokens.", "code": 400}, 131072),
]  # fmt: skip
ORDINARY: list[tuple[int, Any, str]] = [
    (400, {"error": {"message": "max_tokens is too large: 100000. This model supports at most 16384 completion tokens"}}, "generic"),  # noqa: E501
    (400, {"error": {"message": "max_tokens: 100000 > 8192, which is the maximum allowed number of output tokens for m"}}, "generic"),  # noqa: E501
    (400, {"error": {"message": "Invalid 'tools[0].function.name': string too long. Expected a string with maximum length 64.", "code": "string_above_max_length"}}, "generic"),  # noqa: E501
    (400, {"error": {"message": "messages.0.content.1.image.source.base64: image exceeds 5 MB maximum"}}, "generic"),
    (400, {"error": {"message": "Invalid 'tools': array too long. Expected an array with maximum length 128"}}, "generic"),  # noqa: E501
    (400, {"error": {"message": "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."}}, "generic"),  # noqa: E501
    (400, {"error": {"message": "Missing required parameter: messages[0].content"}}, "generic"),
    (400, {"error": {"message": "messages[4]: the tool result quotes an authentication error; role tool must follow a call"}}, "generic"),  # noqa: E501
    (400, {"error": {"message": "Expected a token of type string in the request"}}, "generic"),
    (404, {"error": {"message": "The model `m` does not exist or you do not have access to it."}}, "generic"),
    (403, {"error": {"message": "Country not supported"}}, "auth"),
    (401, {"error": {"message": "token expired or incorrect"}}, "auth"),
    (400, {"error": {"code": 400, "message": "API key not valid. Please pass a valid API key.", "status": "INVALID_ARGUMENT"}}, "auth"),  # noqa: E501
    (400, {"code": "x", "error": "Incorrect API key provided: ab***cd."}, "auth"),
    (403, {"error": {"message": "Your account balance is insufficient: insufficient balance"}}, "quota"),
    (400, {"error": {"code": "Arrearage", "message": "Access denied, your account is not in good standing"}}, "quota"),
    (429, {"error": {"message": "You exceeded your current quota, please check your plan and billing details.", "code": "insufficient_quota"}}, "quota"),  # noqa: E501
    (429, {"error": {"message": "Rate limit reached for m on tokens per minute (TPM): Limit 6000, Used 5500, Requested 900. Please try again in 4.2s. Upgrade at https://x.example/settings/billing", "type": "tokens", "code": "rate_limit_exceeded"}}, "transient"),  # noqa: E501
    (429, {"error": {"message": "Rate limit reached on requests per min (RPM): Limit 3. Add a payment method at https://x.example/account/billing."}}, "transient"),  # noqa: E501
    (429, {"error": {"code": 429, "message": "You exceeded your current quota, please check your plan and billing details. Please retry in 2.1s.", "status": "RESOURCE_EXHAUSTED", "details": [{"retryDelay": "2s"}]}}, "transient"),  # noqa: E501
    (429, [{"error": {"code": 429, "message": "You exceeded your current quota.", "details": [{"retryDelay": "34s"}]}}], "transient"),  # noqa: E501
    (429, {"error": {"message": "exceed account rate limit (RPM) 额度"}}, "transient"),
    (429, {"error": {"message": "额度 used", "code": "x"}}, "quota"),
    (502, "<html><body>Bad gateway. Contact billing@x.example</body></html>", "transient"),
    (503, "forbidden words in a page about insufficient_balance", "transient"),
    *((status, "", "transient") for status in (500, 520, 522, 524, 529, 408, 499)),
    (501, "", "generic"),
]  # fmt: skip


SDK = openai.AsyncOpenAI(api_key="k")


def refused(status: int | None, body: Any, headers: Mapping[str, str] | None = None) -> openai.APIError:
    """The error that the SDK makes of a response, or of an error within a stream."""
    if status is None:
        return openai.APIError(body["message"], REQUEST, body=body)
    content = body if isinstance(body, str) else json.dumps(body)
    response: Any = httpx.Response(status, content=content.encode(), headers=headers, request=REQUEST)
    return SDK._make_status_error_from_response(response)


@pytest.mark.parametrize(("status", "body", "window"), TOO_LONG)
def test_every_wording_of_a_request_that_is_too_long(status: int | None, body: Any, window: int | None) -> None:
    error = refused(status, body)
    assert classify(error) == ("context", False)
    assert window_named(read(error).text) == window


@pytest.mark.parametrize(("status", "body", "expected"), ORDINARY)
def test_other_errors_are_not_taken_for_it(status: int, body: Any, expected: str) -> None:
    assert classify(refused(status, body)) == (expected, expected == "transient")


NOUNS = ("prompt", "input", "conversation", "request")
TEMPLATES = (
    "The {noun} has {more} tokens, which exceeds the maximum of {limit} tokens",
    "{noun} of {more} tokens is longer than the maximum context length of {limit}",
    "too many tokens in the {noun}: {more} > {limit}",
    "Your {noun} is too long ({more} tokens); this model takes at most {limit} tokens",
)


@given(
    st.sampled_from((400, 422)),
    st.sampled_from(NOUNS),
    st.sampled_from(TEMPLATES),
    st.integers(1000, 10**7),
    st.sampled_from(("{}", '{{"error": {}}}', '{{"error": {{"message": {}}}}}', '[{{"error": {{"message": {}}}}}]')),
)
def test_the_general_rule(status: int, noun: str, template: str, limit: int, shape: str) -> None:
    text = template.format(noun=noun, more=limit + 1, limit=limit)
    body = text if shape == "{}" else json.loads(shape.format(json.dumps(text)))
    assert classify(refused(status, body)) == ("context", False)


@given(
    st.sampled_from((429, 500, 502, 503, 520, 529)),
    st.sampled_from(("billing", "unauthorized", "invalid api key", "forbidden", "authentication", "payment required")),
)
def test_the_status_wins_over_quoted_words(status: int, word: str) -> None:
    assert classify(refused(status, f"the upstream quotes {word}", {"retry-after": "1"})) == ("transient", True)


@pytest.mark.parametrize(
    ("body", "headers", "expected"),
    [
        ("Please try again in 4.2s.", {}, 4200),
        ("Please try again in 4.2s.", {"retry-after": "1"}, 1000),
        ("Please try again in 350ms. Visit https://x.example", {}, 350),
        ("Please try again in 1m30s", {}, 90_000),
        ("Please try again in 7m12.5s", {}, 432_500),
        ("retry after 20 seconds", {}, 20_000),
        ("Please wait 2 minutes before trying again", {}, 120_000),
        ("请 3 秒后重试", {}, 3000),
        ({"error": {"message": "quota. Please retry in 2.1s.", "details": [{"retryDelay": "2s"}]}}, {}, 2000),
        ([{"error": {"details": [{"@type": "RetryInfo", "retryDelay": "34.07s"}]}}], {}, 34_070),
        ("try again in 99h", {}, LONGEST_MS),
        ("slow down", {"x-ratelimit-reset-requests": "6m0s", "x-ratelimit-remaining-requests": "0"}, 360_000),
        ("slow down", {"x-ratelimit-reset-tokens": "8.64s", "x-ratelimit-remaining-tokens": "900"}, 1000),
        ("slow down", {"x-ratelimit-reset-requests": "1s", "x-ratelimit-reset-tokens": "350ms"}, 1000),
        ("slow down", {"x-ratelimit-reset": "17"}, 17_000),
        ("slow down", {"ratelimit-reset": "3.5"}, 3500),
        ("slow down", {"x-ratelimit-reset": "1"}, 1000),
        ("slow down", {"x-ratelimit-reset": "1000000001"}, 0),
        ("slow down", {"x-ratelimit-reset": "1000000000001"}, 0),
        ("slow down", {"anthropic-ratelimit-requests-reset": "2024-01-01T00:00:00Z"}, 0),
        ("slow down", {"anthropic-ratelimit-requests-reset": "2999-01-01T00:00:00Z"}, LONGEST_MS),
        ("slow down", {"x-ratelimit-reset": "soon"}, 1000),
        ("try again in 2s", {"x-ratelimit-reset": "60"}, 2000),
        ("slow down", {"x-ratelimit-reset": "60", "retry-after": "3"}, 3000),
        ("try again later", {}, 1000),
    ],
)
def test_the_pause_that_a_provider_asks_for(body: Any, headers: Mapping[str, str], expected: int) -> None:
    assert pause_ms(refused(429, body, headers), 1) == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"error": {"message": "no such tool"}}, "Error code: 400 - no such tool"),
        ({"error": "no such tool"}, "Error code: 400 - no such tool"),
        ({"code": "x", "error": "no such tool"}, "Error code: 400 - no such tool"),
        ([{"error": {"code": 400, "message": "no such tool"}}], "Error code: 400 - no such tool"),
        ({"detail": "no such tool"}, "Error code: 400 - no such tool"),
        ({"detail": [{"loc": ["body"], "msg": "no such tool"}]}, "Error code: 400 - no such tool"),
        ({"code": 1, "msg": "no such tool", "success": False}, "Error code: 400 - no such tool"),
        ("no such tool", "Error code: 400 - no such tool"),
        ("<html><style>p {}</style><p>no such <b>tool</b></p></html>", "Error code: 400 - no such tool"),
        (
            {"error": {"message": "Provider error", "metadata": {"raw": '{"error":{"message":"no such tool"}}'}}},
            "Error code: 400 - Provider error - no such tool",
        ),
        ("x" * 9999, f"Error code: 400 - {'x' * 500}"),
        ("", "Error code: 400"),
        ('{"error": ', 'Error code: 400 - {"error":'),
    ],
)  # fmt: skip
def test_what_the_provider_said_is_read(body: Any, expected: str) -> None:
    assert text_of_error(refused(400, body)) == expected


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=20), lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(("error", "message", "code", "detail", "metadata", "raw", "retryDelay")), inner, max_size=4), max_leaves=12))  # noqa: E501  # fmt: skip
def test_any_body_is_read(body: Any) -> None:
    error = refused(400, body)
    assert text_of_error(error).startswith("Error code: 400")
    assert classify(error)[0] in ("quota", "auth", "transient", "context", "busy", "generic")
    assert pause_ms(error, 1) >= 0


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


@pytest.mark.parametrize("body", ["plain boom", {"message": "plain boom", "code": "x"}])
def test_an_error_within_a_stream_says_what_it_is(body: Any) -> None:
    error = openai.APIError("An error occurred during streaming", REQUEST, body=body)
    assert text_of_error(error).endswith(" - plain boom")


def test_headers_of_limits_do_not_make_an_empty_account_wait() -> None:
    headers = {"x-ratelimit-reset-requests": "20ms"}
    spent = {"error": {"message": "You exceeded your current quota.", "code": "insufficient_quota"}}
    passing = {"error": {"message": "You exceeded your current quota."}}
    assert classify(refused(429, spent, headers)) == ("quota", False)
    assert classify(refused(429, passing, headers)) == ("transient", True)

"""Answers as providers give them: every form becomes the right answer, or an error with the provider's words."""

from __future__ import annotations

import json
from typing import Any

import pytest

from actors.agent.model.failures import classify, pause_ms
from actors.agent.model.refusals import text_of_error
from adapters.models.chunks import Chunk, Garbled, Refused, read
from adapters.models.reader import Empty, Reader
from core.ports.models import Piece
from tests.support.answers import body_of, load, outcome, refused

pytestmark = pytest.mark.anyio

REPORTED, PROVIDERS = load("reported"), load("providers")
STREAMS = {**PROVIDERS, **{name: case for name, case in REPORTED.items() if case.get("status", 200) == 200}}
ABOUT = ("stream", "body", "status", "headers", "times", "error", "reason")


@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize("size", [1, 7, 1 << 20])
async def test_an_answer_becomes_what_it_is(name: str, size: int) -> None:
    case = STREAMS[name]
    body = body_of(case)
    result = await outcome([body[place : place + size] for place in range(0, len(body), size)])
    if "error" in case:
        assert result["reason"] == case["reason"]
        assert case["error"] in result["error"] or result["error"] == "empty"
        return
    expected = {key: value for key, value in case.items() if key not in ABOUT}
    assert {key: result.get(key) for key in {*expected, "calls", "error"}} == {"calls": None, "error": None} | expected


@pytest.mark.parametrize("name", [name for name, case in REPORTED.items() if case.get("status", 200) != 200])
def test_a_refusal_says_what_the_provider_said(name: str) -> None:
    case = REPORTED[name]
    error = refused(case)
    assert classify(error)[0] == case["reason"]
    assert case["error"] in text_of_error(error)
    if case["status"] == 429:
        assert 1000 <= pause_ms(error, 1) <= 20_000


@pytest.mark.parametrize("name", PROVIDERS)
async def test_line_ends_and_marks_are_those_of_event_streams(name: str) -> None:
    body = body_of(PROVIDERS[name])
    expected = await outcome([body])
    for other in (body.replace(b"\n", b"\r\n"), body.replace(b"\n", b"\r"), b"\xef\xbb\xbf" + body, b"\n\n" + body):
        for size in (3, 1 << 20):
            assert await outcome([other[place : place + size] for place in range(0, len(other), size)]) == expected


@pytest.mark.parametrize("name", ["openai", "azure", "anthropic", "deepseek", "dashscope", "llama_cpp", "mistral"])
def test_usual_chunks_are_decoded_at_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(*_: Any, **__: Any) -> Any:
        raise AssertionError("not a usual chunk")

    monkeypatch.setattr("adapters.models.chunks.mended", slow)
    list(Reader().feed(body_of(PROVIDERS[name])))


def pieces_of(*events: Any) -> list[Piece]:
    reader = Reader()
    body = b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events) + b"data: [DONE]\n\n"
    return [*reader.feed(body), *reader.end()]


def total(pieces: list[Piece], *path: str) -> int:
    sum_ = 0
    for piece in pieces:
        value: Any = piece.usage
        for name in path:
            value = (value or {}).get(name)
        sum_ += value or 0
    return sum_


def test_counts_that_grow_are_counted_once() -> None:
    usages = [
        {"prompt_tokens": 100, "completion_tokens": 0},
        {"prompt_tokens": 100, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 64}},
        {"prompt_tokens": 0, "completion_tokens": 20, "completion_tokens_details": {"reasoning_tokens": 5}},
    ]
    pieces = pieces_of(*({"choices": [{"delta": {"content": "x"}}], "usage": usage} for usage in usages))
    assert [total(pieces, name) for name in ("input_tokens", "output_tokens", "total_tokens")] == [100, 20, 120]
    assert total(pieces, "input_token_details", "cache_read") == 64
    assert total(pieces, "output_token_details", "reasoning") == 5


@pytest.mark.parametrize("usage", [[], "many", {"prompt_tokens": "x", "completion_tokens": [1]}, {"total_tokens": -4}])
def test_counts_that_are_none_are_none(usage: Any) -> None:
    pieces = pieces_of({"choices": [{"delta": {"content": "x"}}], "usage": usage})
    assert [total(pieces, name) for name in ("input_tokens", "output_tokens", "total_tokens")] == [0, 0, 0]


@pytest.mark.parametrize(
    "body", [b"", b"\n\n", b": keep-alive\n\n", b"data: [DONE]\n\n", b"data: null\n\ndata: [DONE]\n\n"]
)
def test_nothing_is_no_answer(body: bytes) -> None:
    reader = Reader()
    list(reader.feed(body))
    with pytest.raises(Empty):
        list(reader.end())


@pytest.mark.parametrize(
    ("data", "failed", "words"),
    [
        (b'{"message": "boom", "code": "x"}', True, "boom"),
        (b'"boom"', True, "boom"),
        (b'{"error": "boom"}', False, "boom"),
        (b'{"error": {"message": "boom"}}', False, "boom"),
        (b'[{"error": {"message": "boom"}}]', False, "boom"),
        (b'{"detail": [{"msg": "boom"}]}', False, "boom"),
        (b'{"type": "error", "error": {"type": "overloaded_error", "message": "boom"}}', False, "boom"),
        (b'{"code": 1, "msg": "boom"}', False, "boom"),
        (b'{"error": {"code": 7}}', False, "7"),
    ],
)
def test_an_error_of_any_form_is_one(data: bytes, failed: bool, words: str) -> None:
    with pytest.raises(Refused, match=words):
        list(read(data, failed=failed))


@pytest.mark.parametrize("data", [b"7", b'"x"', b"true", b"{", b"[1]", b"\xff\xfe", b"[" * 100_000])
def test_what_is_no_event_is_named(data: bytes) -> None:
    with pytest.raises(Garbled, match="The stream has an event that is no"):
        list(read(data))


def test_a_byte_that_is_no_text_costs_that_byte() -> None:
    [chunk] = read(b'{"choices": [{"delta": {"content": "a\xffb"}}]}')
    assert isinstance(chunk, Chunk)
    assert chunk.choices[0].delta.content == "a\ufffdb"

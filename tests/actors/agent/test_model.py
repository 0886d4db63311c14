"""Asking the model: faults, retries, what is recorded of them."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlsplit

import pytest
from nats.aio.msg import Msg
from structlog.testing import capture_logs

from actors.agent.model import ask
from core.events import ModelCompleted, ModelFailed, RunRequested
from core.runs.previews import Preview, decode
from tests.support.model_server import Failure, Turn
from tests.support.nats import eventually
from tests.support.ports import free_port
from tests.support.workers import Client, site

pytestmark = pytest.mark.anyio

SLOW_DOWN = "slow down, rate limit"


async def _is_previewed(previews: Sequence[Preview], message: str) -> bool:
    return any(preview.message == message for preview in previews)


@asynccontextmanager
async def heard(client: Client) -> AsyncIterator[list[Preview]]:
    """The previews of all runs."""
    previews: list[Preview] = []

    async def on_preview(msg: Msg) -> None:
        preview = decode(msg.data)
        if isinstance(preview, Preview):
            previews.append(preview)

    subscription = await client.system.bus.subscribe(client.system.bus.names.tok("*"), on_preview)
    yield previews
    await subscription.unsubscribe()


@pytest.mark.parametrize(
    ("headers", "wait"), [({"retry-after": "0.03"}, 30), ({"retry-after-ms": "20", "retry-after": "9"}, 20)]
)
async def test_a_busy_model_is_asked_again_when_it_wishes(tmp_path: Path, headers: dict[str, str], wait: int) -> None:
    busy = Failure(status=429, message=SLOW_DOWN, code="rate_limit", headers=headers)
    async with site(tmp_path, {"m": [Turn(text="Here.", error=busy, times=2)]}) as (client, models):
        messages = await client.said(await client.thread(), "Hi")
        failures = [r.event for r in await client.records("t1", ModelFailed)]
    assert messages[-1]["content"] == "Here."
    assert [record.outcome for record in models.requests] == ["failed", "failed", "answered"]
    assert [(f.reason, f.attempt, f.max_attempts, f.wait_ms) for f in failures if isinstance(f, ModelFailed)] == [
        ("transient", 1, 3, wait),
        ("transient", 2, 3, wait),
    ]


async def test_a_model_that_stays_busy_fails_the_run(tmp_path: Path) -> None:
    busy = Failure(status=503, headers={"retry-after": "0"})
    async with site(tmp_path, {"m": [Turn(error=busy)]}) as (client, models):
        run = await client.ended(await client.thread(), await client.ask("t1", "Hi"))
        failures = [r.event for r in await client.records("t1", ModelFailed)]
    assert run.status == "error"
    assert run.error is not None
    assert "scripted failure" in run.error.text
    assert len(models.requests) == 3
    assert [f.wait_ms for f in failures if isinstance(f, ModelFailed)] == [0, 0, None]


@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        (Failure(status=401, message="Invalid API key", code="invalid_api_key"), "auth"),
        (Failure(status=429, message="You exceeded insufficient_quota", code="insufficient_quota"), "quota"),
    ],
)
async def test_what_cannot_get_better_is_not_retried(tmp_path: Path, failure: Failure, reason: str) -> None:
    async with site(tmp_path, {"m": [Turn(error=failure)]}) as (client, models):
        run = await client.ended(await client.thread(), await client.ask("t1", "Hi"))
        [failed] = [r.event for r in await client.records("t1", ModelFailed)]
    assert run.status == "error"
    assert run.error is not None
    assert failure.message in run.error.text
    assert isinstance(failed, ModelFailed)
    assert (failed.reason, failed.wait_ms) == (reason, None)
    assert len(models.requests) == 1


async def test_an_endpoint_that_is_not_there_is_named(tmp_path: Path) -> None:
    place = f"127.0.0.1:{free_port()}"
    absent = {"name": "gone", "model": "gone", "api_key": "none", "base_url": f"http://{place}/v1"}
    async with site(tmp_path, {}, more_models=[absent], runs={"max_model_attempts": 1}) as (client, _):
        run = await client.ended(await client.thread(), await client.ask("t1", "Hi", "gone"))
        records = await client.records("t1")
    [failed] = [record.event for record in records if isinstance(record.event, ModelFailed)]
    assert run.error is not None
    assert run.error.text == failed.text == "The model's server cannot be reached: it refuses connections (model gone)"
    assert not [record for record in records if place.encode() in record.raw], "people are told no place"


async def test_a_connection_that_breaks_in_the_middle_is_tried_again_as_another_message(tmp_path: Path) -> None:
    turn = Turn(text="one two three four", disconnect_after=2, times=1)
    async with site(tmp_path, {"m": [turn]}) as (client, models):
        await client.thread()
        async with heard(client) as previews:
            messages = await client.said("t1", "Hi")
            await eventually(partial(_is_previewed, previews, messages[-1]["id"]))  # a busy process sends them later
        failures = await client.records("t1", ModelFailed)
        answers = await client.records("t1", ModelCompleted)
    assert [record.outcome for record in models.requests] == ["disconnected", "answered"]
    assert len(failures) == len(answers) == 1
    assert messages[-1]["content"] == "one two three four"
    previewed = list(dict.fromkeys(preview.message for preview in previews))
    assert len(previewed) == 2
    assert previewed[1] == messages[-1]["id"]
    assert "".join(p.text for p in previews if p.message == previewed[0]).startswith("one")


async def test_a_known_question_in_other_words_is_answered(tmp_path: Path) -> None:
    async with site(tmp_path, {"m": [Turn(text="an answer")]}) as (client, models):
        await client.thread()
        for number, words in enumerate(("first words", "other words")):
            request = RunRequested(input={"messages": [{"type": "human", "id": "msg-0", "content": words}]})
            await client.system.intake.request_run("t1", f"run-{number}", request)
            await client.ended("t1", f"run-{number}")
        messages = (await client.state("t1")).messages
    assert [message["type"] for message in messages] == ["human", "ai"]
    assert messages[0]["content"] == "other words"
    assert len(models.requests) == 2


@pytest.mark.parametrize(("failures", "requests"), [(0, 1), (1, 2)])
async def test_a_known_question_in_the_same_words_is_a_repetition_unless_its_answer_failed(
    tmp_path: Path, failures: int, requests: int
) -> None:
    refused = Failure(status=400, message="no")
    turn = Turn(text="an answer", error=refused, times=failures) if failures else Turn(text="an answer")
    async with site(tmp_path, {"m": [turn]}) as (client, models):
        await client.thread()
        for number in range(2):
            request = RunRequested(input={"messages": [{"type": "human", "id": "msg-0", "content": "Hi"}]})
            await client.system.intake.request_run("t1", f"run-{number}", request)
            run = await client.ended("t1", f"run-{number}")
        messages = (await client.state("t1")).messages
    assert [(m["type"], m["content"]) for m in messages] == [("human", "Hi"), ("ai", "an answer")]
    assert (run.status, len(models.requests)) == ("success", requests)


async def test_failures_of_one_person_do_not_close_a_model_for_another(tmp_path: Path) -> None:
    down = Failure(status=503, headers={"retry-after": "0"})
    circuit = {"failure_threshold": 1, "recovery_timeout_sec": 600}
    async with site(tmp_path, {"m": [Turn(text="Back.", error=down, times=3)]}, circuit_breaker=circuit) as (client, _):
        for user, name, error in (("eve", "t1", True), ("eve", "t2", True), ("ada", "t3", False)):
            await client.system.intake.create_thread(name, user=user)
            run = await client.ended(name, await client.ask(name, "Hi"))
            assert (run.error is not None) is error, name
    assert run.status == "success"


async def test_a_run_whose_answer_is_empty_twice_failed(tmp_path: Path) -> None:
    async with site(tmp_path, {"m": [Turn()]}) as (client, models):
        run = await client.ended(await client.thread(), await client.ask("t1", "Hi"))
        messages = (await client.state("t1")).messages
    assert [(m["type"], m["content"]) for m in messages[:2]] == [("human", "Hi"), ("ai", "")]
    assert (run.status, run.error and run.error.error) == ("error", "EmptyAnswer")
    assert messages[2]["content"].startswith("The model ended without an answer")
    assert (len(messages), len(models.requests)) == (3, 2)


async def test_a_refusal_names_the_model_and_the_process_says_its_address(tmp_path: Path) -> None:
    """The log of a thread is for people, who are not told where a model is."""
    with capture_logs() as lines:
        async with site(tmp_path, {"m": [Turn(error=Failure(status=404, message="Not Found"))]}) as (client, models):
            run = await client.ended(await client.thread(), await client.ask("t1", "Hi"))
            records = await client.records("t1")
    [failed] = [record.event for record in records if isinstance(record.event, ModelFailed)]
    assert "Not Found" in failed.text
    assert failed.text.endswith("(model m)")
    assert run.error is not None
    assert run.error.text == failed.text == failed.public
    assert not [record for record in records if urlsplit(models.url).netloc.encode() in record.raw]
    assert [line["asked"] for line in lines if line["event"] == "a model call failed"] == [
        f"m at {models.url}/chat/completions"
    ]


async def test_a_conversation_that_is_too_long_is_said_to_be(tmp_path: Path) -> None:
    long = Failure(status=400, message="maximum context length is 8192 tokens", code="context_length_exceeded")
    async with site(tmp_path, {"m": [Turn(error=long)]}) as (client, models):
        await client.ended(await client.thread(), await client.ask("t1", "Hi"))
        apology = (await client.state("t1")).messages[-1]
    assert apology["content"].startswith("This conversation is too long for the model")
    assert (apology["additional_kwargs"]["error_reason"], len(models.requests)) == ("context", 1)


async def test_a_model_that_is_down_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The circuit is closed again by the first call that succeeds after the pause."""
    down = Failure(status=503, headers={"retry-after": "0"})
    circuit = {"failure_threshold": 2, "recovery_timeout_sec": 600}
    script = [Turn(text="Back.", error=down, times=6)]
    async with site(tmp_path, {"m": script}, circuit_breaker=circuit) as (client, models):
        thread = await client.thread()
        for _ in range(2):
            await client.ended(thread, await client.ask(thread, "Hi"))
        before = len(models.requests)
        run = await client.ended(thread, await client.ask(thread, "Hi"))
        assert run.error
        assert (run.error.error, len(models.requests)) == ("ModelDown", before)
        [*_, failed] = await client.records(thread, ModelFailed)
        assert isinstance(failed.event, ModelFailed)
        assert failed.event.reason == "circuit_open"
        monkeypatch.setattr(ask, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + 600))
        assert (await client.said(thread, "Hi"))[-1]["content"] == "Back."

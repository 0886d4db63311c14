"""A request leaves only while the run is still this worker's."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from langchain_core.messages import AIMessageChunk, HumanMessage
from langchain_core.outputs import ChatGenerationChunk

from actors.agent.model import ask, assembly
from actors.agent.run.attempt import Candidate
from actors.agent.run.breaker import Breaker
from adapters.models import connections, factory
from core.errors import OwnershipLost
from core.events import ModelFailed
from tests.actors.agent.fakes import Fake
from tests.actors.agent.turns import Kept, turn
from tests.support import model_server
from tests.support.model_server import Failure, ModelServer


class TakenOver(Kept):
    """Of a run that another worker takes over after so many looks at the log."""

    looks = 0

    def __init__(self, journal: Kept, after: int) -> None:
        super().__init__(journal.state)
        self.after = after

    async def confirm(self) -> None:
        self.looks += 1
        if self.looks > self.after:
            raise OwnershipLost("taken over by other")


@pytest.mark.parametrize("after", [0, 1])
async def test_a_run_that_was_taken_over_asks_no_model(after: int) -> None:
    await _asks_until_taken_over(after, model_server.Turn(text="Yes."), requests=0)


async def test_nor_does_it_ask_again(monkeypatch: pytest.MonkeyPatch) -> None:
    failing = model_server.Turn(error=Failure(status=503, headers={"retry-after": "0"}))
    failures = await _asks_until_taken_over(3, failing, requests=1)
    assert [failed.attempt for failed in failures] == [1]


class Endless(Fake):
    """Never comes to an end."""

    async def _astream(self, *_: Any, **__: Any) -> AsyncIterator[ChatGenerationChunk]:
        while True:
            yield ChatGenerationChunk(message=AIMessageChunk(content="and "))


async def test_an_answer_without_an_end_is_dropped_and_not_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assembly, "ANSWER_BYTES", 10_000)
    asking = turn()
    assert isinstance(asking.journal, Kept)
    candidate = Candidate("m", Endless(), Breaker())
    with pytest.raises(ask.ModelGaveUp, match="has more than 10000 bytes, so it was dropped"):
        await ask.answered(asking, [candidate], lambda model: model.astream, [HumanMessage("hi")])
    [failed] = asking.journal.events
    assert isinstance(failed, ModelFailed)
    assert (failed.error, failed.attempt, failed.wait_ms) == ("AnswerTooLong", 1, None)


async def test_a_body_that_does_not_end_is_named_whatever_the_sdk_makes_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "ANSWER_BYTES", 1000)
    asking = turn()
    async with ModelServer({"m": [model_server.Turn(text="and " * 1000)]}) as models:
        entry = {"name": "m", "model": "m", "api_key": "k", "base_url": models.url, "disable_streaming": True}
        candidate = Candidate("m", factory.build(entry), Breaker())
        with pytest.raises(ask.ModelGaveUp, match="has more than 1000 bytes, so it was dropped"):
            await ask.answered(asking, [candidate], lambda model: model.astream, [HumanMessage("hi")])
        await factory.close()
    assert len(models.requests) == 1


async def _asks_until_taken_over(after: int, scripted: model_server.Turn, requests: int) -> list[ModelFailed]:
    """Returns the failures that were recorded before. Each try looks twice: before it, and before its request."""
    asking = turn()
    assert isinstance(asking.journal, Kept)
    journal = asking.journal = TakenOver(asking.journal, after)
    async with ModelServer({"m": [scripted]}) as models:
        model = factory.build({"name": "m", "model": "m", "api_key": "k", "base_url": models.url})
        candidate = Candidate("m", model, Breaker())
        with pytest.raises(OwnershipLost, match="taken over by other"):
            await ask.answered(asking, [candidate], lambda model: model.astream, [HumanMessage("hi")])
        await factory.close()
    assert len(models.requests) == requests
    return [event for event in journal.events if isinstance(event, ModelFailed)]

"""The test kit for actors, with actors that answer, fail, follow each other, and wake by timers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from core.actor import Actor, Context, Progress
from core.errors import Invalid
from core.events import Aggregate, Event, FeedbackGiven, RunCompleted, ThreadAnnotated
from core.lifecycle import USED_TOOLS
from core.runs.owned import OwnedRun
from core.runs.run import Prepared, RunActor
from core.testing import acting
from tests.support.haiku import HAIKU, Haiku

LIKED = FeedbackGiven(feedback_id="f", rating=1, user="ada")


class Echo(Actor[ThreadAnnotated]):
    """Answers what the other actor appends."""

    name = "echo"

    async def handle(self, event: ThreadAnnotated, ctx: Context) -> None:
        await ctx.append(ThreadAnnotated(metadata={"echo": True})) if "echo" not in event.metadata else None


class Fails(Actor[FeedbackGiven]):
    name = "fails"

    async def handle(self, event: FeedbackGiven, ctx: Context) -> None:
        raise ZeroDivisionError(event.rating)


class Clock(Actor[FeedbackGiven]):
    name = "clock"

    async def handle(self, event: FeedbackGiven, ctx: Context) -> None:
        """Waits for its timer."""

    async def wake(self, aggregate: Aggregate, ctx: Context) -> None:
        await ctx.append(ThreadAnnotated(metadata={"woken": aggregate.id}))

    async def answer(self, request: Mapping[str, Any], progress: Progress) -> Any:
        if "n" not in request:
            raise Invalid("n: missing")
        return request["n"] + 1


class Tidy(Actor[RunCompleted]):
    name = "tidy"
    only = (USED_TOOLS,)

    async def handle(self, event: RunCompleted, ctx: Context) -> None:
        raise AssertionError("the run used no tools")


class Runs(RunActor):
    name = "runs"

    async def perform(self, run: OwnedRun, prepared: Prepared[Any]) -> None:
        """Does nothing."""


async def test_events_of_the_actor_come_back(tmp_path: Path) -> None:
    async with acting(Haiku(), home=tmp_path) as stage:
        run = await stage.given_run()
        expected: list[Event] = [ThreadAnnotated(metadata={f"haiku-{run}": HAIKU})]
        assert await stage.appended() == expected
        assert (await stage.system.threads.load("t1")).metadata == expected[0].metadata  # type: ignore[attr-defined]


async def test_actors_follow_each_other(tmp_path: Path) -> None:
    async with acting(Haiku(), Echo(), home=tmp_path) as stage:
        await stage.given_run()
        assert [record.head.actor for record in (await stage.settled())[-2:]] == ["haiku", "echo"]


async def test_the_error_of_a_handler_is_the_tests(tmp_path: Path) -> None:
    async with acting(Fails(), home=tmp_path) as stage:
        await stage.given(LIKED, run="r")
        with pytest.raises(ZeroDivisionError):
            await stage.appended()


async def test_timers_and_questions(tmp_path: Path) -> None:
    async with acting(lambda _: Clock(), home=tmp_path) as stage:
        await stage.given(LIKED, run="r")
        assert await stage.appended() == []
        await stage.wake()
        assert await stage.appended() == [ThreadAnnotated(metadata={"woken": "t1"})]
        assert await stage.ask({"n": 1}) == 2
        with pytest.raises(Invalid, match="n: missing"):
            await stage.ask({})


async def test_labels_select_as_they_do_on_a_server(tmp_path: Path) -> None:
    async with acting(Tidy(), home=tmp_path) as stage:
        await stage.given_run()
        assert await stage.appended() == []


async def test_an_actor_that_does_runs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="actor runs: does runs"):
        async with acting(Runs(), home=tmp_path):
            pass

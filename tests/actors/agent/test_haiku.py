"""A plug-in actor: found by its name in the configuration, done once however often it is woken."""

from __future__ import annotations

from pathlib import Path

import pytest

from actors.wiring import discovery
from core.bus.queue import Hint
from core.config.settings import Config
from core.errors import Invalid
from core.events import RunCompleted, ThreadAnnotated, thread
from tests.support.haiku import HAIKU, Haiku
from tests.support.model_server import Turn
from tests.support.workers import site

pytestmark = pytest.mark.anyio

NAMED = "tests.support.haiku:Haiku"


def test_found_by_its_name() -> None:
    classes = list(discovery.find_actors([NAMED]))
    assert classes[-1] is Haiku
    assert (Haiku.name, Haiku.subscription) == ("haiku", (RunCompleted,))
    assert isinstance(discovery.construct(Haiku, {}), Haiku)


@pytest.mark.parametrize("name", ["haiku:Limerick", "nowhere:Haiku", "haiku:HAIKU", "x"])
def test_a_name_that_is_wrong_is_fatal(name: str) -> None:
    with pytest.raises(Invalid, match=r"^actors\[0\]: "):
        list(discovery.find_actors([f"tests.support.{name}"]))


async def test_after_each_run_once(tmp_path: Path) -> None:
    [haiku] = [
        discovery.construct(cls, {}) for cls in discovery.find_actors(Config(actors=(NAMED,)).actors) if cls is Haiku
    ]
    async with site(tmp_path, {"m": [Turn(text="Hi.")]}, others=[haiku]) as (client, _):
        await client.thread()
        for count in (1, 2):
            await client.said("t1", "Hello")
            state = await client.until("t1", lambda state, _, n=count: len(state.metadata) == n)  # type: ignore[misc]
        assert state.metadata == {f"haiku-{run}": HAIKU for run in state.runs}

        for number, record in enumerate(await client.records("t1", RunCompleted)):
            hint = Hint(seq=record.seq, type=record.type, id=record.id)
            await client.system.queue.wake("haiku", thread("t1"), hint, key=f"again-{number}")
        await client.idle()
        haikus = await client.records("t1", ThreadAnnotated)
        completed = await client.records("t1", RunCompleted)
    assert [(r.head.actor, r.head.cause, r.run) for r in haikus] == [("haiku", r.id, r.run) for r in completed]

"""Models beside the configuration file: in force in every process, sealed in the log, and never against the file."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from core.config.in_force import keys_in_force
from core.config.load import ConfigSource
from core.errors import Invalid, NotFound, Refused
from core.identity.seal import Seal
from core.log.store import EventLog
from core.models.added import MODELS, AddedModel, AddedModels
from tests.support.nats import eventually

pytestmark = pytest.mark.anyio
KEY = "sk-of-an-added-model-4711"
FILE = "models:\n  - {name: main, model: big, api_key: none}\n"
ABOUT = {"by": "ada", "actor": "test"}


def added(name: str = "mine", **fields: Any) -> AddedModel:
    return AddedModel(
        **{"name": name, "model": "small", "provider": "custom", "base_url": "http://a.example/v1", **fields}
    )


@asynccontextmanager
async def process(log: EventLog, path: Path) -> AsyncIterator[tuple[AddedModels, ConfigSource]]:
    """A process with the file, that follows what is added."""
    source = ConfigSource(path / "config.yaml")
    models = AddedModels(log, Seal(path), source)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(models.follow)
        yield models, source
        tasks.cancel_scope.cancel()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "config.yaml").write_text(FILE)
    return tmp_path


async def became(condition: Callable[[], bool]) -> None:
    async def holds() -> bool:
        return condition()

    await eventually(holds)


def names(source: ConfigSource) -> list[str]:
    return [model.name for model in source.current().models]


async def test_an_added_model_is_in_force_in_every_process_and_sealed_in_the_log(log: EventLog, home: Path) -> None:
    async with process(log, home) as (models, source), process(log, home) as (_, other):
        before = source.current().hash
        await models.put(added(), KEY, source.current(), **ABOUT)
        await models.choose("lead", ["mine", "main"], source.current(), **ABOUT)
        assert names(source) == ["main", "mine"]
        await became(lambda: other.current().model_roles == {"lead": ("mine", "main")})
        for each in (source, other):
            entry = each.current().models[1]
            assert (entry.extra["api_key"].reveal(), entry.extra["base_url"]) == (KEY, "http://a.example/v1")
            assert each.current().hash != before
        keys = {key.path: key for key in keys_in_force(source.current(), source.written(), ["mine"])}
        assert {keys[path].source for path in ("models[1].name", "models[1].api_key", "model_roles")} == {"event"}
        assert keys["models[1].api_key"].value == '"***"'
        assert keys["models[0].name"].source == "file"
        await models.remove("mine", **ABOUT)
        assert (names(source), dict(source.current().model_roles)) == (["main"], {"lead": ("main",)})
        await became(lambda: names(other) == ["main"])
    facts = [record async for record in log.read(MODELS)]
    assert [(record.type, record.event.by) for record in facts] == [("models.configured", "ada")] * 3  # type: ignore[union-attr]
    assert not any(KEY.encode() in record.raw for record in facts)


async def test_what_the_file_has_wins(log: EventLog, home: Path) -> None:
    async with process(log, home) as (models, source):
        with pytest.raises(Refused, match=r"^name: main is a model of the configuration file"):
            await models.put(added("main"), None, source.current(), **ABOUT)
        await models.put(added(), None, source.current(), **ABOUT)
        await models.choose("title", ["mine"], source.current(), **ABOUT)
        (home / "config.yaml").write_text(
            "models:\n  - {name: mine, model: other, api_key: none}\nmodel_roles: {title: [mine], goal: [mine]}\n"
        )
        assert [(model.name, model.model) for model in source.current().models] == [("mine", "other")]
        with pytest.raises(Refused, match=r"model_roles\.goal stands in the configuration file"):
            await models.choose("goal", ["mine"], source.current(), **ABOUT)


async def test_a_key_goes_nowhere_but_where_it_was_entered_for(log: EventLog, home: Path) -> None:
    async with process(log, home) as (models, source):
        await models.put(added(), KEY, source.current(), **ABOUT)
        await models.put(added(display_name="Mine"), None, source.current(), **ABOUT)
        assert source.current().models[1].extra["api_key"].reveal() == KEY
        for elsewhere in ({"base_url": "http://b.example/v1"}, {"provider": "openai"}):
            with pytest.raises(Invalid, match=r"^api_key: enter it again"):
                await models.put(added(**elsewhere), None, source.current(), **ABOUT)
            [entry] = models.trial(added(**elsewhere), None, await models.state()).models
            assert entry["api_key"] == "not-needed"
        await models.put(added("open"), None, source.current(), **ABOUT)
        assert source.current().models[2].extra["api_key"].reveal() == "not-needed", "not that of the environment"


async def test_what_cannot_be_is_refused_and_nothing_is_stored(log: EventLog, home: Path) -> None:
    async with process(log, home) as (models, source):
        source.require(lambda config: names_refused(config.models[-1].name))
        with pytest.raises(Invalid, match="cannot be built"):
            await models.put(added("bad"), None, source.current(), **ABOUT)
        with pytest.raises(Invalid, match="role: 'king' is none"):
            await models.choose("king", ["main"], source.current(), **ABOUT)
        with pytest.raises(Invalid, match="models: 'none' is none of the models; there are: main"):
            await models.choose("lead", ["none"], source.current(), **ABOUT)
        with pytest.raises(NotFound):
            await models.remove("main", **ABOUT)
    assert [record async for record in log.read(MODELS)] == []


def names_refused(name: str) -> None:
    if name == "bad":
        raise Invalid("models[1]: cannot be built")


async def test_additions_that_do_not_fit_any_more_are_left_out(log: EventLog, home: Path) -> None:
    async with process(log, home) as (models, source):
        await models.put(added(), None, source.current(), **ABOUT)
        source.require(lambda config: names_refused("bad" if len(config.models) > 1 else ""))
        (home / "config.yaml").write_text(FILE + "log_level: warning\n")
        assert (source.current().log_level, names(source), source.problem) == ("warning", ["main"], None)

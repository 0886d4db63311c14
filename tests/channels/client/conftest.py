"""The same client of a server in this process, and of one elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

import adapters.tools
from channels.client import SikaClient
from core.ids import uuid7
from tests.channels.client.sika import TOOLS
from tests.channels.client.stage import Models, Stage, Subject, serving, written


@pytest.fixture(scope="package")
def stage() -> Iterator[Stage]:
    stage = Stage()
    yield stage
    stage.close()


@pytest.fixture(scope="package")
def models(stage: Stage) -> Models:
    return Models(stage)


@pytest.fixture(scope="package")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("client")


@pytest.fixture(scope="package")
def config(folder: Path, models: Models) -> Path:
    return written(folder / "config", models.server, skill_evolution={"moderation_model_name": "judging"})


@pytest.fixture(scope="package")
def server(stage: Stage, folder: Path, config: Path) -> str:
    """The URL of a server in a process of its own."""
    return stage.enter(serving(folder / "elsewhere", config))


@pytest.fixture(scope="package", params=["in this process", "elsewhere"])
def subject(request: pytest.FixtureRequest, folder: Path, config: Path) -> Iterator[Subject]:
    if request.param == "elsewhere":
        url = request.getfixturevalue("server")
        with SikaClient(url=url) as client, httpx.Client(base_url=url) as raw:
            yield Subject(client, raw)
        return
    adapters.tools.__path__.append(TOOLS)
    with SikaClient(config_path=config, home=folder / "here") as client:
        url = httpx.URL(_announced(folder / "here"))
        with httpx.Client(base_url=url) as raw:
            yield Subject(client, raw)
    adapters.tools.__path__.remove(TOOLS)


@pytest.fixture
def client(subject: Subject) -> SikaClient:
    return subject.client


@pytest.fixture
def thread_id() -> str:
    return uuid7()


def _announced(home: Path) -> str:
    from actors.wiring.compose import running_server

    address = running_server(home)
    assert address is not None
    return address.url

"""The folder of a thread over HTTP: who may choose which."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from actors.sandbox.actor import Sandbox
from adapters.sandboxes.host.sandbox import Host
from adapters.sandboxes.remote.provider import Aio
from adapters.sandboxes.remote.provisioner import Provisioner
from channels.http.app import serve
from channels.http.server.live import Services
from core.config.load import Config, ConfigSource
from core.config.sandbox import Sandbox as Limits
from core.config.settings import Auth
from core.config.settings import Sandbox as Settings
from core.ports.sandbox import MakeProvider, SandboxSetup
from core.runtime.system import System
from tests.channels.http.people import ADA, AUTH, Browser, Place

pytestmark = pytest.mark.anyio


@dataclass
class Setting:
    """The configuration in force."""

    accounts: bool
    folders: tuple[str, ...] = ()

    def __call__(self) -> Config:
        return Config(auth=Auth(enabled=self.accounts, registration=True), sandbox=Settings(folders=self.folders))


class Source(ConfigSource):
    def __init__(self, setting: Setting, place: Path) -> None:
        super().__init__()
        self._setting, self._place = setting, place

    def current(self) -> Config:
        return self._setting()

    @property
    def project(self) -> Path:
        return self._place


@asynccontextmanager
async def server(system: System, setting: Setting, home: Path, make: MakeProvider = Host) -> AsyncIterator[Place]:
    provider = make(SandboxSetup(home=home, settings={"url": "http://127.0.0.1:9"}))
    source = Source(setting, home)
    actor = Sandbox(provider, Limits(), source, None, system.log, system.threads, None, home)
    services = replace(Services.of(system, setting, home), call=system.call)
    async with anyio.create_task_group() as tasks:

        async def work(task_status: anyio.abc.TaskStatus[None]) -> None:
            await system.serve([actor], alone=True, task_status=task_status)

        await tasks.start(work)
        async with serve(services, "127.0.0.1", 0) as port:
            here = Place(f"http://127.0.0.1:{port}", system, home)
            try:
                yield here
            finally:
                await here.close()
        tasks.cancel_scope.cancel()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "app").mkdir()
    return tmp_path / "app"


async def put(browser: Browser, path: str | Path, thread: str = "t", **body: Any) -> tuple[int, Any]:
    answer = await browser.ask("PUT", f"/api/threads/{thread}/folder", {"path": str(path), **body})
    return answer.status, answer.body


async def test_the_person_at_this_machine_attaches_and_detaches(system: System, folder: Path, tmp_path: Path) -> None:
    async with server(system, Setting(accounts=False), tmp_path / "home") as here:
        person = here.browser()
        assert (await person.ask("GET", "/api/threads/t/folder")).body == {"folder": None}
        attached = {"path": str(folder), "access": "read-only", "show": [".env"], "mounted": "/mnt/project"}
        assert await put(person, folder, access="read-only", show=[".env"]) == (200, {"folder": attached})
        assert (await person.ask("GET", "/api/threads/t/folder")).body == {"folder": attached}
        assert (await person.ask("GET", "/api/threads/other/folder")).body == {"folder": None}
        copy = (await person.ask("POST", "/api/threads/t/copy")).body["thread_id"]
        assert (await person.ask("GET", f"/api/threads/{copy}/folder")).body == {"folder": None}
        assert (await person.ask("DELETE", "/api/threads/t/folder")).body == {"folder": None}
        assert (await person.ask("GET", "/api/threads/t/folder")).body == {"folder": None}
        (tmp_path / "home").mkdir(exist_ok=True)
        refused = {"/": 409, "/etc": 409, str(tmp_path / "home"): 409, "app": 422, str(tmp_path / "none"): 422}
        for path, status in refused.items():
            assert (await put(person, path))[0] == status, path
        for body in ({"access": "all"}, {"show": "x"}, {"show": ["x"] * 51}):
            assert (await put(person, folder, **body))[0] == 422


async def test_a_run_in_flight_keeps_its_folder(system: System, folder: Path, tmp_path: Path) -> None:
    async with server(system, Setting(accounts=False), tmp_path / "home") as here:
        person = here.browser()
        assert (await put(person, folder))[0] == 200
        await person.ask("POST", "/api/threads/t/runs", {"input": {"messages": [{"role": "user", "content": "x"}]}})
        assert (await put(person, folder, access="read-only"))[0] == 409
        assert (await person.ask("DELETE", "/api/threads/t/folder")).status == 409


@pytest.mark.parametrize("make", [Aio, Provisioner])
async def test_a_sandbox_elsewhere_refuses_a_folder(
    system: System, folder: Path, tmp_path: Path, make: MakeProvider
) -> None:
    async with server(system, Setting(accounts=False), tmp_path / "home", make) as here:
        status, body = await put(here.browser(), folder)
        assert (status, "shows no folders of this machine" in body["detail"]) == (409, True)
        assert (await here.browser().ask("GET", "/api/threads/t/folder")).body == {"folder": None}


async def test_an_internal_request_may_not_choose(system: System, folder: Path, tmp_path: Path) -> None:
    async with server(system, Setting(accounts=False), tmp_path / "home") as here:
        bot = here.browser(**{"X-Sika-Internal-Token": here.installation.internal.reveal(), "X-Sika-User": "default"})
        assert (await put(bot, folder))[0] == 403


@pytest.mark.parametrize(
    ("who", "scopes", "status", "in_root"),
    [
        ("admin", None, 200, 200),
        ("admin", ["threads", "admin"], 200, 200),
        ("admin", ["threads"], 403, 200),
        ("admin", ["runs"], 403, 403),
        (ADA, None, 403, 200),
        (ADA, ["threads:read"], 403, 403),
        ("nobody", None, 401, 401),
    ],
)
async def test_with_accounts_administrators_choose_and_others_take_what_is_open(
    system: System, folder: Path, tmp_path: Path, who: str, scopes: list[str] | None, status: int, in_root: int
) -> None:
    setting = Setting(accounts=True)
    async with server(system, setting, tmp_path / "home") as here:
        admin, ada = await here.admin(), await here.person(ADA)
        person = {"admin": admin, ADA: ada, "nobody": here.browser()}[who]
        if scopes is not None:
            name = (await person.ask("GET", f"{AUTH}/me")).body["email"]
            person = here.browser(**{"X-Api-Key": await here.key(name, scopes)})
        thread = uuid.uuid4().hex
        assert (await put(person, folder, thread))[0] == status
        setting.folders = (str(tmp_path),)
        assert (await put(person, folder, thread))[0] == in_root
        if status == 403 and in_root == 200:
            (tmp_path / "out").symlink_to("/opt")
            assert (await put(person, tmp_path / "out", thread))[0] == 409
        if status == 200:
            assert (await put(ada, folder, thread))[0] == 404

"""Variables of a thread's commands over HTTP: what is shown, to whom, and what the log holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from core.events import thread
from core.runtime.system import System
from tests.channels.http.people import ADA, Browser
from tests.channels.http.test_folders import Setting, server

pytestmark = pytest.mark.anyio
VALUE = "canary-of-a-variable"


async def put(browser: Browser, name: str, value: str, t: str = "t", **more: Any) -> tuple[int, Any]:
    answer = await browser.ask("PUT", f"/api/threads/{t}/variables/{name}", {"value": value, **more})
    return answer.status, answer.body


async def test_variables_are_set_shown_and_removed(system: System, tmp_path: Path) -> None:
    async with server(system, Setting(accounts=False), tmp_path / "home") as here:
        person = here.browser()
        plain = {"name": "DEBUG", "value": "1", "secret": False}
        assert await put(person, "DEBUG", "1") == (200, {"variables": [plain]})
        sealed = {"name": "A", "value": None, "secret": True}
        assert await put(person, "A", VALUE, secret=True) == (200, {"variables": [sealed, plain]})
        assert await put(person, "A_TOKEN", VALUE) == (
            200,
            {"variables": [sealed, {**sealed, "name": "A_TOKEN"}, plain]},
        )
        await person.ask("DELETE", "/api/threads/t/variables/A_TOKEN")
        assert (await person.ask("GET", "/api/threads/t/variables")).body == {"variables": [sealed, plain]}
        copy = (await person.ask("POST", "/api/threads/t/copy")).body["thread_id"]
        assert (await person.ask("GET", f"/api/threads/{copy}/variables")).body == {"variables": []}
        await person.ask("DELETE", "/api/threads/t/variables/A")
        assert (await person.ask("DELETE", "/api/threads/t/variables/A")).body == {"variables": [plain]}
        log = [record async for record in system.log.read(thread("t"))]
    assert [record.type for record in log].count("variable.set") == 3
    assert [record.type for record in log].count("variable.removed") == 2
    assert VALUE not in str([record.raw for record in log])


async def test_what_is_refused(system: System, tmp_path: Path) -> None:
    async with server(system, Setting(accounts=False), tmp_path / "home") as here:
        person = here.browser()
        for name, value in (("1A", "x"), ("SIKA_X", "x"), ("A", ""), ("A", "\0"), ("A", "x" * 5000)):
            status, body = await put(person, name, value)
            assert status == 422, body
        for number in range(50):
            assert (await put(person, f"V{number}", "x"))[0] == 200
        assert (await put(person, "ONE_MORE", "x"))[0] == 409
        assert (await put(person, "V0", "y"))[0] == 200
        await person.ask("POST", "/api/threads/t/runs", {"input": {"messages": [{"role": "user", "content": "x"}]}})
        assert (await put(person, "V0", "z"))[0] == 409
        assert (await person.ask("DELETE", "/api/threads/t/variables/V0")).status == 409


async def test_variables_are_their_owners(system: System, tmp_path: Path) -> None:
    async with server(system, Setting(accounts=True), tmp_path / "home") as here:
        await here.admin()
        ada, bob = await here.person(ADA), await here.person("bob@example.org")
        assert (await put(ada, "A", "1"))[0] == 200
        for method, path in (("GET", "/variables"), ("DELETE", "/variables/A")):
            assert (await bob.ask(method, f"/api/threads/t{path}")).status == 404
        assert (await put(bob, "A", "2"))[0] == 404
        assert (await ada.ask("GET", "/api/threads/t/variables")).body["variables"][0]["value"] == "1"

"""Every route is called with whatever its document allows and forbids: the answers are those that are documented."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
import msgspec
import pytest
import yarl

from actors.compaction import Compaction
from actors.documents import Documents
from actors.mcp_login import McpLogin
from actors.sandbox import Sandbox
from actors.skills.actor import Skills
from actors.suggestions import Suggestions
from actors.wiring.parts import mcp_access
from actors.workspace import Workspace
from adapters.documents.local import LocalDocuments
from adapters.egress import Downloads
from adapters.models import factory
from adapters.models.configured import Configured
from adapters.sandboxes.host.sandbox import Host
from adapters.workspace import LocalWorkspace
from channels.http.app import Services
from channels.http.endpoints.shapes import Error, Unauthorized
from channels.http.endpoints.table import all_routes
from channels.http.server.routes import SSE, Form, Route
from channels.web import assets
from core.actor import Actor
from core.config.load import Config, ConfigSource
from core.config.sandbox import Sandbox as Limits
from core.config.settings import Model, Off
from core.events import Json, RunRequested
from core.identity.seal import Seal
from core.mcp.login import Logins
from core.mcp.servers import Directory
from core.ports.sandbox import SandboxSetup
from core.runtime.system import System
from core.skills.folders import folders_in
from core.skills.library import BUILT_IN, Library
from tests.channels.http import people
from tests.channels.http.conftest import Settings
from tests.channels.http.story import human
from tests.support.model_server import ModelServer, Turn
from tests.support.nats import eventually
from tests.support.openapi import Quick, can_succeed, schemathesis
from tests.support.workers import configure

THREADS = 12
RUN, HUMAN, AI = "run-known", "human-known", "ai-run-known"

DEEP = b"[" * 20_000 + b"]" * 20_000
MALFORMED = {
    "nothing but a brace": b"{",
    "a list": b"[]",
    "null": b"null",
    "a number": b"1",
    "a string": b'"x"',
    "NaN": b'{"metadata": {"a": NaN}}',
    "infinity": b'{"limit": -Infinity}',
    "a raw NUL": b'{"metadata": {"a": "\x00"}}',
    "depth": b'{"metadata": ' + DEEP + b"}",
    "a form": b"a=1&b=2",
    "two documents": b"{}{}",
    "UTF-16": '{"a": 1}'.encode("utf-16"),
}
"""Bodies that are no JSON object: each is refused by every route that takes JSON."""
ODD = {
    "not UTF-8": b'{"metadata": {"a": "\xff"}}',
    "a lone surrogate as UTF-8": b'{"metadata": {"a": "\xed\xa0\x80"}}',
    "a lone surrogate": b'{"metadata": {"a\\ud800": "\\udfff"}, "input": {"messages": "\\ud800"}, "key": "\\ud800"}',
    "NUL": b'{"metadata": {"a\\u0000": "\\u0000"}, "input": {"messages": "\\u0000"}, "name": "\\u0000"}',
    "huge integers": b'{"metadata": {"a": 1%b}, "limit": 1%b, "offset": -1%b}' % ((b"0" * 5000,) * 3),
    "huge numbers": b'{"metadata": {"a": 1e999}, "limit": 1e999, "values": {"a": -1e999}}',
    "a key twice": b'{"metadata": {"a": 1, "a": 2}, "metadata": null}',
    "wrong types": b'{"metadata": 1, "input": 1, "values": 1, "limit": {}, "ids": {}, "name": [], "config": "x"}',
    "values of values": b'{"values": {"messages": [{}, 1, null, [[]]]}, "as_node": "\\u0000", "ids": ["\\u0000", ""]}',
}
"""Bodies that some routes may take; none may fall over them."""
PARTS = (
    "a%00b",
    "%00",
    "%ff",
    "..%2f..%2fetc%2fpasswd",
    "%2e%2e",
    "a%20b",
    "%f0%9f%98%80",
    "x" * 1000,
    "%0d%0a",
    "*.>",
)
"""What stands for ids in paths."""
VALUES = ("", "\x00", "NaN", "9" * 5000, "-1", "1e9", "²", "٣", "[", '["a"', "[" * 2000, "{}", "a\r\nb", "😀", "null")
"""What stands in query strings and headers."""
SHOWN = "mnt/user-data/uploads/notes.html"
"""A file that is presented."""
OPINION = {"rating": 1, "comment": "Good."}
CRON = {"assistant_id": "lead_agent", "schedule": "0 9 1 1 *", "input": {"messages": []}}
TASK = {
    "title": "Yearly",
    "prompt": "Look back.",
    "schedule_type": "cron",
    "schedule_spec": {"cron": "0 9 1 1 *"},
    "timezone": "UTC",
}
ANSWER = b"Old."
BODIES = {
    "post_agui": {"threadId": "agui", "runId": "agui-1", "messages": [{"id": "a", "role": "user", "content": "Hi"}]},
    "post_runs_crons": CRON,
    "post_threads_thread_id_runs_crons": CRON,
    "post_scheduled_tasks": TASK,
    "put_threads_thread_id_runs_run_id_feedback": OPINION,
    "post_threads_thread_id_runs_run_id_feedback": OPINION,
    "delete_store_items": {"namespace": ["notes"], "key": "a"},
    "post_assistants_assistant_id_latest": {"version": 1},
    "post_threads_thread_id_branches": {"message_id": AI},
    "post_threads_thread_id_runs_regenerate_prepare": {"message_id": AI},
    "post_threads_thread_id_runs_edit_regenerate_prepare": {"human_message_id": HUMAN, "replacement_text": "Hello"},
    "put_threads_thread_id_artifacts_path": {"content": "New.", "expected_sha256": hashlib.sha256(ANSWER).hexdigest()},
    "put_threads_thread_id_variables_name": {"value": "north"},
    "put_model_settings_models_name": {"model": "small", "provider": "openai"},
    "put_model_settings_roles_role": {"models": []},
    "put_store_items": {"namespace": ["notes"], "key": "a", "value": {"b": 1}},
    "post_agents_import": {"agent": {"name": "imported", "description": "From elsewhere."}, "replace": True},
}
"""What no schema can say: bodies that are accepted."""
ONLY_REFUSING = {
    "GET /api/doctor",  # only a server that `sika serve` starts examines itself
    # There are no accounts; see the test where there are.
    "GET /api/v1/auth/activity",
    "GET /api/v1/auth/callback/{provider}",
    "GET /api/v1/auth/oauth/{provider}",
    "POST /api/v1/auth/change-password",
    "POST /api/v1/auth/initialize",
    "POST /api/v1/auth/login/local",
    "POST /api/v1/auth/logout-all",
    "GET /api/v1/auth/keys",
    "POST /api/v1/auth/keys",
    "DELETE /api/v1/auth/keys/{key_id}",
    "POST /api/v1/auth/register",
    "GET /api/keys",
    "POST /api/keys",
    "DELETE /api/keys/{key_id}",
    "GET /api/users",
    "POST /api/users",
    "PATCH /api/users/{user_id}",
    "POST /api/users/{user_id}/reset-password",
    # Nothing was added, and no model can be called here.
    "DELETE /api/model-settings/models/{name}",
    "POST /api/model-settings/models/{name}/try",
    "POST /api/model-settings/try",
    # The assistant that comes along stays, and others are for the other operations.
    "DELETE /api/assistants/{assistant_id}",
    # No thread works on a folder of the person's, and no run has changed files.
    "GET /api/threads/{thread_id}/folder",
    "PUT /api/threads/{thread_id}/folder",
    "DELETE /api/threads/{thread_id}/folder",
    "POST /api/threads/{thread_id}/runs/{run_id}/undo",
    # No run is going on for long enough.
    "POST /api/threads/{thread_id}/runs/{run_id}/steer",
    # Nothing is remembered, and the operations that forget everything come at any time.
    "DELETE /api/memory/facts/{fact_id}",
    "GET /api/memory/facts/{fact_id}/source",
    "PATCH /api/memory/facts/{fact_id}",
    # No number of a version is known.
    "POST /api/agents/{name}/rollback",
    # No run has subagents.
    "GET /api/threads/{thread_id}/subagents/{subagent_id}",
    "GET /api/threads/{thread_id}/subagents/{subagent_id}/messages",
    "POST /api/threads/{thread_id}/subagents/{subagent_id}/cancel",
    "POST /api/threads/{thread_id}/subagents/{subagent_id}/message",
    # No call waits for a person.
    "GET /api/threads/{thread_id}/approvals/{approval_id}",
    "POST /api/threads/{thread_id}/approvals/{approval_id}",
    # Without accounts nothing is shared with people who have one (test_shares_accounts).
    "GET /api/shares/{token}",
    "GET /api/shares/{token}/files/{path}",
    "GET /api/shares/{token}/log/events",
    "GET /api/shares/{token}/log/files",
    "GET /api/shares/{token}/log/prompt",
    "GET /api/shares/{token}/log/state",
    "GET /api/shares/{token}/log/usage",
    "GET /api/shares/{token}/log/why",
    # No user has a skill, no model gives a verdict on one, and no address of one is guessed.
    "POST /api/skills/install",
    "POST /api/skills/install/url",
    "POST /api/skills/upload",
    "PUT /api/skills/custom/{name}",
    "DELETE /api/skills/custom/{name}",
    "POST /api/skills/custom/{name}/rollback",
    "GET /api/skills/custom/{name}",
    "GET /api/skills/custom/{name}/history",
    # No MCP server is configured.
    "DELETE /api/mcp/oauth/{server}",
    "GET /api/mcp/oauth/callback",
    "POST /api/mcp/oauth/{server}/login",
    "POST /api/mcp/servers/{name}/accept",
    "POST /api/mcp/servers/{name}/test",
    # No account of a chat platform is configured, and the name of a platform is not guessed.
    "DELETE /api/channels/{provider}/runtime-config",
    "GET /api/channels/files/{token}",
    "POST /api/channels/{name}/restart",
    "POST /api/channels/{name}/test",
    "POST /api/channels/{provider}/runtime-config",
    # The parts that fork threads and execute what-ifs come with a whole server (test_debugging).
    "POST /api/threads/{thread_id}/log/fork",
    "POST /api/threads/{thread_id}/log/whatif",
    # No exported file is guessed (test_imports).
    "POST /api/threads/import",
    # No place in a log is guessed (test_debugging).
    "GET /api/threads/{thread_id}/log/diff",
    "GET /api/threads/{thread_id}/log/pin",
    "GET /api/threads/{thread_id}/log/replay",
    "GET /api/threads/{thread_id}/log/prompt",
    "GET /api/threads/{thread_id}/log/why",
    # Connections are off.
    "DELETE /api/channels/connections/{connection_id}",
    "POST /api/channels/{provider}/connect",
}
"""Operations that never succeed here."""
ALWAYS = (400, 401, 403, 404, 413, 422, 429)
"""What may be said to nonsense wherever it arrives."""


class Everything(Settings):
    """With what is off by default."""

    def __call__(self) -> Config:
        models = (Model(name="scripted", model="scripted"),)
        return msgspec.structs.replace(super().__call__(), agents_api=Off(enabled=True), models=models)


@pytest.fixture
def config() -> Settings:
    return Everything()


@pytest.fixture
def services(system: System, config: Settings, tmp_path: Path) -> Services:
    """With a home of their own: files are uploaded."""
    library = Library(system.log, tmp_path / "home", folders_in(BUILT_IN))
    return replace(Services.of(system, config, tmp_path / "home"), skills=library)


@pytest.fixture
async def known(system: System, services: Services, tmp_path: Path) -> AsyncIterator[dict[str, list[str]]]:
    """Ids that are there: threads with one ended run each; and actors for what is to come."""
    async with ModelServer({"scripted": [Turn(text='["And then?"]')]}) as models:
        source = ConfigSource(configure(tmp_path / "config.yaml", models))
        documents = Documents(source, system.threads, LocalDocuments(services.home))
        chats = Configured(source)
        compaction = Compaction(source, chats, system.threads, system.log)
        suggestions, seal = Suggestions(source, chats, system.threads), Seal(services.home)
        servers, logins = Directory(system.log, source.current, seal), Logins(mcp_access(system, services.home, source))
        skills = Skills(
            *(source, chats, lambda _: (), system.log, services.home, system.threads, system.subagents),
            *(services.skills, Downloads()),
        )
        machine = Host(SandboxSetup(home=services.home))
        folders = Sandbox(machine, Limits(), source, log=system.log, threads=system.threads, home=services.home)
        workspace = Workspace(system.log, LocalWorkspace(services.home), system.threads, source, services.home)
        login = McpLogin(logins, servers, system.call)
        answering: list[Actor[Any]] = [suggestions, compaction, skills, login, folders, workspace]
        serving = asyncio.create_task(system.serve([Quick(), documents, *answering], alone=True))
        threads = await _seeded(system, "thread")

        async def over() -> bool:
            states = [await system.threads.load(thread) for thread in threads]
            return all(not state.runs[RUN].open for state in states)

        await eventually(over)
        yield {"thread_id": threads, "run_id": [RUN], "assistant_id": ["lead_agent"]}
        serving.cancel()
        await asyncio.wait([serving])
        await factory.close()


async def _seeded(system: System, name: str, **request: Any) -> list[str]:
    threads = [f"{name}-{number}" for number in range(THREADS)]
    for thread in threads:
        await system.intake.create_thread(thread, user="default")
        asked = RunRequested(input={"messages": [human(HUMAN, "hi")]}, **request)
        await system.intake.request_run(thread, RUN, asked)
    return threads


async def _made(session: aiohttp.ClientSession, url: str) -> dict[str, list[str]]:
    """Ids of things of every other kind, on the first threads where they have one."""
    threads = f"{url}/api/threads"

    async def ask(method: str, address: str, field: str, **more: Any) -> list[str]:
        async with session.request(method, address, **more) as response:
            assert response.status in (200, 201), await response.text()
            found = await response.json()
        return [found[field]]

    form = aiohttp.FormData()
    form.add_field("files", b"<p>Notes</p>", filename="notes.html")
    form.add_field("files", b"# Rest", filename="rest.md")
    await ask("POST", f"{threads}/thread-0/uploads", "success", data=form)
    await ask("PUT", f"{threads}/thread-1/runs/{RUN}/feedback", "feedback_id", json=OPINION)
    kept = {"namespace": ["kept"], "key": "b", "value": {}}
    async with session.put(f"{url}/api/store/items", json=kept) as response:
        assert response.status == 204, await response.text()
    view = f"{threads}/thread-0/artifacts/mnt/user-data/uploads/notes.html?view=sandbox"
    async with session.get(view, allow_redirects=False) as response:
        token = response.headers["Location"].split("/")[-2]
    shown = {"values": {"artifacts": [f"/{SHOWN}"]}}
    await ask("POST", f"{threads}/thread-0/state", "checkpoint_id", json=shown)
    [shared] = await ask("POST", f"{threads}/thread-0/share", "token", json={})
    return {
        "assistant_id": await ask("POST", f"{url}/api/assistants", "assistant_id", json={"graph_id": "lead_agent"}),
        "checkpoint_id": await ask("GET", f"{threads}/thread-0/state", "checkpoint_id"),
        "cron_id": await ask("POST", f"{url}/api/runs/crons", "cron_id", json=CRON),
        "feedback_id": await ask("PUT", f"{threads}/thread-2/runs/{RUN}/feedback", "feedback_id", json=OPINION),
        "task_id": await ask("POST", f"{url}/api/scheduled-tasks", "id", json=TASK),
        "filename": ["notes.html"],
        "page": ["contents"],
        "path": [SHOWN],
        "share_id": await ask("POST", f"{threads}/thread-3/share", "share_id", json={}),
        "shared": [shared],
        "token": [token],
    }


@pytest.mark.long
@pytest.mark.timeout(900)
async def test_every_answer_is_documented(
    system: System, url: str, services: Services, known: dict[str, list[str]], tmp_path: Path
) -> None:
    """In a bounded run with a fixed seed; without what is endless."""
    gone, removed = await _seeded(system, "gone"), await _seeded(system, "removed")
    waiting = await _seeded(system, "waiting", not_before="2100-01-01T00:00:00Z")
    async with aiohttp.ClientSession() as session:
        document = await _document(session, url)
        known = {**known, **await _made(session, url)}
    token, shared = known.pop("token"), known.pop("shared")
    outputs = services.home / "users/default/threads/thread-0/user-data/outputs"
    outputs.mkdir(parents=True, exist_ok=True)
    (outputs / "answer.md").write_bytes(ANSWER)
    special = {
        "delete_assistants_assistant_id": {"assistant_id": ["lead_agent"]},
        "delete_threads_thread_id": {"thread_id": gone},
        "delete_threads_thread_id_runs_run_id": {"thread_id": removed},
        "delete_threads_thread_id_runs_run_id_feedback": {"thread_id": ["thread-1"]},
        "delete_threads_thread_id_runs_run_id_feedback_feedback_id": {"thread_id": ["thread-2"]},
        "delete_threads_thread_id_uploads_filename": {"thread_id": ["thread-0"], "filename": ["rest.md"]},
        "get_threads_thread_id_files_zip": {"thread_id": ["thread-0"], "under": ["/mnt/user-data/uploads"]},
        "get_models_name": {"name": ["scripted"]},
        "put_model_settings_models_name": {"name": ["added", "other"]},
        "put_model_settings_roles_role": {"role": ["goal"]},
        "get_page_name": {"name": [assets.name_of(assets.ENTRY)]},
        "get_store_items": {"namespace": ["kept"], "key": ["b"]},
        "get_skills_name": {"name": ["documents"]},
        "get_views_token_path": {"token": token, "path": ["notes.html"]},
        "get_shared_token": {"token": shared},
        "get_shared_token_files_path": {"token": shared, "path": [SHOWN]},
        "get_shared_token_view_path": {"token": shared, "path": [SHOWN]},
        "delete_threads_thread_id_share_share_id": {"thread_id": ["thread-3"]},
        "put_skills_name": {"name": ["documents"]},
        "post_threads_thread_id_runs_run_id_cancel": {"thread_id": waiting},
        "put_threads_thread_id_artifacts_path": {
            "thread_id": ["thread-0"],
            "path": ["mnt/user-data/outputs/answer.md"],
        },
        "put_threads_thread_id_variables_name": {"name": ["REGION"]},
    }
    found = await schemathesis(url, document, tmp_path, known=known, special=special, bodies=BODIES)
    assert found.clean, found.report
    silent = {name for name, statuses in found.answered.items() if min(statuses) >= 400}
    assert sorted(silent - _named(document, good=False) - ONLY_REFUSING) == []


TAGS = ("--include-tag", "auth", "--include-tag", "users")


@pytest.mark.long
async def test_every_answer_is_documented_where_there_are_accounts(system: System, tmp_path: Path) -> None:
    async with people.place(system, people.WithAccounts(), tmp_path) as place:
        admin = await place.admin()
        document = await _document(admin.session, place.url)
        token = f"Authorization: Bearer {admin.cookies['access_token']}"
        folder = tmp_path / "schemathesis"
        folder.mkdir()
        found = await schemathesis(place.url, document, folder, *TAGS, "-H", token, known={})
    assert found.clean, found.report


async def _document(session: aiohttp.ClientSession, url: str) -> Json:
    async with session.get(f"{url}/openapi.json") as response:
        found: Json = await response.json()
        return found


def _named(document: Json, *, good: bool) -> set[str]:
    return {
        f"{method.upper()} {path}"
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
        if can_succeed(operation) == good
    }


# ── what no schema thinks of ─────────────────────────────────────────────────────────────────────────────────────────


class Knocking:
    """Calls routes, and keeps what should not have been answered: by route and answer, what was sent."""

    def __init__(self, session: aiohttp.ClientSession, url: str, known: dict[str, list[str]]) -> None:
        self.session = session
        self.url = url
        self.known = known
        self.wrong: defaultdict[str, list[str]] = defaultdict(list)

    def path(self, route: Route, part: str | None = None) -> str:
        """The route's path with known ids, or with `part` in the place of every variable."""

        def given(found: re.Match[str]) -> str:
            return part or self.known.get(found[1], ["x"])[0]

        return route.mounts[0] + re.sub(r"\{(\w+)(?::[^{}]+)?\}", given, route.path)

    async def call(self, route: Route, path: str, what: str, *, refused: bool = False, **more: Any) -> None:
        """`refused`: it must not be accepted."""
        name = f"{route.handler.__module__}: {route.method} {route.path}"
        address = yarl.URL(self.url + path, encoded=True)
        try:
            async with asyncio.timeout(60), self.session.request(route.method, address, **more) as response:
                raw = await response.read()
        except (TimeoutError, aiohttp.ClientError) as error:
            self.wrong[f"{name}: {error!r}"].append(what)
            return
        answers = {status for status in route.answers if status >= 400 or not refused}
        allowed = {*route.errors, *ALWAYS, *answers, *(() if route.answers else (503,))}
        if response.status not in allowed:
            self.wrong[f"{name}: {response.status} {raw[:60]!r}"].append(what)
        elif response.status >= 400 and not _is_error(raw):
            self.wrong[f"{name}: {response.status} {raw[:60]!r} is not how errors are told"].append(what)

    def check(self) -> None:
        assert not self.wrong, "\n".join(f"{answer}: {', '.join(what[:9])}" for answer, what in self.wrong.items())


def _is_error(raw: bytes) -> bool:
    """In one of the two forms."""
    for form in (Error, Unauthorized):
        with suppress(msgspec.DecodeError):
            msgspec.json.decode(raw, type=form)
            return True
    return False


@pytest.fixture
async def knocking(url: str, known: dict[str, list[str]]) -> AsyncIterator[Knocking]:
    async with aiohttp.ClientSession() as session:
        yield Knocking(session, url, known)


async def test_bodies(knocking: Knocking) -> None:
    for route in _ending():
        if route.body is None or isinstance(route.body, Form):
            continue
        for bodies, refused in ((MALFORMED, True), (ODD, False)):
            for what, body in bodies.items():
                await knocking.call(route, knocking.path(route), what, refused=refused, data=body)
        for media in ("text/plain", "multipart/form-data", "application/x-www-form-urlencoded", "x"):
            headers = {"Content-Type": media}
            await knocking.call(route, knocking.path(route), media, refused=True, data=b"\x00", headers=headers)
    knocking.check()


async def test_paths(knocking: Knocking) -> None:
    for route in _ending():
        if "{" in route.path:
            for part in PARTS:
                await knocking.call(route, knocking.path(route, part), part)
    knocking.check()


@pytest.mark.long(keep=2)
@pytest.mark.parametrize("accept", ["*/*", SSE])
async def test_queries_and_headers(knocking: Knocking, accept: str) -> None:
    for route in _ending():
        for param in route.query:
            for value in VALUES if not param.endless else ():
                path, what = knocking.path(route), f"{param.name}={value[:20]!r}"
                if param.where == "query":
                    path = f"{path}?{param.name}={quote(value)}"
                sent = {param.name: value} if param.where == "header" and value.isprintable() else {}
                await knocking.call(route, path, what, headers={"Accept": accept, **sent})
    knocking.check()


def _ending() -> Iterator[Route]:
    return (route for route in all_routes() if not route.endless)

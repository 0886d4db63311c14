"""What operators see and decide: what runs, why runs failed, how long calls took, what was configured, dead letters."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from channels.http.app import Services
from core.bus.queue import Hint
from core.config.redaction import redactor
from core.events import (
    Aggregate,
    ModelCompleted,
    Record,
    RunCompleted,
    RunFailed,
    RunStarted,
    ToolCompleted,
    catalogue,
    thread,
)
from core.ids import now
from core.mcp.servers import McpConfigured
from core.models.added import MODELS, AddedModel, ModelsConfigured
from core.runtime.letters import DECISIONS, LetterDiscarded, LetterRedriven
from core.runtime.readiness import Finding
from core.runtime.system import System
from core.views import operations
from core.views.configured import NAMELESS, is_change
from core.views.operations import kind_of
from core.views.projections import Views
from tests.channels.http import people
from tests.channels.http.conftest import Api, Worker
from tests.channels.http.people import ADA, ADMIN
from tests.channels.http.story import ai, answer
from tests.support.nats import append, read

pytestmark = pytest.mark.anyio


def on(model: str) -> RunStarted:
    return RunStarted(attempt=1, worker="w", lease=1, model=model)


async def failed(api: Api, worker: Worker, text: str, model: str = "m") -> str:
    thread_id = await api.thread()
    await worker.write(thread_id, await api.run(thread_id), on(model), RunFailed(error="E", text=text))
    return thread_id


# ── what runs, failed and took long ──────────────────────────────────────────────────────────────────────────────────


async def test_what_runs_now_by_state_and_user(api: Api, worker: Worker) -> None:
    waits, works = await api.thread(), await api.thread()
    pending, running = await api.run(waits), await api.run(works)
    await worker.write(works, running, on("m"))
    found = await api.ask("GET", "/operations/now")
    assert (found["pending"], found["running"], found["waiting"]) == (1, 1, 0)
    assert [(run["run_id"], run["status"], run["model_name"], run["own"]) for run in found["runs"]] == [
        (pending, "pending", None, True),
        (running, "running", "m", True),
    ]
    assert {(one["user_id"], one["status"], one["runs"]) for one in found["by_user"]} == {
        ("default", "pending", 1),
        ("default", "running", 1),
    }
    await worker.write(works, running, RunCompleted())
    assert (await api.ask("GET", "/operations/now"))["running"] == 0


REASONS = {
    "The provider refused the key (status 401, request 8f14e45f-ceea-467f-a9c4-1f6f0c3d5a11)": 3,
    "No answer within 30.5 s": 2,
    "The model does not exist": 1,
}


async def test_runs_that_failed_for_the_same_reason_are_one_line(api: Api, worker: Worker) -> None:
    for number, (reason, runs) in enumerate(REASONS.items()):
        for run in range(runs):
            text = reason.replace("401", f"40{run}").replace("30.5", f"{run + 1}").replace("8f14e45f", f"8f14e45{run}")
            last = await failed(api, worker, text, f"m{number}")
    found = await api.ask("GET", "/operations/failures")
    assert [(group["reason"], group["runs"], group["models"]) for group in found["groups"]] == [
        (kind_of(reason), runs, [f"m{number}"]) for number, (reason, runs) in enumerate(REASONS.items())
    ]
    assert found["runs"] == sum(REASONS.values())
    assert found["groups"][-1]["examples"][0]["thread_id"] == last
    newest = [run["created_at"] for run in found["groups"][0]["examples"]]
    assert newest == sorted(newest, reverse=True)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("no answer within 30 s", "no answer within … s"),
        ("at 12:31:07, 3 of 5", "at …, … of …"),
        ("run 01a202b1-1c46-73b8-9ed1-7719f096e6e0  ended", "run … ended"),
        ("the feedbead is no id, deadbeef01 is", "the feedbead is no id, … is"),
        ("x" * 400, "x" * 300),
    ],
)
def test_what_differs_from_run_to_run_is_no_part_of_a_reason(text: str, kind: str) -> None:
    assert kind_of(text) == kind


async def test_how_long_calls_took(api: Api, worker: Worker) -> None:
    thread_id = await api.thread()
    run = await api.run(thread_id)
    tools = [
        ToolCompleted(call_id=f"c{n}", message=answer(f"c{n}", "bash", "x", status=status), duration_ms=ms)
        for n, (ms, status) in enumerate([*[(10, "success")] * 18, (700, "success"), (9000, "error")])
    ]
    lost = ToolCompleted(call_id="lost", message=answer("lost", "glob", "?"), unknown=True)
    said = [ModelCompleted(message=ai(f"m{ms}", "x"), duration_ms=ms) for ms in (100, 300, 200)]
    spare = ai("spare", "x", response_metadata={"answered_by": "spare"})
    await worker.write(thread_id, run, on("m"), *tools, lost, *said, ModelCompleted(message=spare, duration_ms=50))
    found = await api.ask("GET", "/operations/calls")
    names = ("kind", "name", "calls", "failed", "p50_ms", "p95_ms", "longest_ms")
    assert [tuple(one[name] for name in names) for one in found["calls"]] == [
        ("tool", "bash", 20, 1, 10, 9000, 9000),
        ("model", "m", 3, 0, 200, 300, 300),
        ("model", "spare", 1, 0, 50, 50, 50),
    ]
    await worker.write(thread_id, run, RunCompleted())
    await api.ask("DELETE", f"/threads/{thread_id}", status=204)
    assert await api.ask("GET", "/operations/calls") == {"calls": []}, "calls go with their thread"


class Planned:
    """Read models that note how SQLite answers each question."""

    def __init__(self, views: Views) -> None:
        self.views, self.plans = views, list[str]()

    async def query(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        self.plans += [row[3] for row in await self.views.query(f"EXPLAIN QUERY PLAN {sql}", values)]
        return await self.views.query(sql, values)


async def test_no_figure_scans_what_lies_there(system: System) -> None:
    """The newest calls are read from the end of theirs, and what waits by the index of those that wait."""
    planned = Planned(system.views)
    views: Any = planned
    since = datetime(2026, 1, 1, tzinfo=UTC)
    await operations.now(views)
    await operations.failures(views, since)
    await operations.calls(views, since)
    await operations.changes(views, 10)
    for by, user in (("user", None), ("user", "ada"), ("assistant", None)):
        await operations.usage_by(views, by, user, {}, "2026-01-01", "2026-01-31")
    scans = {plan for plan in planned.plans if plan.startswith("SCAN")}
    assert scans == {"SCAN threads USING INDEX threads_waiting", "SCAN calls", "SCAN (subquery-1)"}


async def test_usage_by_user_and_agent(api: Api, worker: Worker) -> None:
    for tokens in (10, 500, 7):
        thread_id = await api.thread()
        run = await api.run(thread_id)
        used = {"input_tokens": tokens, "output_tokens": 0, "total_tokens": tokens}
        await worker.write(thread_id, run, on("m"), ModelCompleted(message=ai(f"m-{run}", "x", usage_metadata=used)))
    found = await api.ask("GET", "/console/usage?all_users=true")
    assert [(one["user_id"], one["user_name"], one["runs"], one["total_tokens"]) for one in found["by_user"]] == [
        ("default", None, 3, 517)
    ]
    assert [(one["assistant_id"], one["runs"], one["total_tokens"]) for one in found["by_agent"]] == [
        ("lead_agent", 3, 517)
    ]


# ── what was configured ──────────────────────────────────────────────────────────────────────────────────────────────


async def test_what_was_configured_is_listed_without_secrets(system: System, api: Api) -> None:
    secret = "sk-" + "Ab1" * 12
    servers = {"files": {"command": "run", "env": {"TOKEN": secret}}}
    await append(system.log, Aggregate("mcp", "servers"), McpConfigured(servers=servers))
    await bury(system)
    await api.ask("POST", "/dlq/discard", {"letters": [1]})
    found = await api.ask("GET", "/operations/changes?limit=1")
    [change] = found["changes"]
    assert (change["type"], change["by"]) == ("letter.discarded", "default")
    rest = await api.ask("GET", f"/operations/changes?before={found['next_before']}")
    assert [(one["type"], one["text"]) for one in rest["changes"]] == [("mcp.configured", "servers: files")]
    assert rest["next_before"] is None
    assert secret not in str([found, rest])


def envelope(of: str, kind: str) -> Record:
    fields = {"id": "e", "type": of, "kind": kind, "aggregate": "a", "actor": "http", "at": now()}
    return Record(1, msgspec.json.encode(fields))


def test_whatever_names_its_author_is_a_change_but_what_is_about_conversations() -> None:
    signed = {name: cls.__module__ for name, cls in catalogue().items() if "by" in cls.__struct_fields__}
    about_threads = {name for name, module in signed.items() if module in ("core.events", "core.files.workspace")}
    for name in catalogue():
        kind = "thread" if name in about_threads else "installation"
        assert is_change(envelope(name, kind)) == (name in NAMELESS or name in signed.keys() - about_threads), name
    assert catalogue().keys() >= NAMELESS


async def test_what_is_sealed_is_named_only(system: System, api: Api) -> None:
    model = AddedModel(name="big", provider="openai", model="gpt-5", api_key="sealed-0123456789")
    await append(system.log, MODELS, ModelsConfigured(models=[model], roles={"title": ["big"]}, by="ada"))
    [change] = (await api.ask("GET", "/operations/changes"))["changes"]
    named = ("models.configured", "ada", "models: big, roles: title")
    assert (change["type"], change["by"], change["text"]) == named


# ── dead letters ─────────────────────────────────────────────────────────────────────────────────────────────────────


async def bury(system: System, actor: str = "lead", about: Aggregate | None = None, **more: Any) -> Aggregate:
    about = about or thread("poisoned")
    letter = {"reason": "broken\u202e", "at": now(), "hint": Hint(seq=1, type="run.requested", id="e"), **more}
    await system.bus.store(system.bus.names.dlq(actor, about), msgspec.json.encode(letter))
    return about


async def test_dead_letters_are_listed_in_pages_with_what_they_hold(system: System, api: Api) -> None:
    await bury(system)
    secret = "correct-horse-battery-staple-17"
    redactor.add(secret)
    body = base64.b64encode(f"\xff{{ {secret}".encode()).decode()
    await bury(system, "timers", Aggregate("unreadable", "9"), body=body, hint=Hint())
    await bury(system, "log", Aggregate("unreadable", "10"), body="abcde", hint=Hint())
    first = await api.ask("GET", "/dlq?limit=2")
    assert (first["total"], first["next_after"], [one["letter"] for one in first["letters"]]) == (3, 2, [1, 2])
    poisoned, unreadable = first["letters"]
    assert (poisoned["actor"], poisoned["aggregate"], poisoned["thread_id"]) == ("lead", "thread/poisoned", "poisoned")
    assert (poisoned["event_seq"], poisoned["event_type"], poisoned["redrivable"]) == (1, "run.requested", True)
    assert (unreadable["content"], unreadable["redrivable"], unreadable["thread_id"]) == ("ÿ{ ***", False, None)
    last = await api.ask("GET", "/dlq?after=2")
    assert (last["next_after"], [(one["letter"], one["content"]) for one in last["letters"]]) == (None, [(3, "")])


@pytest.mark.parametrize("number", [0, -1, 2**53, 2**63, 2**64, 10**30])
async def test_numbers_that_nothing_has_are_refused(api: Api, number: int) -> None:
    for path in ("/dlq/redrive", "/dlq/discard"):
        await api.ask("POST", path, {"letters": [number]}, status=422)
    await api.ask("GET", f"/operations/changes?before={number}", status=422)
    if number:
        await api.ask("GET", f"/dlq?after={number}", status=422)


async def test_the_largest_number_is_nothing_s(api: Api) -> None:
    assert await api.ask("POST", "/dlq/redrive", {"letters": [2**53 - 1]}) == {"letters": []}
    assert (await api.ask("GET", f"/dlq?after={2**53 - 1}"))["letters"] == []
    assert (await api.ask("GET", f"/operations/changes?before={2**53 - 1}"))["changes"] == []


async def test_letters_are_sent_again_or_discarded_and_it_is_recorded_by_whom(system: System, api: Api) -> None:
    for name in ("a", "b", "c"):
        await bury(system, about=thread(name))
    await bury(system, "log", Aggregate("unreadable", "10"))
    assert await api.ask("POST", "/dlq/redrive", {"letters": []}) == {"letters": []}
    assert await api.ask("POST", "/dlq/redrive", {"letters": [2, 4, 99]}) == {"letters": [2]}
    assert await api.ask("POST", "/dlq/discard", {"letters": [1, 4, 4]}) == {"letters": [1, 4]}
    assert [one["letter"] for one in (await api.ask("GET", "/dlq"))["letters"]] == [3]
    assert await system.queue.at_work(thread("b")) == ["lead"]
    events = [record.event for record in await read(system.log, DECISIONS)]
    decided = [(type(e), e.letter, e.by) for e in events if isinstance(e, LetterRedriven | LetterDiscarded)]
    assert decided == [
        (LetterRedriven, 2, "default"),
        (LetterDiscarded, 1, "default"),
        (LetterDiscarded, 4, "default"),
    ]


# ── the doctor, and who may see all this ─────────────────────────────────────────────────────────────────────────────


class TestDoctor:
    @pytest.fixture
    def services(self, services: Services) -> Services:
        async def examine() -> list[Finding]:
            return [
                Finding("disk", "ok", "9 GiB free"),
                Finding("model", "warn", "m: down", "wait; token=sk-abcdef123"),
            ]

        return replace(services, examine=examine)

    async def test_findings_come_with_their_remedy_and_without_secrets(self, api: Api) -> None:
        found = await api.ask("GET", "/doctor")
        assert (found["status"], [one["status"] for one in found["checks"]]) == ("warn", ["ok", "warn"])
        assert found["checks"][1]["advice"] == "wait; token=***"


async def test_a_process_without_its_parts_has_no_doctor(api: Api) -> None:
    assert (await api.ask("GET", "/doctor", status=404))["code"] == "not_found"


ROUTES = [
    ("GET", "/operations/now"),
    ("GET", "/operations/failures"),
    ("GET", "/operations/calls"),
    ("GET", "/operations/changes"),
    ("GET", "/doctor"),
    ("GET", "/dlq"),
    ("POST", "/dlq/redrive"),
    ("POST", "/dlq/discard"),
    ("GET", "/actors"),
    ("GET", "/console/usage?all_users=true"),
]


async def test_members_see_nothing_of_it(system: System, tmp_path: Path) -> None:
    async with people.place(system, people.WithAccounts(), tmp_path) as place:
        admin, ada = await place.admin(), await place.person(ADA)
        for method, path in ROUTES:
            body: Any = {"letters": []} if method == "POST" else None
            refused = await ada.ask(method, f"/api{path}", body)
            assert refused.status == 403, path
            if path != "/doctor":
                assert (await admin.ask(method, f"/api{path}", body)).status == 200, path
        found = await admin.ask("GET", "/api/operations/changes")
        assert [(one["type"], one["by"]) for one in found.body["changes"] if "@" in one["text"]] != []
        assert ADMIN in str(found.body)
        assert "argon2" not in str(found.body)

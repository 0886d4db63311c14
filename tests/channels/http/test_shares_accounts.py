"""Conversations that are shared with people who have an account here: to whom, what of the log, and up to where."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from channels.http.endpoints.table import all_routes
from core.events import (
    Aggregate,
    Event,
    ModelCompleted,
    Record,
    RunCompleted,
    RunRequested,
    RunStarted,
    SetupRecorded,
    ThreadShared,
    thread,
)
from core.runtime.system import System
from tests.channels.http.people import ADA, BOB, Browser, Place, WithAccounts, place
from tests.channels.http.story import ai, human
from tests.channels.http.test_folders import Setting, server
from tests.channels.http.test_shares import PRESENTED, read, share, story
from tests.support.nats import eventually

pytestmark = pytest.mark.anyio

LATER = "what-came-after-the-share"
PROMPT = "You know that Ada likes tea."
ROUTES = [route for route in all_routes() if route.path.startswith("/shares/{token}")]


class Story(NamedTuple):
    """A thread of Ada's with two runs. `end`: the last event of the first one."""

    thread: str
    answer: int
    end: int
    later: int


async def two_runs(here: Place, ada: Browser) -> Story:
    user, log = (await ada.me()).body["id"], here.system.log
    await story(ada, here.home, user)
    setup = SetupRecorded(part="prompt", content=PROMPT)
    await log.append(Aggregate("thread_setup", "t"), [setup], expected=0, actor="test")
    seqs = list[int]()
    for run, text in (("r1", "At first."), ("r2", LATER)):
        asked = RunRequested(input={"messages": [human(f"h-{run}", text)]})
        await here.system.intake.request_run("t", run, asked)
        sha256 = hashlib.sha256(PROMPT.encode()).hexdigest()
        started = RunStarted(attempt=1, worker="w", lease=1, setup={"prompt": sha256}, setup_thread="t")
        facts: list[Event] = [started, ModelCompleted(message=ai(f"a-{run}", f"So: {text}")), RunCompleted()]
        tip = await log.tip(thread("t"))
        written = await log.append(thread("t"), facts, expected=tip, actor="test", run=run)
        seqs += [record.seq for record in written]
    return Story("t", seqs[1], seqs[2], seqs[4])


def addresses(token: str, at: int) -> list[str]:
    """Everything that a token may open, asked about an event."""
    paths = [route.path.replace("{token}", token).replace("{path:.+}", PRESENTED.lstrip("/")) for route in ROUTES]
    query = {"prompt": f"?at=seq:{at}", "why": f"?event=seq:{at}"}
    return [f"/api{path}{query.get(path.rpartition('/')[2], '')}" for path in paths]


async def statuses(person: Browser, token: str, at: int) -> set[int]:
    return {(await person.ask("GET", path)).status for path in addresses(token, at)}


async def test_colleagues_see_the_moment_and_nothing_later(system: System, tmp_path: Path) -> None:
    async with place(system, WithAccounts(), tmp_path / "home") as here:
        admin, ada, bob = await here.admin(), await here.person(ADA), await here.person(BOB)
        tale = await two_runs(here, ada)
        made = await share(ada, audience="accounts", events=True, at=f"seq:{tale.end}")
        assert made["url"] == f"/#/shared/{made['token']}/{tale.end}"
        assert (made["audience"], made["events"]) == ("accounts", tale.end)
        path = f"/api/shares/{made['token']}"
        for person in (ada, bob, admin):
            seen = [await person.ask("GET", where) for where in addresses(made["token"], tale.answer)]
            assert {answer.status for answer in seen} == {200}, [(answer.status, answer.body) for answer in seen]
            assert not [answer for answer in seen if LATER in answer.raw.decode()]
        page = await bob.ask("GET", path)
        assert page.body["messages"][-1]["text"] == "So: At first."
        assert (page.body["shared_by"], page.body["events"]) == (ADA, tale.end)
        assert page.headers["Cache-Control"] == "no-store"

        events = (await bob.ask("GET", f"{path}/log/events?before=0")).body["events"]
        own = (await ada.ask("GET", "/api/threads/t/log/events")).body["events"]
        assert events[::-1] == [entry for entry in own if entry["seq"] <= tale.end]
        assert (await bob.ask("GET", f"{path}/log/events")).body["events"] == events[::-1]
        assert (await bob.ask("GET", f"{path}/log/events?before={tale.later + 1}")).body["events"] == events
        for question in ("state", "usage", "files"):
            theirs = await bob.ask("GET", f"{path}/log/{question}")
            assert theirs.body == (await ada.ask("GET", f"/api/threads/t/log/{question}?at=seq:{tale.end}")).body
        prompt = await bob.ask("GET", f"{path}/log/prompt?at=seq:{tale.answer}")
        assert prompt.body["request"]["prompt"] == PROMPT
        causes = (await bob.ask("GET", f"{path}/log/why?event=seq:{tale.answer}")).body
        assert {cause["aggregate"] for cause in causes} == {"t"}


async def test_later_moments_are_not_there(system: System, tmp_path: Path) -> None:
    async with place(system, WithAccounts(), tmp_path / "home") as here:
        ada, bob = await here.person(ADA), await here.person(BOB)
        tale = await two_runs(here, ada)
        made = await share(ada, audience="accounts", events=True, at=f"seq:{tale.end}")
        records = [record async for record in system.log.read(thread("t"))]
        later = next(record for record in records if record.seq == tale.later)
        number = records.index(later) + 1
        for name in (f"seq:{tale.later}", str(number), later.id):
            for question in ("state?at", "usage?at", "files?at", "prompt?at", "why?event"):
                answer = await bob.ask("GET", f"/api/shares/{made['token']}/log/{question}={name}")
                assert (answer.status, LATER in answer.raw.decode()) == (404, False), (question, name)
        answer = await bob.ask("GET", f"/api/shares/{made['token']}/log/events?text={LATER}&model=m")
        assert answer.body == {"events": [], "next": None}


async def test_who_may_not(system: System, tmp_path: Path) -> None:
    """Nobody learns from an answer whether there is such a share."""
    async with place(system, WithAccounts(), tmp_path / "home") as here:
        ada, bob = await here.person(ADA), await here.person(BOB)
        tale = await two_runs(here, ada)
        shared = (await share(ada, audience="accounts", events=True))["token"]
        conversation = (await share(ada, audience="accounts"))["token"]
        public = (await share(ada))["token"]
        strangers = [await statuses(here.browser(), token, tale.answer) for token in (shared, public, "x")]
        assert strangers == [{401}] * 3
        program = here.browser(**{"X-Api-Key": await here.key(BOB, ["runs:read"])})
        assert [await statuses(program, token, tale.answer) for token in (shared, "x")] == [{403}] * 2
        reading = here.browser(**{"X-Api-Key": await here.key(BOB, ["threads:read", "files:read"])})
        assert await statuses(reading, shared, tale.answer) == {200}
        assert await statuses(bob, public, tale.answer) == await statuses(bob, "x", tale.answer) == {404}
        for token in (shared, conversation):
            for rest in ("", f"/files{PRESENTED}", f"/view{PRESENTED}"):
                assert (await read(here, token, rest)).status == 404, "it is not for everybody"
        only = {path: (await bob.ask("GET", path)).status for path in addresses(conversation, tale.answer)}
        assert {path for path, status in only.items() if status == 404} == {path for path in only if "/log/" in path}
        assert (await bob.ask("GET", "/api/threads/t")).status == 404


async def revoked(ada: Browser, here: Place, made: Any) -> None:
    assert (await ada.ask("DELETE", f"/api/threads/t/share/{made['share_id']}")).status == 204


async def deleted(ada: Browser, here: Place, made: Any) -> None:
    assert (await ada.ask("DELETE", "/api/threads/t")).status == 204


async def pruned(ada: Browser, here: Place, made: Any) -> None:
    pruning = {"thread_ids": ["t"], "strategy": "keep_latest"}
    assert (await ada.ask("POST", "/api/threads/prune", pruning)).status == 200


async def offboarded(ada: Browser, here: Place, made: Any) -> None:
    await here.directory.disable(ADA, actor="test")


@pytest.mark.parametrize("end", [revoked, deleted, pruned, offboarded])
async def test_it_ends(system: System, tmp_path: Path, end: Any) -> None:
    async with place(system, WithAccounts(), tmp_path / "home") as here:
        ada, bob = await here.person(ADA), await here.person(BOB)
        tale = await two_runs(here, ada)
        made = await share(ada, audience="accounts", events=True)
        frame = await bob.ask("GET", f"/api/shares/{made['token']}/files{PRESENTED}?view=sandbox")
        where = frame.headers["Location"]
        shown = await here.browser(**{"Sec-Fetch-Dest": "iframe"}).ask("GET", where)
        assert (frame.status, shown.status, shown.raw) == (302, 200, b"<p>as it was</p>")
        picture = await here.browser().ask("GET", where.replace("page.html", "dot.png"))
        assert picture.status == 200, "a page finds the other files that are shared"
        private = await here.browser().ask("GET", where.replace("report/page.html", "private.txt"))
        assert private.status == 404
        assert await statuses(bob, made["token"], tale.answer) == {200}
        await end(ada, here, made)

        async def gone() -> bool:
            return await statuses(bob, made["token"], tale.answer) == {404}

        await eventually(gone)  # another process may have disabled the account
        assert (await here.browser().ask("GET", where)).status == 404


async def test_what_a_share_must_be(system: System, tmp_path: Path) -> None:
    async with place(system, WithAccounts(), tmp_path / "home") as here:
        ada = await here.person(ADA)
        await two_runs(here, ada)
        wrong: list[tuple[dict[str, Any], int]] = [
            ({"events": True}, 422),
            ({"audience": "nobody"}, 422),
            ({"audience": "accounts", "at": "seq:999999"}, 404),
            ({"audience": "accounts", "at": "1"}, 409),
            ({"audience": "accounts", "at": ""}, 422),
        ]
        for body, status in wrong:
            answer = await ada.ask("POST", "/api/threads/t/share", body)
            assert answer.status == status, (body, answer.body)
        past = await share(ada, at="2")
        assert (await read(here, past["token"])).body["messages"][-1]["text"] == "It is **empty**."
        listed = (await ada.ask("GET", "/api/threads/t/share")).body["shares"]
        assert [(entry["audience"], entry["events"]) for entry in listed] == [("everybody", None)]


async def test_without_accounts_there_are_no_colleagues(system: System, tmp_path: Path) -> None:
    home = tmp_path / "home"
    async with server(system, Setting(accounts=False), home) as here:
        await story(here.browser(), home)
        answer = await here.browser().ask("POST", "/api/threads/t/share", {"audience": "accounts"})
        assert answer.status == 409
        made = await share(here.browser())
        assert (await here.browser().ask("GET", f"/api/shares/{made['token']}")).status == 404


async def test_a_request_costs_one_lookup(system: System, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once the share is known here, also while the thread goes on: no fold."""
    async with place(system, WithAccounts(), tmp_path / "home") as here:
        ada, bob = await here.person(ADA), await here.person(BOB)
        await two_runs(here, ada)
        made = await share(ada, audience="accounts", events=True)
        path = f"/api/shares/{made['token']}/log/events?limit=1"
        assert (await bob.ask("GET", path)).status == 200
        services = here.system.threads
        loads = list[str]()
        load = services.load

        async def counted(thread_id: str, **more: Any) -> Any:
            loads.append(thread_id)
            return await load(thread_id, **more)

        monkeypatch.setattr(services, "load", counted)
        for _ in range(3):
            await here.system.intake.create_thread("other", user="x")
            tip = await system.log.tip(thread("t"))
            await system.log.append(thread("t"), [RunCompleted()], expected=tip, actor="test", run="r3")
            assert (await bob.ask("GET", path)).status == 200
        assert loads == []
        await share(ada)
        loads.clear()
        assert (await bob.ask("GET", path)).status == 200
        assert loads == ["t"], "what is shared has changed"


def test_shares_of_before_are_for_everybody() -> None:
    raw = b"""{"type":"thread.shared","kind":"thread","aggregate":"t","id":"i","at":"2026-11-01T00:00:00Z","actor":"a",
        "share":"s","by":"u","upto":4,"digest":"d"}"""
    fact = Record(4, raw).event
    assert isinstance(fact, ThreadShared)
    assert (fact.audience, fact.events) == ("everybody", 0)

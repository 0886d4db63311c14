"""Limits over HTTP, the SDK with a key, addresses to bind to, and what proxies say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp.test_utils import make_mocked_request
from langgraph_sdk import get_client
from langgraph_sdk.errors import PermissionDeniedError
from multidict import CIMultiDict

from channels.http.app import serve
from channels.http.server import guard
from core.config.settings import Auth, Limits
from core.errors import Invalid
from core.events import ModelCompleted
from core.runs.ledger import Ledgers
from core.runtime.system import System
from tests.channels.http.conftest import Worker, services_of
from tests.channels.http.people import ADA, AUTH, Answer, Browser, Place, WithAccounts
from tests.channels.http.people import fixture_config as fixture_config
from tests.channels.http.people import fixture_here as fixture_here
from tests.channels.http.story import ai


async def test_requests_per_minute(here: Place, config: WithAccounts) -> None:
    config.limits = Limits(requests_per_minute=3)
    ada, bob = await here.person(ADA), await here.person("bob@example.org")
    statuses = [(await ada.me()).status for _ in range(4)]
    assert statuses == [200] * 3 + [429]
    answer = await ada.ask("POST", "/api/threads", {})
    assert (answer.status, answer.code, set(answer.body)) == (429, "too_many_requests", {"detail", "code"})
    assert 0 < int(answer.headers["Retry-After"]) <= 60
    assert (await bob.me()).status == 200
    assert (await ada.ask("GET", "/health")).status == 200


async def test_a_refused_run_takes_no_place(here: Place, config: WithAccounts) -> None:
    ada = await here.person(ADA)
    one, other = [(await ada.ask("POST", "/api/threads", {})).body["thread_id"] for _ in range(2)]

    async def run(thread: str) -> int:
        return (await ada.ask("POST", f"/api/threads/{thread}/runs", {"input": {"messages": []}})).status

    config.limits = Limits(max_concurrent_runs=2)
    assert [await run(thread) for thread in ("unknown", one, one, one, other)] == [404, 200, 409, 409, 200]
    assert await run("unknown") == 429, "and the places that are taken stay so"


async def test_tokens_of_a_day(here: Place, worker: Worker, system: System, config: WithAccounts) -> None:
    ada, bob = await here.person(ADA), await here.person("bob@example.org")
    config.limits = Limits(tokens_per_day=100)

    async def asked(who: Browser) -> tuple[str, Answer]:
        thread = (await who.ask("POST", "/api/threads", {})).body["thread_id"]
        return thread, await who.ask("POST", f"/api/threads/{thread}/runs", {"input": {"messages": []}})

    thread, answer = await asked(ada)
    run = answer.body["run_id"]
    usage = {"input_tokens": 90, "output_tokens": 10, "total_tokens": 100}
    await worker.start(thread, run)
    await worker.write(thread, run, ModelCompleted(message={**ai("m", "Hello"), "usage_metadata": usage}))
    state = await system.threads.load(thread)
    await Ledgers(system.log).post(state, state.runs[run], everybody=False)
    _, answer = await asked(ada)
    assert (answer.status, answer.code) == (429, "token_budget")
    assert (await asked(bob))[1].status == 200


async def test_the_sdk_sends_its_key(here: Place) -> None:
    await here.person(ADA)
    async with get_client(url=f"{here.url}/api", api_key=await here.key(ADA, ["threads"])) as client:
        thread = await client.threads.create()
        assert (await client.threads.get(thread["thread_id"]))["thread_id"] == thread["thread_id"]
        with pytest.raises(PermissionDeniedError, match="runs:create"):
            await client.runs.create(thread["thread_id"], "lead_agent")


async def test_with_accounts_other_machines_may_come(
    system: System, config: WithAccounts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SIKA_TRUSTED_NETWORK", raising=False)
    services = services_of(system, config, tmp_path / "home")
    async with serve(services, "0.0.0.0", 0) as port, aiohttp.ClientSession() as session:
        for path, status in (("/health", 200), (f"{AUTH}/me", 401)):
            async with session.get(f"http://127.0.0.1:{port}{path}", headers={"Host": "192.0.2.1"}) as response:
                assert response.status == status
    config.auth = Auth()
    with pytest.raises(Invalid, match=r"auth\.enabled"):
        async with serve(services, "0.0.0.0", 0):
            pass


class Peer:
    """A connection from somewhere."""

    def __init__(self, ip: str) -> None:
        self.ip = ip

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return (self.ip, 4711) if name == "peername" else default


PROXY, CDN, PERSON, OTHER = "10.0.0.1", "198.51.100.1", "203.0.113.9", "203.0.113.66"


@pytest.mark.parametrize(
    ("peer", "headers", "ip"),
    [
        (PERSON, {}, PERSON),
        (PERSON, {"X-Forwarded-For": OTHER, "X-Real-IP": OTHER, "Forwarded": f"for={OTHER}"}, PERSON),
        (PROXY, {}, PROXY),
        (PROXY, {"X-Forwarded-For": PERSON}, PERSON),
        (PROXY, {"X-Forwarded-For": f"{OTHER}, {PERSON}"}, PERSON),
        (PROXY, {"X-Forwarded-For": f"{OTHER}, {PERSON}, {CDN}"}, PERSON),
        (PROXY, {"X-Forwarded-For": f"{PERSON}, {CDN}", "X-Real-IP": CDN}, PERSON),
        (PROXY, {"X-Forwarded-For": f"{PERSON}:4711"}, PERSON),
        (PROXY, {"X-Forwarded-For": "2001:db8::1"}, "2001:db8::1"),
        (PROXY, {"X-Forwarded-For": f"::ffff:{PERSON}"}, PERSON),
        (PROXY, {"X-Forwarded-For": f"{PERSON}, unknown"}, PROXY),
        (PROXY, {"X-Forwarded-For": ","}, PROXY),
        (PROXY, {"X-Forwarded-For": f"{CDN}, {PROXY}"}, PROXY),
        (PROXY, {"X-Real-IP": PERSON}, PERSON),
        (PROXY, {"X-Real-IP": "evil"}, PROXY),
        (PROXY, {"X-Real-IP": PERSON, "X-Forwarded-For": PERSON}, PERSON),
        (PROXY, {"X-Real-IP": OTHER, "X-Forwarded-For": PERSON}, PROXY),
        (PROXY, {"Forwarded": f"for={PERSON};proto=https"}, PERSON),
        (PROXY, {"Forwarded": f'for={OTHER}, for="[2001:db8::1]:80"'}, "2001:db8::1"),
        (PROXY, {"Forwarded": f"for={OTHER}", "X-Forwarded-For": PERSON}, PROXY),
        (PROXY, {"Forwarded": "for=_hidden"}, PROXY),
        ("::ffff:10.0.0.1", {"X-Forwarded-For": PERSON}, PERSON),
    ],
)
def test_whom_a_request_is_from(peer: str, headers: dict[str, str], ip: str) -> None:
    """Two headers that contradict each other: one was rewritten by the proxy, the other one sent by the person."""
    request = make_mocked_request("GET", "/", headers=CIMultiDict(headers), transport=Peer(peer))
    assert guard.observe(request, ("10.0.0.0/8", CDN)).ip == ip


@pytest.mark.parametrize(("peer", "page"), [("127.0.0.1", "localhost:3000"), ("::1", "localhost:3000"), (PERSON, "us")])
def test_only_this_machine_says_whose_pages_are_ours(peer: str, page: str) -> None:
    headers = CIMultiDict({"Host": "us", "X-Forwarded-Host": "localhost:3000"})
    request = make_mocked_request("GET", "/", headers=headers, transport=Peer(peer))
    assert (guard.observe(request, ()).page, guard.observe(request, ()).host) == (page, "us")

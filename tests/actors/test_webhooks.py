"""Webhooks: posted when a run has ended, until they are taken, by receivers that are really there."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import msgspec
import pytest
import structlog
from aiohttp import web

from actors import webhooks
from actors.webhooks import Webhooks
from adapters.egress import Poster, PublicResolver
from channels.http.protocols.langgraph import run_object
from core.config.load import ConfigSource
from core.egress import is_public
from core.errors import Unavailable
from core.events import Aggregate, Record, RunPaused, WebhookDelivered, WebhookFailed
from core.log.store import EventLog
from core.thread.state import Run
from tests.support.applications import running
from tests.support.model_server import Failure, Script, Turn
from tests.support.workers import Client, site, wait_for

pytestmark = pytest.mark.anyio

DONE = (Turn(text="Done."),)
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@dataclass
class Receiver:
    """Answers with the statuses it is given, then with 204."""

    statuses: list[int]
    url: str = ""
    bodies: list[Any] = field(default_factory=list)
    requests: list[tuple[dict[str, str], bytes]] = field(default_factory=list)

    async def handle(self, request: web.Request) -> web.Response:
        raw = await request.read()
        self.requests.append((dict(request.headers), raw))
        self.bodies.append(msgspec.json.decode(raw))
        status = self.statuses.pop(0) if self.statuses else 204
        return web.Response(status=status, headers={"Location": self.url} if status == 302 else None)


@asynccontextmanager
async def receiver(*statuses: int) -> AsyncIterator[Receiver]:
    server = Receiver(list(statuses))
    app = web.Application()
    app.router.add_post("/hook", server.handle)
    async with running(app) as url:
        server.url = f"{url}/hook"
        yield server


@asynccontextmanager
async def deliveries(home: Path, script: Script | Sequence[Turn] = DONE) -> AsyncIterator[Client]:
    """A worker whose webhooks may go to this machine."""
    async with site(home, {"m": script}, webhooks={"secret": "s3cret", "allow_private": True}) as (client, _):
        actor = Webhooks(ConfigSource(home / "config.yaml"), home, Poster(), run_object.outcome)
        async with _serving(client, actor):
            yield client


@asynccontextmanager
async def _serving(client: Client, actor: Webhooks) -> AsyncIterator[None]:
    async with anyio.create_task_group() as tasks:
        await tasks.start(lambda task_status: client.system.serve([actor], alone=False, task_status=task_status))
        yield
        tasks.cancel_scope.cancel()


async def settled(client: Client, run_id: str) -> Run:
    """The run, once its webhook was taken or given up."""

    async def over() -> bool:
        last = (await client.state("t1")).runs[run_id].webhook
        return isinstance(last, WebhookDelivered) or (isinstance(last, WebhookFailed) and last.again_at is None)

    await wait_for(over)
    return (await client.state("t1")).runs[run_id]


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhooks, "PAUSES", (0.1, 0.1, 0.1))


async def test_delivered_once_after_failures(tmp_path: Path) -> None:
    async with receiver(500, 302) as there, deliveries(tmp_path) as client:
        await client.thread()
        run_id = await client.ask("t1", "Go", "m", webhook=there.url, metadata={"n": 1})
        run = await settled(client, run_id)
        assert run.webhook == WebhookDelivered(status=204, attempt=3)
        assert [
            f.event.reason for f in await client.records("t1", WebhookFailed) if isinstance(f.event, WebhookFailed)
        ] == [
            "the receiver answered 500",
            "the receiver answered 302",
        ]
        assert len(there.requests) == 3
        body = there.bodies[-1]
        assert (body["run_id"], body["thread_id"], body["status"], body["metadata"]) == (
            run_id,
            "t1",
            "success",
            {"n": 1},
        )
        assert [m["content"] for m in body["values"]["messages"]] == ["Go", "Done."]
        assert body["run_started_at"] < body["run_ended_at"] <= body["webhook_sent_at"]
        assert "error" not in body
        headers, raw = there.requests[-1]
        signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + raw
        expected = base64.b64encode(hmac.new(b"s3cret", signed, hashlib.sha256).digest()).decode()
        assert headers["webhook-signature"] == f"v1,{expected}"
        assert len({headers["webhook-id"] for headers, _ in there.requests}) == 1
        await client.said("t1", "Again", "m")
        assert len(there.requests) == 3, "a run without a webhook posts nothing"


async def test_a_delivery_does_not_read_the_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with receiver(500) as there, deliveries(tmp_path) as client:
        await client.thread()
        for _ in range(10):
            await client.said("t1", "Before", "m")
        events, read = len(await client.records("t1")), EventLog.read
        got: list[int] = []

        async def counted(self: EventLog, aggregate: Aggregate, **more: Any) -> AsyncIterator[Record]:
            mine = structlog.contextvars.get_contextvars().get("actor") == "webhooks"
            async for record in read(self, aggregate, **more):
                if mine:
                    got.append(record.seq)
                yield record

        monkeypatch.setattr(EventLog, "read", counted)
        await settled(client, await client.ask("t1", "Go", "m", webhook=there.url))
        assert len(there.bodies[-1]["values"]["messages"]) == 22
        assert 0 < len(got) < events


@pytest.mark.parametrize(
    "asked", [{"traceparent": PARENT}, {"metadata": {"traceparent": PARENT}}, {}], ids=["header", "metadata", "none"]
)
async def test_the_receiver_can_join_the_trace(asked: dict[str, Any], tmp_path: Path) -> None:
    async with receiver() as there, deliveries(tmp_path) as client:
        await client.thread()
        await settled(client, await client.ask("t1", "Go", "m", webhook=there.url, **asked))
        [(headers, _)] = there.requests
        assert headers.get("traceparent") == (PARENT if asked else None)


async def test_given_up(tmp_path: Path) -> None:
    async with deliveries(tmp_path) as client:
        await client.thread()
        run = await settled(client, await client.ask("t1", "Go", "m", webhook="http://127.0.0.1:1/hook?key=hidden"))
        assert isinstance(run.webhook, WebhookFailed)
        assert run.webhook.attempt == 4
        assert "hidden" not in run.webhook.reason
        records = await client.records("t1", WebhookFailed)
        assert len(records) == 4


async def test_failed_and_paused_runs_are_told(tmp_path: Path) -> None:
    broken = [Turn(error=Failure(status=400))]
    async with receiver() as there, deliveries(tmp_path, broken) as client:
        await client.thread()
        await settled(client, await client.ask("t1", "Go", "m", webhook=there.url))
        assert there.bodies[0]["status"] == "error"
        assert there.bodies[0]["error"]["error"] == "BadRequestError"
        await settled(client, await client.ask("t1", "Go", "m", webhook=there.url, interrupt_before=["model"]))
        assert await client.records("t1", RunPaused)
        assert there.bodies[1]["status"] == "success"


SPECIAL = (
    *("192.0.0.192", "192.0.0.8", "192.88.99.1", "fec0::1", "::10.0.0.1", "64:ff9b:1::7f00:1", "3fff::1"),
    *("5f00::1", "::ffff:0:127.0.0.1", "0.0.0.1", "100.64.0.1", "169.254.169.254", "192.0.2.1", "192.175.48.1"),
    *("198.18.0.1", "203.0.113.1", "224.0.0.1", "255.255.255.255", "::", "100::1", "2001::1"),
    *(
        "2001:db8::1",
        "2620:4f:8000::1",
        "4000::1",
        "fd00:ec2::254",
        "ff02::1",
        "::ffff:192.0.0.192",
        "2002:a9fe:a9fe::",
    ),
)


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("93.184.216.34", True),
        ("127.0.0.1", False),
        ("10.1.2.3", False),
        ("169.254.169.254", False),
        ("100.64.0.1", False),
        ("0.0.0.0", False),
        ("224.0.0.1", False),
        ("2606:2800:220:1::1", True),
        ("::1", False),
        ("fe80::1%eth0", False),
        ("fc00::1", False),
        ("::ffff:127.0.0.1", False),
        ("2002:7f00:1::", False),
        ("64:ff9b::7f00:1", False),
        ("64:ff9b::808:808", True),
        ("2002:808:808::1", True),
        ("2606:4700:4700::1111", True),
        ("2a00:1450:4001::8a", True),
        *((special, False) for special in SPECIAL),
    ],
)
def test_public_addresses(address: str, public: bool) -> None:
    assert is_public(address) is public


async def test_a_name_that_resolves_to_this_machine_is_not_connected_to() -> None:
    async with receiver() as there:
        resolver = PublicResolver()
        with pytest.raises(OSError, match="no public address"):
            await resolver.resolve("localhost", 80)
        await resolver.close()
        url = there.url.replace("127.0.0.1", "localhost")
        connector = aiohttp.TCPConnector(resolver=PublicResolver())
        async with aiohttp.ClientSession(connector=connector) as session:
            with pytest.raises(aiohttp.ClientConnectorError):
                await session.post(url)
        with pytest.raises(Unavailable):
            await Poster().post("http://127.0.0.1:1/", b"", {}, seconds=5, private=True)
        assert there.requests == []

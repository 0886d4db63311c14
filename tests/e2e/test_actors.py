"""`sika actors` and `/api/actors`, against two servers of one cluster."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.e2e.servers import Server, sika
from tests.e2e.test_kill9 import cluster
from tests.support.workers import wait_for

pytestmark = pytest.mark.anyio


async def listed(path: Path, server: Server, *more: str) -> str:
    """What `sika actors` prints."""
    command = ["actors", "--home", str(server.home), "--config", str(path / "config.yaml"), *more]
    process = await sika(*command, ledger=server.ledger, stderr=path / "actors.log")
    lines = []
    while line := await process.line():
        lines.append(line.decode())
    assert await process.waited() == 0, (path / "actors.log").read_text()
    return "".join(lines)


async def test_two_servers(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (a, b, client, _):
        thread = await client.thread(a)
        run = await client.run(a, thread, "hello", "quick")

        async def done() -> bool:
            return await client.status(b, thread, run) == "success"

        await wait_for(done)
        pids = {a.process.pid, b.process.pid}

        async def both() -> bool:
            """Each server reports of both, and both have dispatched the whole log."""
            reports = [await client.get(server, "/actors") for server in (a, b)]
            places = [actor["position"] for r in reports for p in r["processes"] for actor in p["actors"]]
            dispatched = {place for place in places if place is not None} == {reports[0]["position"]}
            return dispatched and [{p["pid"] for p in r["processes"]} for r in reports] == [pids, pids]

        await wait_for(both)
        report = json.loads(await listed(tmp_path, a, "--json"))
        leads = [actor for process in report["processes"] for actor in process["actors"] if actor["name"] == "lead"]
        assert sum(lead["handled"] for lead in leads) >= 1
        assert [lead["failed"] for lead in leads] == [0, 0]
        text = await listed(tmp_path, b)
        assert all(f"pid {pid} on " in text for pid in pids)
        assert len(re.findall(r"^  lead ", text, re.MULTILINE)) == 2
        await b.kill()

        async def alone() -> bool:
            [*processes] = (await client.get(a, "/actors"))["processes"]
            return [process["pid"] for process in processes] == [a.process.pid]

        await wait_for(alone)

"""Interceptors by configuration: the first is the outermost; one that cannot be built is named, and costs no call."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.actors.mcp.test_calls import calls, results
from tests.support.mcp import installed, mcp_site, server

pytestmark = pytest.mark.anyio
PLACE = "tests.support.mcp_interceptors"


async def test_they_change_and_refuse_calls(tmp_path: Path) -> None:
    turns = calls(("s_echo", {"text": "hello"}), ("s_echo", {"text": "stop"}))
    mcp = {"interceptors": [f"{PLACE}:outer", f"{PLACE}:inner"]}
    async with mcp_site(tmp_path, {"s": server()}, {"m": turns}, mcp=mcp) as (client, _):
        echo, stopped = results(await client.said(await client.thread(), "Go"))
    assert echo["content"] == "echo hello outer inner s"
    assert (stopped["status"], stopped["content"]) == ("error", "stopped by the outer interceptor")


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        (f"{PLACE}:broken", "RuntimeError: no licence"),
        (f"{PLACE}:missing", "AttributeError"),
        ("no.such.module:x", "ModuleNotFoundError"),
    ],
)
async def test_one_that_cannot_be_built(tmp_path: Path, path: str, reason: str) -> None:
    turns, mcp = calls(("s_echo", {"text": "hello"})), {"interceptors": [path]}
    async with mcp_site(tmp_path, {"s": server()}, {"m": turns}, mcp=mcp) as (client, _):
        [echo] = results(await client.said(await client.thread(), "Go"))
        listing = (await installed(client)).known["s"].listing
    assert echo["content"] == "echo hello"
    assert listing is not None
    [problem] = listing.problems
    assert problem.reason.startswith(f"mcp.interceptors: {path}: {reason.partition(':')[0]}")
    assert problem.reason.endswith("; calls are made without it")

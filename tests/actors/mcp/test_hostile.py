"""Servers that send anything: no run ends, no good tool is lost, and what is wrong is said where people look."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.actors.mcp.test_calls import calls, results
from tests.support.mcp import installed, mcp_site, server

pytestmark = [pytest.mark.anyio, pytest.mark.long(keep=3)]
SEEDS = range(12)


@pytest.mark.long
async def test_a_run_with_servers_that_send_anything(tmp_path: Path) -> None:
    servers = {f"h{seed}": server(f"hostile={seed}") for seed in SEEDS}
    turns = calls(*((f"h{seed}_good", {"text": "x"}) for seed in SEEDS))
    async with mcp_site(tmp_path, servers, {"m": turns}, mcp={"list_seconds": 60, "max_sessions": 40}) as (
        client,
        models,
    ):
        answers = results(await client.said(await client.thread(), "Go"))
        state = await installed(client)
    assert all("MARK" in answer["content"] for answer in answers), answers
    offered = {tool["function"]["name"] for tool in models.requests[0].body["tools"]}
    assert {f"h{seed}_good" for seed in SEEDS} <= offered
    listings = [state.known[name].listing for name in servers]
    assert any(problem.left_out for listing in listings if listing for problem in listing.problems)
    assert [state.known[name].failure for name in servers] == [None] * len(servers)


@pytest.mark.parametrize("code", [-32000, -32001, -32600, 0, 403])
async def test_an_error_of_a_server_is_that_call_s(tmp_path: Path, code: int) -> None:
    """-32000 is what the SDK says for a lost connection, and servers for errors of their own."""
    turns = calls(("s_refuse", {}), ("s_echo", {"text": "on"}))
    async with mcp_site(tmp_path, {"s": server(f"code={code}", f"marks={tmp_path}/m")}, {"m": turns}) as (client, _):
        refused, echo = results(await client.said(await client.thread(), "Go"))
    assert refused["status"] == "error"
    assert refused["content"] == "these arguments are refused"
    assert echo["content"] == "echo on"
    assert (tmp_path / "m").read_text().split().count("list") <= 2  # its session went on

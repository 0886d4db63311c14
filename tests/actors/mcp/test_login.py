"""A whole server whose agent uses an MCP server that lets nobody in without a login."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from actors.wiring import compose
from channels.cli.extend import mcp_login
from channels.client import AsyncSikaClient, NotFound
from tests.support.model_server import ModelServer, ToolCall, Turn
from tests.support.oauth import authorization_server
from tests.support.workers import configure, wait_for

RUN = {
    "assistant_id": "lead_agent",
    "if_not_exists": "create",
    "input": {"messages": [{"role": "user", "content": "?"}]},
}


class Api:
    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session, self.url = session, f"{url}/api"

    async def ask(self, method: str, path: str, body: Any = None) -> Any:
        async with self._session.request(method, self.url + path, json=body) as response:
            assert response.status == 200, await response.text()
            return await response.json()

    async def access(self) -> tuple[str, str]:
        [access] = (await self.ask("GET", "/mcp/oauth"))["servers"]
        return access["state"], access["reason"]

    async def notes(self, thread: str) -> list[str]:
        """What the agent's calls of the tool return."""
        values = await self.ask("POST", f"/threads/{thread}/runs/wait", RUN)
        return [message["content"] for message in values["messages"] if message["type"] == "tool"]


async def test_a_login_gives_the_agent_the_tools_of_a_server(tmp_path: Path) -> None:
    turns = [Turn(tool_calls=(ToolCall("notes_read", {}),)), Turn(text="Done.")]
    async with ModelServer({"m": [*turns, *turns, *turns]}) as models, authorization_server() as there:
        servers = {"notes": {"type": "http", "url": there.server}}
        config = configure(tmp_path / "config.yaml", models, mcp={"servers": servers})
        options = compose.Options(tmp_path / "home", config, port=0)
        async with compose.serve(options) as url, aiohttp.ClientSession() as session:
            api = Api(session, url)
            assert await api.access() == ("none", "")
            [before] = await api.notes("t1")
            assert "notes_read" in before
            assert there.calls["read"] == 0
            prompt = models.requests[0].body["messages"][0]["content"]
            assert "needs login: notes" in prompt, "the model is told why the tools are not there"

            out, client = io.StringIO(), AsyncSikaClient(url=url)
            login = asyncio.create_task(mcp_login.login(client, "notes", out, register=False, browser=False))
            await wait_for(lambda: _has(out, "/authorize?"))
            back = await there.agree(next(line.strip() for line in out.getvalue().splitlines() if "//" in line))
            async with session.get(f"{api.url}/mcp/oauth/callback", params=back) as response:
                assert response.status == 200
                assert "Sika may use your account at notes" in await response.text()
            async with session.get(f"{api.url}/mcp/oauth/callback", params=back) as response:
                assert response.status == 400, "a way back is good once"
            await login
            assert out.getvalue().endswith("logged in to notes\n")
            assert (await api.access())[0] == "connected"
            assert await api.notes("t2") == ["buy milk"]

            there.families[0].access = "of a clock that is ahead"
            assert await api.notes("t3") == ["buy milk"]
            assert there.calls["token"] == 2, "the token that was refused is renewed"

            await mcp_login.logout(client, "notes", out)
            assert out.getvalue().endswith("logged out of notes\n")
            assert there.families[0].revoked
            assert await api.access() == ("none", "")
            with pytest.raises(NotFound, match="no MCP server 'other' to log in to; there are: notes"):
                await mcp_login.login(client, "other", out, register=False, browser=False)
            await client.close()


async def test_a_server_that_demands_more_access(tmp_path: Path) -> None:
    """The next login asks for the scopes that a call lacked, besides those that there are."""
    turns = [Turn(tool_calls=(ToolCall("notes_read", {}),)), Turn(text="Done.")]
    async with ModelServer({"m": [*turns, *turns]}) as models, authorization_server() as there:
        servers = {"notes": {"type": "http", "url": there.server}}
        config = configure(tmp_path / "config.yaml", models, mcp={"servers": servers})
        options = compose.Options(tmp_path / "home", config, port=0)
        async with compose.serve(options) as url, aiohttp.ClientSession() as session:
            api = Api(session, url)
            await _log_in(api, session, there)
            there.demanded = "admin"
            [refused] = await api.notes("t1")
            assert "needs login: notes: the server demands more access: read admin" in refused
            assert await api.access() == ("needs_login", "the server demands more access: read admin")
            await _log_in(api, session, there)
            assert there.scopes == ["read", "admin"]
            assert await api.notes("t2") == ["buy milk"]
            assert (await api.access())[0] == "connected"


async def _log_in(api: Api, session: aiohttp.ClientSession, there: Any) -> None:
    begun = await api.ask("POST", "/mcp/oauth/notes/login", {})
    back = await there.agree(begun["authorization_url"])
    async with session.get(f"{api.url}/mcp/oauth/callback", params=back) as response:
        assert response.status == 200


async def _has(out: io.StringIO, text: str) -> bool:
    return text in out.getvalue()

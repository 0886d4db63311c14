"""Configurations as people of DeerFlow have them (`deerflow/*.yaml`): whole servers do what they say.

What is checked is the effect: what the model was sent, what commands and people got, what was refused.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import aiohttp
import pytest

from tests.channels.telegram.server import TOKEN, TelegramServer
from tests.e2e.servers import SIKA, Browser, Frame, Server, browser, run_of
from tests.support import warm
from tests.support.aio_image import image
from tests.support.kubernetes import service
from tests.support.model_server import ModelServer, Script, ToolCall, Turn
from tests.support.oauth import SECRET, authorization_server
from tests.support.oidc import provider
from tests.support.workers import DEADLINE, wait_for

pytestmark = [pytest.mark.anyio, pytest.mark.long(keep=4)]

FILES = Path(__file__).with_name("deerflow")
DONE = Turn(text="Done.")


class House:
    """A server with one of the configurations, its models and a client."""

    def __init__(self, server: Server, models: ModelServer, client: Browser) -> None:
        self.server, self.models, self.client = server, models, client

    async def run(self, *turns: Turn, text: str = "go", **context: Any) -> list[Any]:
        """Runs these turns and `DONE` in a thread of their own. Returns the thread's messages."""
        self.models.scripts["scripted"] = Script((*turns, DONE))
        thread, frames = await self.client.thread(self.server), list[Frame]()
        await self.client.start(self.server, thread, text, "", frames, context=context)
        assert await self.client.status(self.server, thread, run_of(frames)) == "success", self.server.said()
        return await self.client.messages(self.server, thread)

    def sent(self, model: str = "scripted") -> dict[str, Any]:
        """Returns the last request for a model."""
        return [record.body for record in self.models.requests if record.model == model][-1]

    def tools(self, model: str = "scripted") -> set[str]:
        return {tool["function"]["name"] for tool in self.sent(model).get("tools", ())}


def call(tool: str, **arguments: Any) -> Turn:
    return Turn(tool_calls=(ToolCall(tool, {"description": "d", **arguments}),))


def results(messages: Sequence[Any]) -> list[str]:
    return [message["content"] for message in messages if message["type"] == "tool"]


def place(folder: Path, name: str) -> Path:
    """Puts a configuration, and the second file beside it, into a folder of a project."""
    shutil.copy(FILES / f"{name}.yaml", folder / "config.yaml")
    if name == "mcp":
        shutil.copy(FILES / "extensions.json", folder / "extensions_config.json")
    return folder / "config.yaml"


@asynccontextmanager
async def house(folder: Path, name: str, **environment: str) -> AsyncIterator[House]:
    async with ModelServer({}) as models, browser() as client:
        server = Server(folder / "home", place(folder, name))
        try:
            await server.start(MODEL_URL=models.url, **environment)
            yield House(server, models, client)
        finally:
            if server._process is not None:
                await server.kill()


async def warnings(folder: Path, name: str, **environment: str) -> str:
    """Returns what `sika config check` prints; it ends with `ok`."""
    command = ("config", "check", "--config", str(place(folder, name)))
    about: Mapping[str, str] = {"MODEL_URL": "http://127.0.0.1:9/v1", **environment}
    ended = await asyncio.to_thread(warm.run, SIKA, *command, env={**os.environ, **about}, timeout=DEADLINE)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


async def test_minimal(tmp_path: Path) -> None:
    async with house(tmp_path, "minimal", OPENAI_API_KEY="k") as at:
        [wrote] = results(await at.run(call("write_file", path="/mnt/user-data/workspace/a.txt", content="otters")))
        assert wrote == "OK"
        [file] = at.server.home.glob("users/*/threads/*/user-data/workspace/a.txt")
        assert file.read_text() == "otters"
        request = at.sent()
        assert request.get("max_tokens", request.get("max_completion_tokens")) == 1234
        assert request["temperature"] == 0.7
        assert {"ls", "read_file", "write_file", "present_files"} <= at.tools()
        assert not {"bash", "str_replace", "grep"} & at.tools(), "no shell, and no tool that the list does not have"
        [model] = (await at.client.get(at.server, "/models"))["models"]
        assert (model["name"], model["display_name"]) == ("gpt-4o", "GPT-4o")


async def test_claude_needs_its_package_and_says_which(tmp_path: Path) -> None:
    server = Server(tmp_path / "home", place(tmp_path, "claude"))
    with pytest.raises(AssertionError):
        await server.start(ANTHROPIC_API_KEY="k")
    async with asyncio.timeout(DEADLINE):
        assert await server.process.waited() == 2
    assert 'pip install "sika[anthropic]"' in server.said()


async def test_vllm_thinks_when_it_is_told(tmp_path: Path) -> None:
    async with house(tmp_path, "vllm", VLLM_API_KEY="k") as at:
        for wish in (True, False):
            messages = await at.run(thinking_enabled=wish)
            assert at.sent()["chat_template_kwargs"] == {"enable_thinking": wish}
            assert messages[-1]["content"] == "Done."
        thought = Turn(text="Yes.", reasoning="hm", reasoning_field="reasoning")
        at.models.scripts["scripted"] = Script((thought,))
        thread, frames = await at.client.thread(at.server), list[Frame]()
        await at.client.start(at.server, thread, "go", "", frames, context={"thinking_enabled": True})
        [*_, last] = await at.client.messages(at.server, thread)
        assert (last["content"], last["additional_kwargs"]["reasoning_content"]) == ("Yes.", "hm")


async def test_containers_of_a_provisioner(tmp_path: Path) -> None:
    root = tmp_path / "pods" / "mnt"
    root.mkdir(parents=True)
    with image(root) as container, service(int(container.url.rpartition(":")[2]), "the key") as url:
        secrets = {"PROVISIONER_URL": url, "PROVISIONER_API_KEY": "the key"}
        async with house(tmp_path, "containers", **secrets) as at:
            command = (
                "echo otters > /mnt/user-data/workspace/a.txt; cat /mnt/user-data/workspace/a.txt; yes | head -c 9000"
            )
            [output] = results(await at.run(call("bash", command=command)))
            assert "otters" in output
            assert len(output) < 4000, "sandbox.bash_output_max_chars"
            assert (root / "user-data/workspace/a.txt").read_text() == "otters\n"


async def test_commands_on_the_machine_itself(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared/a.txt").write_text("of the mount")
    async with house(tmp_path, "host", MOUNTED=str(tmp_path / "shared"), REGION="eu-1") as at:
        looks = call("bash", command='echo "<$REGION> <$NOT_SET>"; cat /mnt/shared/a.txt')
        reads = call("read_file", path="/mnt/shared/a.txt")
        [output, read] = results(await at.run(looks, reads))
        assert "<eu-1> <>" in output
        assert "of the mount" in output
        assert "of the mount" in read
        [refused] = results(await at.run(call("write_file", path="/mnt/shared/a.txt", content="x")))
        assert (tmp_path / "shared/a.txt").read_text() == "of the mount", refused
        assert "sandbox.mounts[0].read_only: holds for the file tools only" in at.server.said()


async def test_mcp_servers_with_a_login(tmp_path: Path) -> None:
    async with authorization_server() as notes:
        about = {"NOTES_URL": f"{notes.url}/mcp", "TOKEN_URL": f"{notes.url}/token", "NOTES_SECRET": SECRET}
        async with house(tmp_path, "mcp", **about) as at:
            await at.run()
            await wait_for(lambda: _listed(at, "notes"))
            [read] = results(await at.run(call("notes_read")))
            assert "buy milk" in read
            assert "notes_read" in at.tools()
            assert notes.forms[0]["grant_type"] == "client_credentials"
            assert notes.forms[0]["scope"] == "read"
            servers = (await at.client.get(at.server, "/mcp/config"))["mcp_servers"]
            assert {name: server["enabled"] for name, server in servers.items()} == {"notes": True, "github": False}
            skills = {
                skill["name"]: skill["enabled"] for skill in (await at.client.get(at.server, "/skills"))["skills"]
            }
            assert (skills["pdf"], skills["documents"]) == (False, True)


async def _listed(at: House, name: str) -> bool:
    servers = (await at.client.get(at.server, "/mcp/servers"))["servers"]
    return any(server["name"] == name and server["tools"] for server in servers)


async def test_memory_where_newer_versions_have_it(tmp_path: Path) -> None:
    facts = [
        {"content": "Keeps otters", "category": "context", "confidence": 0.95},
        {"content": "May keep bees", "category": "context", "confidence": 0.8},
    ]
    async with house(tmp_path, "memory") as at:
        at.models.scripts["extractor"] = Script((Turn(text=json.dumps({"newFacts": facts})),))
        await at.run(text="I keep otters, and perhaps bees.")

        async def remembered() -> bool:
            return bool((await at.client.get(at.server, "/memory"))["facts"])

        await wait_for(remembered)
        [fact] = (await at.client.get(at.server, "/memory"))["facts"]
        assert fact["content"] == "Keeps otters", "fact_confidence_threshold"
        await at.run(text="What do I keep?")
        assert "Keeps otters" in json.dumps(at.sent()["messages"])
        settings = await at.client.get(at.server, "/memory/config")
        assert (settings["max_facts"], settings["max_injection_tokens"]) == (10, 500)
    assert "warning: memory.backend_config.storage_path: not in this version" in await warnings(tmp_path, "memory")


async def test_identity_providers_by_name(tmp_path: Path) -> None:
    async with provider() as company:
        about = {"OIDC_ISSUER": company.url, "OIDC_CLIENT_SECRET": "the secret of sika: 100%/+"}
        async with house(tmp_path, "oidc", **about) as at, aiohttp.ClientSession() as session:
            base = f"{at.server.url}/api"
            async with session.get(f"{base}/v1/auth/providers") as response:
                assert (await response.json())["providers"] == [
                    {"id": "keycloak", "display_name": "Company login", "type": "oidc"}
                ]
            async with session.post(f"{base}/threads", json={}) as response:
                assert response.status == 401
            async with session.get(f"{base}/v1/auth/oauth/keycloak", allow_redirects=False) as response:
                asked = urlsplit(response.headers["Location"])
            assert f"{asked.scheme}://{asked.netloc}" == company.url
            assert parse_qs(asked.query)["client_id"] == ["sika"]
            person = {"email": "eve@example.org", "password": "correct horse battery staple"}
            async with session.post(f"{base}/v1/auth/register", json=person) as response:
                assert response.status == 403, "auth.local.allow_registration"


async def test_a_subagent_of_ones_own(tmp_path: Path) -> None:
    async with house(tmp_path, "subagents") as at:
        at.models.scripts["reviewer"] = Script((call("ls", path="/mnt/user-data/workspace"), Turn(text="All is well.")))
        work = {"prompt": "Look at the files.", "subagent_type": "reviewer"}
        [report] = results(await at.run(call("task", **work), subagent_enabled=True))
        assert "All is well." in report
        request = at.sent("reviewer")
        assert "You are a careful reviewer of files." in request["messages"][0]["content"]
        assert request["temperature"] == 0.1
        assert at.tools("reviewer") == {"read_file", "ls"}
        assert (await at.client.get(at.server, "/agents"))["agents"] == [], "agents_api.enabled"


async def test_a_bot(tmp_path: Path) -> None:
    async with TelegramServer() as platform:
        ann = platform.person("ann")
        about = {"TELEGRAM_BOT_TOKEN": TOKEN, "TELEGRAM_URL": platform.url, "ANN": str(ann.id)}
        async with house(tmp_path, "channels", **about) as at:
            at.models.scripts["scripted"] = Script((DONE,))
            ann.says("hello")

            async def answered() -> bool:
                return any(shown.by_bot and "Done." in shown.text for shown in platform.seen(ann.chat))

            await wait_for(answered)
            assert "write_todos" in at.tools(), "session.context.is_plan_mode"
            assert (
                "channels.langgraph_url: has no effect: accounts talk to the bus, not to an address" in at.server.said()
            )


async def test_guardrails_and_limits(tmp_path: Path) -> None:
    async with house(tmp_path, "guarded") as at:
        [refused] = results(await at.run(call("write_file", path="/mnt/user-data/workspace/a.txt", content="x")))
        assert "write_file" in refused
        assert "denied" in refused or "not allowed" in refused, refused
        assert not list(at.server.home.glob("users/*/threads/*/user-data/workspace/a.txt"))
        looks = [call("ls", path="/mnt/user-data/workspace")] * 9
        messages = await at.run(*looks)
        assert len(results(messages)) <= 4, "loop_detection.hard_limit"

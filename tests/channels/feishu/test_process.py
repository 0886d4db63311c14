"""The account's own process, on a real bus: custody over its death, and the page of the documentation followed."""

from __future__ import annotations

import asyncio
import os
import re
import sys
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from core.chat.facts import ChatReceived, conversation
from tests.channels.feishu.server import FeishuServer
from tests.support.children import killed_at_the_end
from tests.support.nats import Nats, bus_on, log_on, read

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "channels/http/docs/feishu.md"
pytestmark = [pytest.mark.anyio, pytest.mark.long(keep=3)]


class Site:
    """The configuration of the page, with the app of a local server."""

    def __init__(self, folder: Path, server: FeishuServer, nats: dict[str, Any]) -> None:
        (block,) = re.findall(r"^```yaml\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
        config = yaml.safe_load(block)
        config["channels"]["feishu"] |= {"app_id": server.app_id, "domain": server.url}
        self._config = folder / "config.yaml"
        self._config.write_text(yaml.safe_dump({**config, "nats": nats, "runs": {"lease_seconds": 6}}))
        self._home = folder / "home"
        self._environment = {**os.environ, "FEISHU_APP_SECRET": server.app_secret}

    async def start(self, command: str, output: int | None = None) -> asyncio.subprocess.Process:
        """Starts `sika <command>`."""
        arguments = [*command.split(), "--home", str(self._home), "--config", str(self._config)]
        return await asyncio.create_subprocess_exec(
            sys.executable, "-m", "channels.cli", *arguments, cwd=ROOT, env=self._environment, stdout=output
        )

    @asynccontextmanager
    async def account(self) -> AsyncIterator[asyncio.subprocess.Process]:
        child = await self.start("channel feishu")
        async with killed_at_the_end(child):
            yield child


async def test_messages_are_in_custody_once_whatever_becomes_of_the_process(tmp_path: Path, nats: Nats) -> None:
    async with FeishuServer() as server, bus_on(nats, f"t{uuid.uuid4().hex[:10]}") as bus, log_on(bus) as log:
        server.redelivery = (0.2,) * 3000
        server.faults.duplicates = 1
        site = Site(tmp_path, server, {"url": nats.url, "prefix": bus.names.prefix})
        ann = server.person("ann")
        async with site.account() as child:
            await server.until(lambda: server.sockets)
            messages = [ann.says(str(number)) for number in range(100)]
            await server.until(lambda: server.acknowledged)
            child.kill()
            await child.wait()
        async with site.account() as child:
            await server.until(lambda: not server._tasks)  # each was acknowledged
            child.terminate()
            assert await child.wait() == 0
        records = await read(log, conversation("feishu", ann.chat))
        received = Counter(record.event.message for record in records if isinstance(record.event, ChatReceived))
        assert received == dict.fromkeys(messages, 1)
        assert server.most_sockets == 1
        assert not server.lost


async def test_the_page_leads_to_an_account_that_is_well(tmp_path: Path, nats: Nats) -> None:
    (command,) = re.findall(r"^\$ sika (channels test .*)$", PAGE.read_text(), re.MULTILINE)
    async with FeishuServer() as server:
        site = Site(tmp_path, server, {"url": nats.url, "prefix": f"t{uuid.uuid4().hex[:10]}"})
        scopes = set(re.findall(r'^ +"([a-z0-9_:.]+)",?$', PAGE.read_text(), re.MULTILINE))
        assert scopes == server.scopes
        output, code = await finished(await site.start(command, asyncio.subprocess.PIPE))
        assert code == 0, output
        assert output.count("ok ") == output.count("\n") == 9

        server.scopes.discard("cardkit:card:write")
        output, code = await finished(await site.start(command, asyncio.subprocess.PIPE))
        assert code == 1
        assert "FAIL  permission for answers that grow\n      Add cardkit:card:write" in output


async def finished(child: asyncio.subprocess.Process) -> tuple[str, int | None]:
    output, _ = await child.communicate()
    return output.decode(), child.returncode

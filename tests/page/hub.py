"""A local server that behaves as GitHub does where skills are fetched, over TLS, under GitHub's names.

The module is named by the configuration of a server of a test: then that server's process finds the names here, as by a
hosts file, and trusts the certificates.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp.connector
from aiohttp import web
from aiohttp.resolver import DefaultResolver

from adapters.sandboxes.egress.authority import Authority
from core.actor import Actor, Context
from core.events import ThreadErased
from tests.support.skills import archive

HUB, ARCHIVES, RAW = "github.com", "codeload.github.com", "raw.githubusercontent.com"
LEDGER = os.environ.get("SIKA_TEST_LEDGER", "")
"""Set in the process of a server of a test."""
TABLE = "hub.json"
"""The file with the ports by name, beside a server's ledger."""


@dataclass
class Hub:
    """`repositories`: the files by path, by branch or tag, by `OWNER/REPO`. Others are private, or not there: 404."""

    repositories: Mapping[str, Mapping[str, Mapping[str, str]]]
    limited: Mapping[str, str] | None = None
    """Headers of the answer 403 or 429 (`status`) that everything gets."""
    status: int = 429
    asked: list[str] = field(default_factory=list)

    async def answer(self, request: web.Request) -> web.Response:
        name, path = (request.headers["Host"], request.path)
        self.asked.append(f"{name}{path}")
        if self.limited is not None:
            return web.Response(status=self.status, headers=self.limited)
        owner, repository, *parts = path.strip("/").split("/")
        branches = self.repositories.get(f"{owner}/{repository}", {})
        match name, parts:
            case "github.com", ["archive", *ref]:
                branch = "/".join(ref).removesuffix(".zip")
                if branch != "HEAD" and branch not in branches:
                    return web.Response(status=404)
                kind = branch if branch == "HEAD" else f"refs/heads/{branch}"
                place = f"https://{ARCHIVES}/{owner}/{repository}/zip/{kind}"
                return web.Response(status=302, headers={"Location": place})
            case "codeload.github.com", ["zip", *ref]:
                branch = "/".join(ref).removeprefix("refs/heads/").replace("HEAD", "main")
                folder = f"{repository}-{branch.replace('/', '-')}"
                return web.Response(body=archive({f"{folder}/{path}": text for path, text in branches[branch].items()}))
            case "raw.githubusercontent.com", _:
                for branch, files in branches.items():
                    if (text := files.get("/".join(parts).removeprefix(f"{branch}/"))) is not None:
                        return web.Response(text=text)
        return web.Response(status=404)


@asynccontextmanager
async def serving(folder: Path, repositories: Mapping[str, Mapping[str, Mapping[str, str]]]) -> AsyncIterator[Hub]:
    """Plays GitHub for servers whose ledger lies in a folder."""
    hub, authority, ports = Hub(repositories), Authority(folder / "authority"), dict[str, int]()
    async with AsyncExitStack() as stack:
        for name in (HUB, ARCHIVES, RAW):
            app = web.Application()
            app.router.add_get("/{path:.*}", hub.answer)
            runner = web.AppRunner(app, shutdown_timeout=1)
            await runner.setup()
            stack.push_async_callback(runner.cleanup)
            await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=authority.context(name)).start()
            ports[name] = runner.addresses[0][1]
        (folder / TABLE).write_text(json.dumps({"ports": ports, "authority": authority.pem.decode()}))
        yield hub


class Names(Actor[ThreadErased]):
    """Does nothing: its module is what a server needs."""

    name = "names"

    async def handle(self, event: ThreadErased, ctx: Context) -> None:
        pass


def _find(ports: Mapping[str, int]) -> None:
    """Has this process find the names here."""
    elsewhere = DefaultResolver.resolve

    async def resolve(self: Any, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET) -> Any:
        if host not in ports:
            return await elsewhere(self, host, port, family)
        here = {"hostname": host, "host": "127.0.0.1", "port": ports[host]}
        return [{**here, "family": socket.AF_INET, "proto": 0, "flags": 0}]

    DefaultResolver.resolve = resolve  # type: ignore[method-assign]


if LEDGER:
    table = json.loads(Path(LEDGER).with_name(TABLE).read_text())
    _find(table["ports"])
    aiohttp.connector._SSL_CONTEXT_VERIFIED.load_verify_locations(cadata=table["authority"])

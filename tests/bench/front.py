"""One origin for a page and the API of another server, as DeerFlow's nginx makes it.

python -m tests.bench.front --api http://127.0.0.1:2026 --page http://127.0.0.1:3000
"""

from __future__ import annotations

import argparse
import asyncio
from contextlib import suppress

import aiohttp
from aiohttp import web

from tests.support.model_server import run

_NOT_HANDED_ON = {"connection", "keep-alive", "transfer-encoding"}


async def _serve(api: str, page: str) -> None:
    timeout = aiohttp.ClientTimeout(total=None, connect=30)
    async with aiohttp.ClientSession(timeout=timeout, auto_decompress=False) as session:

        async def hand_on(request: web.Request) -> web.StreamResponse:
            path = request.rel_url.raw_path_qs
            if path.startswith("/api/"):
                return await _handed_on(request, session, api + path.replace("/api/langgraph/", "/api/", 1))
            return await _handed_on(request, session, page + path)

        app = web.Application()
        app.router.add_route("*", "/{path:.*}", hand_on)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            print(f"http://127.0.0.1:{runner.addresses[0][1]}", flush=True)
            await asyncio.Event().wait()
        finally:
            await runner.cleanup()


async def _handed_on(request: web.Request, session: aiohttp.ClientSession, url: str) -> web.StreamResponse:
    """Sends on what the other server says, as it comes."""
    headers = [(name, value) for name, value in request.headers.items() if name.lower() not in _NOT_HANDED_ON]
    body = await request.read()
    async with session.request(request.method, url, headers=headers, data=body, allow_redirects=False) as theirs:
        kept = [(name, value) for name, value in theirs.headers.items() if name.lower() not in _NOT_HANDED_ON]
        ours = web.StreamResponse(status=theirs.status)
        for name, value in kept:
            ours.headers.add(name, value)
        with suppress(ConnectionResetError):  # the browser has left
            await ours.prepare(request)
            async for block in theirs.content.iter_any():
                await ours.write(block)
            await ours.write_eof()
        return ours


def main() -> None:
    parser = argparse.ArgumentParser(description="A page and an API on one origin.")
    parser.add_argument("--api", required=True)
    parser.add_argument("--page", required=True)
    options = parser.parse_args()
    run(_serve(options.api, options.page))


if __name__ == "__main__":
    main()

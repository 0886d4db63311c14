"""`sika log serve-recorded`: a model that answers from a file."""

from __future__ import annotations

import argparse
from contextlib import AsyncExitStack
from pathlib import Path

from channels.cli.common import OK
from channels.cli.log.sources import open_file
from channels.cli.verbs import Parser
from core.phrases import counted


def arguments(parser: Parser) -> None:
    parser.runs(run)
    parser.add_argument("file", type=Path)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="default: a free one")


async def run(arguments: argparse.Namespace) -> int:
    import anyio

    from adapters.models.recorded import answering, serving
    from core.replay.exchanges import Recording

    async with AsyncExitStack() as opened:
        recording = await Recording.of(await open_file(arguments.file, opened))
        url = await opened.enter_async_context(serving(answering(recording), arguments.host, arguments.port))
        print(f"{url}  {counted(len(recording.exchanges), 'answer')} of {arguments.file}", flush=True)
        await anyio.sleep_forever()
    return OK

"""`sika log record`: requests passed on to a model, and written with their answers into a file."""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterable, AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

from channels.cli.common import OK
from channels.cli.verbs import Parser
from core.ids import now
from core.replay.exports.format import FORMAT, ExchangeLine, Header, Writer
from core.runs.prompts import release

if TYPE_CHECKING:
    from anyio.abc import TaskStatus
    from anyio.streams.memory import MemoryObjectSendStream


def arguments(parser: Parser) -> None:
    parser.runs(run)
    parser.add_argument("file", type=Path)
    parser.add_argument("--upstream", required=True, metavar="URL", help="of the model, before /chat/completions")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="default: a free one")


async def run(arguments: argparse.Namespace) -> int:
    import anyio

    from adapters.models.recorded import recording, serving
    from core.replay.exports.exporting import write

    send, receive = anyio.create_memory_object_stream[ExchangeLine](0)
    async with (
        receive,
        serving(recording(arguments.upstream.rstrip("/"), send.send), arguments.host, arguments.port) as url,
        anyio.create_task_group() as tasks,
    ):
        await tasks.start(_close_when_stopped, send)
        print(f"{url}  recording into {arguments.file}; Ctrl-C ends it", flush=True)
        size = await write(arguments.file, recorded(receive))
    print(f"{arguments.file}: {size} bytes")
    return OK


async def _close_when_stopped(stream: MemoryObjectSendStream[ExchangeLine], *, task_status: TaskStatus[None]) -> None:
    import signal

    import anyio

    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        task_status.started()
        async for _ in signals:
            stream.close()
            return


async def recorded(exchanges: AsyncIterable[ExchangeLine]) -> AsyncIterator[bytes]:
    """Yields the lines of a file of exchanges with a model, as they come."""
    writer = Writer()
    yield writer.line(Header(format=FORMAT, sika=release(), thread="recording", at=now()))
    async for exchange in exchanges:
        yield writer.line(exchange)
    yield writer.end()

"""The commands `sika log …` that write files of recorded events, and read them."""

from __future__ import annotations

import argparse
import sys
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from channels.cli.common import FAILED, OK, options_of
from channels.cli.log.sources import file_of, files_of, open_file
from channels.cli.verbs import Below
from core.errors import Invalid, NotFound

if TYPE_CHECKING:
    from anyio.abc import TaskStatus
    from anyio.streams.memory import MemoryObjectSendStream

    from core.replay.exporting import Reader
    from core.replay.format import ExchangeLine
    from core.replay.pins import Difference

PINNED = "tests/golden/pinned"


def share_commands(add: Below) -> None:
    """Adds the commands to the group `log`."""
    export = add("export", _export, "write a thread, with all that it called, into a file")
    export.add_argument("thread")
    export.add_argument("--out", type=Path, metavar="FILE", help="default: THREAD.jsonl")
    export.add_argument("--redact", action="store_true", help="replace secrets, users and addresses by placeholders")
    export.add_argument("--blobs", action="store_true", help="the bodies that are too big for the log, too")
    export.add_argument("--files", action="store_true", help="the files of the thread, too")
    restore = add("import", _import, "append the events of an exported file to the log", writes=True)
    restore.add_argument("file", type=Path)
    restore.add_argument("--as", dest="thread", metavar="ID", help="under another id (default: its own)")
    restore.add_argument("--user", metavar="NAME", help="the owner (default: as recorded)")
    pin = add("pin", _pin, "write the last run as a test, which fails when it would be decided otherwise")
    pin.add_argument("thread", help="a thread, or an exported file; with --update a pin")
    pin.add_argument("--name", help="default: the thread's id")
    pin.add_argument("--until", metavar="EVENT", help="only events up to this one")
    pin.add_argument("--dir", type=Path, default=Path(PINNED), metavar="DIR", help=f"default: {PINNED}")
    pin.add_argument("--big", action="store_true", help="even if it has more than 256 KiB")
    pin.add_argument(
        "--update", action="store_true", help="show what is decided otherwise, and ask whether to expect it"
    )
    serve = add("serve-recorded", _serve_recorded, "serve a model that answers from a file (OpenAI's protocol)")
    serve.add_argument("file", type=Path)
    record = add("record", _record, "pass requests on to a model, and write them with their answers into a file")
    record.add_argument("file", type=Path)
    record.add_argument("--upstream", required=True, metavar="URL", help="of the model, before /chat/completions")
    for command in (serve, record):
        command.add_argument("--host", default="127.0.0.1")
        command.add_argument("--port", type=int, default=0, help="default: a free one")


async def _export(arguments: argparse.Namespace) -> int:
    from actors.wiring import compose
    from channels.cli.log import share
    from core.replay.exporting import LogReader
    from core.replay.source import LogSource, aggregate_of

    terms = share.Terms(arguments.redact, arguments.blobs, arguments.files)
    options = options_of(arguments)
    async with files_of(arguments) as files:
        if files:
            file = files.first
            line = await share.export(file, file.root, arguments.out, terms, file.header.log)
        else:
            async with compose.attach(options) as system:
                aggregate = await aggregate_of(LogSource(system.log, options.home), arguments.thread)
                identity = await system.log.identity()
                home, out = options.home, arguments.out
                line = await share.export(LogReader(system.log), aggregate, out, terms, identity, home)
    print(line)
    return OK


async def _import(arguments: argparse.Namespace) -> int:
    from actors.wiring import compose
    from channels.cli.log import share

    options = options_of(arguments)
    async with AsyncExitStack() as opened:
        archive = await open_file(arguments.file, opened)
        async with compose.attach(options) as system:
            print(await share.restore(system.log, archive, options.home, arguments.thread, arguments.user))
    return OK


async def verify_file(arguments: argparse.Namespace) -> int:
    """Checks a file, or a thread's log against a file."""
    from channels.cli.log import verify

    async with AsyncExitStack() as opened:
        if file := file_of(arguments.thread):
            if arguments.against:
                raise Invalid("--against: compares the log of a thread with a file; two files: sika log diff")
            verdict = await verify.verify_file(await open_file(file[0], opened))
        else:
            from actors.wiring import compose

            archive = await open_file(Path(arguments.against), opened)
            system = await opened.enter_async_context(compose.attach(options_of(arguments)))
            verdict = await verify.verify(system.log, arguments.thread)
            verdict.problems.extend(await verify.compare(system.log, archive))
    print("\n".join(verdict.lines()))
    return FAILED if verdict.problems else OK


async def _pin(arguments: argparse.Namespace) -> int:
    """Writes a pin as a draft, and moves it into its folder, with the bodies that it shares, once it was replayed."""
    if arguments.update:
        return await _update(arguments)
    from tempfile import TemporaryDirectory

    from channels.cli.log.pins import TEST, lines
    from core.replay import pins, shared

    folder: Path = arguments.dir
    if not folder.is_dir():
        raise NotFound(f"{folder}: no such folder; name one with --dir")
    with TemporaryDirectory(prefix=".pin-", dir=folder) as drafts:
        draft, size = await _draft(Path(drafts), arguments)
        difference = await _difference(draft, folder, arguments)
        path = folder / draft.name
        if difference is not None:
            if (difference.now or {}).get("type") == "run.failed":
                raise Invalid(f"{path}: is not written: {difference.text}")
            await pins.expect(draft, difference)
        shared.publish(draft, path)
    if not (test := folder / "test_pinned.py").exists():
        test.write_text(TEST)
    shown = ["; it is decided otherwise today, which is pinned:", *lines(difference)] if difference else [""]
    print(f"{path}: {size} bytes" + "\n".join(shown))
    return OK


async def _draft(folder: Path, arguments: argparse.Namespace) -> tuple[Path, int]:
    """Writes a pin into a folder. Returns its path and its size in bytes."""
    from core.ids import safe_id
    from core.replay import pins
    from core.replay.causes import find
    from core.replay.exporting import LogReader
    from core.replay.source import LogSource, aggregate_of, records_of

    reader: Reader
    async with AsyncExitStack() as opened:
        if file := file_of(arguments.thread):
            archive = await open_file(file[0], opened)
            reader, aggregate, records = archive, archive.root, await archive.read(archive.root)
        else:
            from actors.wiring import compose

            options = options_of(arguments)
            system = await opened.enter_async_context(compose.attach(options))
            source, reader = LogSource(system.log, options.home), LogReader(system.log)
            aggregate = await aggregate_of(source, arguments.thread)
            records = await records_of(source, aggregate)
        until = find(records, arguments.until, aggregate).seq if arguments.until else None
        path = folder / f"{safe_id(arguments.name or aggregate.id, 'name')}.jsonl"
        most = None if arguments.big else pins.MOST_BYTES
        return path, await pins.pin(reader, aggregate, records, path, until=until, most=most)


async def _difference(path: Path, folder: Path, arguments: argparse.Namespace) -> Difference | None:
    """Replays a pin, by default under the configuration of a folder."""
    from actors.debugging.pins import CONFIG, difference

    options = options_of(arguments)
    if options.config is None and (beside := folder / CONFIG).exists():
        options = replace(options, config=beside)
    async with AsyncExitStack() as opened:
        return await difference(await open_file(path, opened), options)


async def _update(arguments: argparse.Namespace) -> int:
    """Shows how a pinned run is decided today, and asks whether that is expected from now on."""
    from channels.cli.log.pins import lines
    from core.replay import pins

    if not (file := file_of(arguments.thread)):
        raise NotFound(f"{arguments.thread}: no such file")
    path = file[0]
    async with AsyncExitStack() as opened:
        terms = pins.expected(await open_file(path, opened))
    difference = await _difference(path, path.parent, arguments)
    mismatch = pins.mismatch(terms, difference)
    if not mismatch:
        print(f"{path}: is decided as it was pinned")
        return OK
    print(mismatch, *(lines(difference)[1:] if difference else ()), sep="\n")
    print("Expect this from now on? [y/N] ", end="", flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        print("left as it was")
        return FAILED
    await pins.expect(path, difference)
    print(f"{path}: written")
    return OK


async def _serve_recorded(arguments: argparse.Namespace) -> int:
    import anyio

    from adapters.models.recorded import answering, serving
    from core.replay.exchanges import Recording

    async with AsyncExitStack() as opened:
        recording = await Recording.of(await open_file(arguments.file, opened))
        url = await opened.enter_async_context(serving(answering(recording), arguments.host, arguments.port))
        print(f"{url}  {len(recording.exchanges)} answers of {arguments.file}", flush=True)
        await anyio.sleep_forever()
    return OK


async def _record(arguments: argparse.Namespace) -> int:
    import anyio

    from adapters.models.recorded import recording, serving
    from channels.cli.log.share import recorded
    from core.replay.exporting import write
    from core.replay.format import ExchangeLine

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

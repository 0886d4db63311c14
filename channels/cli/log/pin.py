"""`sika log pin`: the last run of a thread as a test, which fails when it would be decided otherwise."""

from __future__ import annotations

import argparse
import sys
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import msgspec

from channels.cli.common import FAILED, OK, options_of
from channels.cli.log.sources import file_of, open_file
from channels.cli.verbs import Parser
from channels.terminal.text import one_line
from core.errors import NotFound
from core.ids import safe_id
from core.replay.exports import pins, shared
from core.replay.exports.exporting import LogReader
from core.replay.exports.pins import Difference, decision
from core.replay.moments.places import record_at
from core.replay.named import aggregate_of
from core.replay.recorded import read_of
from core.replay.source import LogSource

if TYPE_CHECKING:
    from actors.wiring.options import Options
    from core.replay.exports.exporting import Reader
    from core.replay.source import Source

PINNED = "tests/golden/pinned"
MOST = 300
"""Limit of the characters of a decision on a line."""


def arguments(parser: Parser) -> None:
    parser.runs(run)
    parser.add_argument("thread", help="a thread, or an exported file; with --update a pin")
    parser.add_argument("--name", help="default: the thread's id")
    parser.add_argument("--until", metavar="EVENT", help="only events up to this one")
    parser.add_argument("--dir", type=Path, default=Path(PINNED), metavar="DIR", help=f"default: {PINNED}")
    parser.add_argument("--big", action="store_true", help="even if it has more than 256 KiB")
    parser.add_argument(
        "--update", action="store_true", help="show what is decided otherwise, and ask whether to expect it"
    )


async def run(arguments: argparse.Namespace) -> int:
    """Writes a pin as a draft, and moves it into its folder, with the bodies that it shares, once it was replayed."""
    if arguments.update:
        return await _update(arguments)
    from actors.debugging.pins import TEST, TEST_FILE, settle

    folder: Path = arguments.dir
    if not folder.is_dir():
        raise NotFound(f"{folder}: no such folder; name one with --dir")
    with TemporaryDirectory(prefix=".pin-", dir=folder) as drafts:
        draft, size = await _draft(Path(drafts), arguments)
        difference = await settle(draft, _options(folder, arguments))
        path = folder / draft.name
        shared.publish(draft, path)
    if not (test := folder / TEST_FILE).exists():
        test.write_text(TEST)
    shown = ["; it is decided otherwise today, which is pinned:", *lines(difference)] if difference else [""]
    print(f"{path}: {size} bytes" + "\n".join(shown))
    return OK


async def _draft(folder: Path, arguments: argparse.Namespace) -> tuple[Path, int]:
    """Writes a pin into a folder. Returns its path and its size in bytes."""
    reader: Reader
    source: Source
    async with AsyncExitStack() as opened:
        if file := file_of(arguments.thread):
            archive = await open_file(file[0], opened)
            source, reader, aggregate = archive, archive, archive.root
        else:
            from actors.wiring import compose

            options = options_of(arguments)
            system = await opened.enter_async_context(compose.attach(options))
            source, reader = LogSource(system.log, options.home), LogReader(system.log)
            aggregate = await aggregate_of(source, arguments.thread)
        read = read_of(source)
        until = (await record_at(read, aggregate, arguments.until)).seq if arguments.until else None
        records = await pins.records_to_pin(read, aggregate, until)
        path = folder / f"{safe_id(arguments.name or aggregate.id, 'name')}.jsonl"
        most = None if arguments.big else pins.MOST_BYTES
        return path, await pins.pin(reader, aggregate, records, path, most=most)


def _options(folder: Path, arguments: argparse.Namespace) -> Options:
    """Returns the options of a replay of pins: by default under the configuration of their folder."""
    from actors.debugging.pins import CONFIG

    options = options_of(arguments)
    if options.config is None and (beside := folder / CONFIG).exists():
        return replace(options, config=beside)
    return options


async def _update(arguments: argparse.Namespace) -> int:
    """Shows how a pinned run is decided today, and asks whether that is expected from now on."""
    from actors.debugging import pins as pinned

    if not (file := file_of(arguments.thread)):
        raise NotFound(f"{arguments.thread}: no such file")
    path = file[0]
    async with AsyncExitStack() as opened:
        terms = pins.expected(archive := await open_file(path, opened))
        difference = await pinned.difference(archive, _options(path.parent, arguments))
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


def lines(difference: Difference) -> list[str]:
    """Returns both sides of a decision that differs."""
    rows = [one_line(difference.text, MOST)]
    for name, step in (("recorded", difference.recorded), ("now", difference.now)):
        if shown := decision(step):
            rows.append(f"  {name:<8}  {one_line(msgspec.json.encode(shown).decode(), MOST)}")
    return rows

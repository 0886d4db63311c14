"""Pinned runs (`core.replay.exports.pins`) replayed under the present policies and configuration, for tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import anyio.to_thread

from core.errors import Invalid
from core.events import Aggregate, Record
from core.replay.exports import pins
from core.replay.exports.archive import Archive
from core.replay.exports.archives import Archives
from core.replay.exports.pins import Difference, Packed, expected, mismatch

if TYPE_CHECKING:
    from actors.wiring.options import Options
    from core.replay.exports.exporting import Reader

CONFIG = "config.yaml"
"""The configuration of the pins of a folder, if it lies there."""
TEST_FILE = "test_pinned.py"
TEST = '''"""Pinned runs: by the policies of today, under `config.yaml` beside this file, they are decided as before."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from actors.debugging import pins

PINS = sorted(Path(__file__).parent.glob("*.jsonl"))


@pytest.mark.parametrize("path", PINS, ids=[path.stem for path in PINS])
def test_it_is_decided_as_it_was_pinned(path: Path, tmp_path: Path) -> None:
    assert not anyio.run(pins.check_alone, path, tmp_path)
'''
"""The test of a folder of pins."""


async def packed(reader: Reader, root: Aggregate, records: Sequence[Record], name: str, options: Options) -> Packed:
    """Pins events (`pins.records_to_pin`), as `sika log pin` does, as an archive of the files that it writes.

    Raises `Invalid`.
    """
    with TemporaryDirectory(prefix="sika-pin-") as folder:
        draft = Path(folder) / f"{name}.jsonl"
        await pins.pin(reader, root, records, draft, most=pins.MOST_BYTES)
        decided = await settle(draft, options)
        (draft.parent / TEST_FILE).write_text(TEST)
        return Packed(await anyio.to_thread.run_sync(pins.packed, draft.parent), decided)


async def settle(draft: Path, options: Options) -> Difference | None:
    """Replays a new pin, and has it expect the first decision that is another one today. Returns that.

    Raises `Invalid` for a run that cannot be replayed.
    """
    archive = await Archive.open(draft)
    try:
        decided = await difference(archive, options)
    finally:
        archive.close()
    if decided is not None:
        if (decided.now or {}).get("type") == "run.failed":
            raise Invalid(f"{draft.name}: is not written: {decided.text}")
        await pins.expect(draft, decided)
    return decided


async def difference(archive: Archive, options: Options) -> Difference | None:
    """Replays a pin; returns the first decision that is not the recorded one."""
    from actors.debugging import rehearsal

    archives = Archives()
    archives.name(archive)
    report = await rehearsal.replay(archives, archive.root.id, None, options, look=rehearsal.yielding)
    if report.divergence is None:
        return None
    return Difference(report.divergence, report.seq, report.recorded, report.now)


async def check(path: Path, options: Options) -> str:
    """Returns how a pinned run would be decided otherwise than it was pinned; empty if it would not."""
    archive = await Archive.open(path)
    try:
        return mismatch(expected(archive), await difference(archive, options))
    finally:
        archive.close()


async def check_alone(path: Path, home: Path) -> str:
    """Does what `check` does, under the configuration of the pin's folder, or the defaults. `home`: an empty folder.

    The test of a folder of pins is::

        @pytest.mark.parametrize("path", sorted(Path(__file__).parent.glob("*.jsonl")), ids=lambda path: path.stem)
        def test_it_is_decided_as_it_was_pinned(path, tmp_path):
            assert not anyio.run(pins.check_alone, path, tmp_path)
    """
    from actors.wiring.options import Options

    config = path.parent / CONFIG
    if not config.exists():
        config = home / CONFIG
        config.write_text("{}\n")
    return await check(path, Options(home, config))

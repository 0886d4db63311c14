"""Pinned runs (`core.replay.exports.pins`) replayed under the present policies and configuration, for tests."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from core.replay.exports.archive import Archive
from core.replay.exports.archives import Archives
from core.replay.exports.pins import Difference, expected, mismatch

if TYPE_CHECKING:
    from actors.wiring.compose import Options

CONFIG = "config.yaml"
"""The configuration of the pins of a folder, if it lies there."""


async def difference(archive: Archive, options: Options) -> Difference | None:
    """Replays a pin; returns the first decision that is not the recorded one."""
    from actors.debugging import rehearsal

    archives = Archives()
    archives.name(archive)
    report = await rehearsal.replay(archives, archive.root.id, None, options)
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
    from actors.wiring.compose import Options

    config = path.parent / CONFIG
    if not config.exists():
        config = home / CONFIG
        config.write_text("{}\n")
    return await check(path, Options(home, config))

"""The data directory is closed to other users of the machine, whoever made it."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from core.errors import Invalid
from core.files.paths import make_home
from core.log.store import EventLog
from core.views.projections import Views, own_file
from tests.support.nats import eventually, running_tasks

NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")


@pytest.fixture
def home() -> Iterator[Path]:
    """A directory that everybody can enter, in one that everybody can enter."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        home = Path(folder, "home")
        home.mkdir()
        home.chmod(0o755)
        yield home


@contextmanager
def nobody() -> Iterator[None]:
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


async def test_the_views_are_private(home: Path, log: EventLog) -> None:
    """All three files, also those that an earlier version made, also if the directory stays open."""
    for name in ("views.db", "views.db-wal"):
        (home / name).touch(mode=0o644)
    (home / "open.txt").touch(mode=0o644)
    (home / "users").mkdir(mode=0o755)
    with own_file(home) as (path, _):
        assert (mode(home), mode(home / "open.txt"), mode(home / "users")) == (0o700, 0o600, 0o700)
        home.chmod(0o755)
        (home / "views.db").chmod(0o644)
        views = Views(path, log)
        async with running_tasks(views.run):
            await eventually(lambda: views.search(user="nobody"))
            files = {file.name: mode(file) for file in home.glob("views.db*")}
            assert files == {"views.db": 0o600, "views.db-wal": 0o600, "views.db-shm": 0o600}
            if os.geteuid() == 0:
                with nobody():
                    for name in files:
                        with pytest.raises(PermissionError):
                            (home / name).read_bytes()
        await views.close()


@as_root
def test_a_volume_of_somebody_else_is_named(home: Path) -> None:
    """And what lies in it is closed, as far as it is ours."""
    home.chmod(0o777)
    with nobody(), capture_logs() as lines:
        (home / "ours").touch(mode=0o644)
        make_home(home)
        assert mode(home / "ours") == 0o600
    [line] = lines
    assert (line["log_level"], line["home"], line["mode"], line["owner"]) == ("warning", str(home), "0777", 0)
    assert f"chown {NOBODY} {home}" in line["fix"]


@as_root
def test_root_closes_a_volume_of_somebody_else(home: Path) -> None:
    os.chown(home, NOBODY, NOBODY)
    with capture_logs() as lines:
        make_home(home)
    assert (mode(home), home.stat().st_uid, lines) == (0o700, NOBODY, [])


def test_a_directory_that_everybody_shares_is_refused(home: Path) -> None:
    home.chmod(0o1777)
    with pytest.raises(Invalid, match="directory of its own"):
        make_home(home)
    assert mode(home) == 0o1777

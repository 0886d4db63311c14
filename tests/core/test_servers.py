"""Servers of one data directory: each is found, the dead ones are not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec

from core.runtime.servers import Address, announce, announced, withdraw

ANNOUNCE = """
import os, sys
from pathlib import Path
from core.runtime.servers import Address, announce
for number in range(300):
    announce(Path(sys.argv[1]), Address(f"http://{number}", os.getpid(), "nats"), int(sys.argv[2]))
"""


def test_those_that_live_are_found_by_number(tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    dead = Address("http://dead", gone.pid, "nats")
    announce(tmp_path, dead, 1)
    for number in (10, 2):
        announce(tmp_path, Address(f"http://{number}", os.getpid(), "nats"), number)
    (tmp_path / "server-3.json").write_text("{")
    assert [address.url for address in announced(tmp_path)] == ["http://2", "http://10"]
    withdraw(tmp_path, 1)
    withdraw(tmp_path, 2)
    assert msgspec.json.decode((tmp_path / "server.json").read_bytes(), type=Address) == dead
    assert [address.url for address in announced(tmp_path)] == ["http://10"]


def test_two_that_announce_themselves_at_the_same_moment(tmp_path: Path) -> None:
    processes = [subprocess.Popen([sys.executable, "-c", ANNOUNCE, str(tmp_path), "1"]) for _ in range(2)]
    assert [process.wait(60) for process in processes] == [0, 0]
    assert [path.name for path in tmp_path.iterdir()] == ["server.json"]

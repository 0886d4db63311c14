"""The processes that are forked instead of started."""

from __future__ import annotations

import socket
import subprocess
import time

import pytest

from tests.support import warm

_recv = socket.socket.recv


def test_a_command_that_ends_before_its_id_is_read_has_its_own_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    def recv(connection: socket.socket, *arguments: int) -> bytes:
        deadline = time.monotonic() + 60
        while len(_recv(connection, 64, socket.MSG_PEEK)) <= warm.PID_BYTES and time.monotonic() < deadline:
            time.sleep(0.01)
        return _recv(connection, *arguments)

    monkeypatch.setattr(socket.socket, "recv", recv)
    process = warm.start("channels.cli", "none-such", stdout=subprocess.DEVNULL)
    monkeypatch.undo()
    assert process.wait(60) == 2


def test_processes_whose_starter_is_gone_take_no_others_with_them() -> None:
    """A test that was ended at its time limit, say: before its order, within it, and before its process ends."""
    for sent in (b"", b"-", b'-{"module":'):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(warm._zygote())
            connection.sendall(sent)
    warm.start("channels.cli", "none-such", stdout=subprocess.DEVNULL)._connection.close()
    assert [warm.run("channels.cli", "none-such").returncode for _ in range(3)] == [2, 2, 2]

"""The keyboard on a real terminal."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

TYPING = """
import asyncio
from channels.terminal.keyboard import Keyboard

async def main():
    keyboard = Keyboard()
    print("typed?", flush=True)
    input_ahead = __import__("select").select([0], [], [], 20)[0]
    assert input_ahead
    keyboard.forget()
    print("forgotten", flush=True)
    print("read:", await keyboard.line("? "), flush=True)
    keyboard.close()

asyncio.run(main())
"""


def test_what_was_typed_ahead_is_no_answer() -> None:
    ours, theirs = pty.openpty()
    done = subprocess.Popen([sys.executable, "-c", TYPING], stdin=theirs, stdout=subprocess.PIPE, text=True)
    assert done.stdout is not None
    try:
        assert done.stdout.readline() == "typed?\n"
        os.write(ours, b"y\n")
        assert done.stdout.readline() == "forgotten\n"
        os.write(ours, b"n\n")
        assert done.stdout.readline().endswith("read: n\n")
        assert done.wait(20) == 0
    finally:
        done.kill()
        done.wait()
        done.stdout.close()
        os.close(ours)
        os.close(theirs)

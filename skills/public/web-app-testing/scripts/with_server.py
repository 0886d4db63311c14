"""Runs a command beside a server: python3 with_server.py --start "npm run dev" --url http://localhost:3000 -- COMMAND …

Waits until the server answers, ends it with all that it started, and returns the command's exit code (2: no server).
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

LOG = Path("server.log")
END_SECONDS = 5.0


def answers(url: str) -> bool:
    try:
        urllib.request.urlopen(url, timeout=2).close()
    except urllib.error.HTTPError:
        return True
    except (OSError, ValueError):
        return False
    return True


def ended(process: subprocess.Popen[bytes]) -> None:
    for sign in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, sign)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(END_SECONDS)
            if sign is signal.SIGTERM:
                continue  # its children may live on
            return


def tail() -> str:
    return LOG.read_text(errors="replace")[-1500:].strip()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--start", required=True, help="the command that starts the server, for a shell")
    parser.add_argument("--url", required=True, help="what answers when it is ready")
    parser.add_argument("--seconds", type=float, default=60.0, help="time to wait for it")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not command:
        parser.error("a command is needed after --")
    if answers(options.url):
        print(f"{options.url} answers already: stop that server first, or leave out with_server.py", file=sys.stderr)
        return 2
    with LOG.open("wb") as log:
        server = subprocess.Popen(
            options.start, shell=True, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
        )
    try:
        until = time.monotonic() + options.seconds
        while not answers(options.url):
            if server.poll() is not None or time.monotonic() > until:
                how = "has ended" if server.poll() is not None else f"did not answer in {options.seconds:g} s"
                print(f"the server {how}. Its log ({LOG}):\n{tail()}", file=sys.stderr)
                return 2
            time.sleep(0.2)
        code = subprocess.run(command, check=False).returncode
    finally:
        ended(server)
    if code:
        print(f"--- end of {LOG} ---\n{tail()}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())

"""Speaks to Chromium over a pipe (Chrome DevTools Protocol), so that no port and no package is needed."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "chrome-headless-shell")
FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--mute-audio"),
    *("--disable-background-networking", "--disable-sync", "--remote-debugging-pipe", "--hide-scrollbars"),
)
START_SECONDS, CALL_SECONDS = 60.0, 60.0


class Failed(Exception):
    """What the browser says of a call, or that it does not answer."""


def browser_path() -> str | None:
    return next(filter(None, map(shutil.which, BROWSERS)), None)


class Browser:
    """A browser with one page and a profile that is new. `heard` gets each event of the page."""

    def __init__(self, path: str, heard: Callable[[str, dict[str, Any]], None]) -> None:
        self._heard, self._count, self._buffer, self.session = heard, 0, b"", ""
        self._profile = tempfile.mkdtemp(prefix="browser-")
        commands, self._write = os.pipe()
        self._read, answers = os.pipe()
        log = open(Path(self._profile) / "log", "wb")  # noqa: SIM115  the browser's, as long as it lives
        start = ["/bin/sh", "-c", f'exec "$@" 3<&{commands} 4>&{answers}', "sh", path, *FLAGS]
        self._process = subprocess.Popen(
            [*start, f"--user-data-dir={self._profile}/p"],
            pass_fds=(commands, answers),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        log.close()
        os.close(commands)
        os.close(answers)
        targets = self.call("Target.getTargets", seconds=START_SECONDS)["targetInfos"]
        target = next((one["targetId"] for one in targets if one["type"] == "page"), None)
        target = target or self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for descriptor in (self._write, self._read):
            os.close(descriptor)
        shutil.rmtree(self._profile, ignore_errors=True)

    def call(self, method: str, seconds: float = CALL_SECONDS, **parameters: Any) -> dict[str, Any]:
        self._count += 1
        message: dict[str, Any] = {"id": self._count, "method": method, "params": parameters}
        message |= {"sessionId": self.session} if self.session else {}
        try:
            os.write(self._write, json.dumps(message).encode() + b"\0")
        except BrokenPipeError:
            raise Failed(f"the browser has ended: {self._last_words()}") from None
        until = time.monotonic() + seconds
        while True:
            answer = self._next(until - time.monotonic(), method)
            if answer.get("id") == message["id"]:
                if "error" in answer:
                    raise Failed(f"{method}: {answer['error'].get('message')}")
                return answer["result"]

    def listen(self, seconds: float) -> None:
        """Takes notice of events for a time."""
        until = time.monotonic() + seconds
        with contextlib.suppress(TimeoutError):
            while (left := until - time.monotonic()) > 0:
                self._next(left, "")

    def _next(self, seconds: float, method: str) -> dict[str, Any]:
        """Returns the next message, after telling events."""
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(seconds, 0))
            if not ready:
                if not method:
                    raise TimeoutError
                raise Failed(f"{method}: the browser did not answer: {self._last_words()}")
            if not (data := os.read(self._read, 1 << 20)):
                raise Failed(f"the browser has ended: {self._last_words()}")
            self._buffer += data
        raw, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(raw)
        if "method" in message:
            self._heard(message["method"], message["params"])
        return message

    def _last_words(self) -> str:
        with contextlib.suppress(OSError):
            return (Path(self._profile) / "log").read_text(errors="replace")[-400:].strip()
        return ""

"""Runs the tests in several processes that are forked when all tests are collected, a file of tests at a time.

pytest-xdist collects anew in each of its processes: a quarter of a minute of CPU each, three quarters of a minute
before the first test on two cores. A forked process has everything that collecting has made. It asks for the next file,
runs it, and sends its reports to the process that collected, which shows and counts them.

With `--again N`, up to N tests that failed beside others are run once more, each alone. A test that passes then is no
failure of the run, and is printed with what it said the first time: it hides a deadline that is too short for a busy
machine, or a race. More than N are no accident, and count as they are.

pytest-timeout ends a test once; what its fixtures do after that has no limit. A process that says nothing for
`--hang` seconds more than the limit of its test is killed, and its stacks are the failure of that test.
"""

from __future__ import annotations

import asyncio
import faulthandler
import multiprocessing
import os
import signal
import tempfile
import threading
import time
import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import count, groupby
from multiprocessing import connection
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import cast

import pytest
from _pytest.capture import CaptureManager, FDCapture
from _pytest.terminal import TerminalReporter

from tests.support.limits import seconds_of

END_SECONDS = 60.0
"""Limit of the time that a process has to end the fixtures of its session."""
NO_LIMIT_SECONDS = 3600.0
"""Limit of a test that pytest-timeout gives none."""
STACKS_SECONDS = 3.0
"""How long a process that hangs has to write its stacks."""
File = Sequence[int]
"""The positions of a file's tests among all."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("forked processes")
    group.addoption("--processes", type=int, default=0, help="processes that tests run in (0: the one that collects)")
    group.addoption("--hang", type=float, default=180, help="seconds that a test may go on after its time limit")
    group.addoption("--again", type=int, default=0, help="most failed tests that are run once more, each alone")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    processes = session.config.getoption("--processes")
    if not processes or session.config.option.collectonly or session.testsfailed:
        return None
    assert threading.active_count() == 1, "a forked process has only the thread that forked it"
    lanes = Lanes(session)
    lanes.run(processes)
    lanes.run_again()
    return True


PASSED_ALONE = pytest.StashKey[list[pytest.TestReport]]()
"""The first failures of tests that passed when they were alone."""


def pytest_terminal_summary(terminalreporter: TerminalReporter, config: pytest.Config) -> None:
    if not (reports := config.stash.get(PASSED_ALONE, [])):
        return
    terminalreporter.section("failed beside others, passed alone")
    for report in reports:
        terminalreporter.write_sep("_", report.nodeid)
        report.toterminal(terminalreporter._tw)
    for report in reports:
        terminalreporter.write_line(f"ALONE {report.nodeid}")


class Lane:
    """A forked process, as the one that forked it knows it."""

    def __init__(self, process: BaseProcess, pipe: Connection, stacks: Path) -> None:
        self.process = process
        self.pipe = pipe
        self.stacks = stacks
        """The file that it writes its stacks to on `SIGUSR1`."""
        self.heard = time.monotonic()
        self.begun: list[int] = []
        """The tests of its files that it has been sent and that have not ended, the running one first."""


class Lanes:
    """The processes of a session. One that dies fails the test that it ran; another one goes on with the rest."""

    def __init__(self, session: pytest.Session) -> None:
        self._session = session
        self._hook = session.config.hook
        by_file = groupby(range(len(session.items)), key=lambda position: session.items[position].path)
        self._files: deque[File] = deque(list(positions) for _, positions in by_file)
        self._lanes: dict[Connection, Lane] = {}
        self._numbers = count()
        self._again = 0 if session.config.option.maxfail else session.config.getoption("--again")
        """How many failures are held back: those tests are run once more."""
        self._failed: dict[str, list[pytest.TestReport]] = {}
        """The reports that are held back, by test, from the first failure of each on."""
        self._first: dict[str, pytest.TestReport] = {}
        """The first failures of the tests that are run once more."""
        self._bad: set[str] = set()
        """The tests whose failures are reported."""
        factory = session.config._tmp_path_factory  # type: ignore[attr-defined]
        self._folder: Path = factory.getbasetemp()
        reporter = session.config.pluginmanager.getplugin("terminalreporter")
        if isinstance(reporter, TerminalReporter):
            reporter.showfspath = False  # the files run side by side

    def run_again(self) -> None:
        """Runs the tests that failed once more, one after the other, or reports their failures if they are too many."""
        failed, self._failed = self._failed, {}
        most, self._again = self._again, 0
        if len(failed) > most:
            for reports in failed.values():
                for report in reports:
                    self._reported(report)
            return
        positions = {item.nodeid: position for position, item in enumerate(self._session.items)}
        self._files.extend([positions[name]] for name in failed)
        self._first = {name: next(report for report in reports if report.failed) for name, reports in failed.items()}
        self.run(1)
        self._session.config.stash[PASSED_ALONE] = [
            first for name, first in self._first.items() if name not in self._bad
        ]

    def run(self, processes: int) -> None:
        try:
            for _ in range(min(processes, len(self._files))):
                self._fork()
            while self._lanes:
                for pipe in connection.wait(list(self._lanes), timeout=1):
                    self._hear(self._lanes[pipe])  # type: ignore[index]
                for lane in self._lanes.values():
                    if time.monotonic() - lane.heard > self._longest_silence(lane):
                        _kill(lane)
        except self._session.Failed:
            for lane in self._lanes.values():
                os.kill(cast(int, lane.process.pid), signal.SIGINT)
            raise
        finally:
            for lane in list(self._lanes.values()):
                self._end(lane)

    def _fork(self) -> None:
        ours, theirs = multiprocessing.Pipe()
        folder = self._folder / f"process-{next(self._numbers)}"
        inherited = [ours, *self._lanes]
        context = multiprocessing.get_context("fork")
        process = context.Process(target=_work, args=(self._session, theirs, inherited, folder), name=folder.name)
        process.start()
        theirs.close()
        self._lanes[ours] = Lane(process, ours, _stacks(folder))

    def _longest_silence(self, lane: Lane) -> float:
        """Seconds after which a process hangs. It speaks after each phase of a test, and the limit is that of all."""
        seconds = seconds_of(self._session.items[lane.begun[0]]) if lane.begun else 0
        return (seconds or NO_LIMIT_SECONDS) + float(self._session.config.getoption("hang"))

    def _hear(self, lane: Lane) -> None:
        lane.heard = time.monotonic()
        try:
            what, *about = lane.pipe.recv()
        except (EOFError, ConnectionResetError):
            self._gone(lane)
            return
        match what:
            case "next":
                file = self._files.popleft() if self._files else ()
                lane.begun += file
                lane.pipe.send(file)
            case "report":
                self._reported(self._hook.pytest_report_from_serializable(config=self._session.config, data=about[0]))
            case "finish":
                item = self._session.items[lane.begun.pop(0)]
                self._hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
            case "warning":
                self._hook.pytest_warning_recorded.call_historic(kwargs=about[0])

    def _reported(self, report: pytest.TestReport) -> None:
        if self._again and (report.failed or report.nodeid in self._failed):
            self._failed.setdefault(report.nodeid, []).append(report)
            return
        if report.failed:
            self._bad.add(report.nodeid)
            if first := self._first.get(report.nodeid):
                report.sections.append(("what it said first, beside others", first.longreprtext))
        self._hook.pytest_runtest_logreport(report=report)
        if self._session.shouldfail:
            raise self._session.Failed(self._session.shouldfail)

    def _gone(self, lane: Lane) -> None:
        """Ends a process that has no more tests, or that died with some."""
        self._end(lane)
        if not lane.begun:
            if lane.process.exitcode:
                raise RuntimeError(f"{lane.process.name} ended with {lane.process.exitcode}, after its last test")
            return
        dead, *rest = lane.begun
        if rest:
            self._files.appendleft(rest)
        self._fork()
        item = self._session.items[dead]
        text = f"the process of this test ended with {lane.process.exitcode}"
        if stacks := lane.stacks.read_text(errors="replace"):
            text += f"; it had said nothing any more. Its threads, then its tasks:\n{stacks}"
        self._reported(pytest.TestReport(item.nodeid, item.location, {}, "failed", text, "call"))

    def _end(self, lane: Lane) -> None:
        del self._lanes[lane.pipe]
        lane.pipe.close()
        lane.process.join(END_SECONDS)
        if lane.process.is_alive():
            lane.process.kill()
            lane.process.join()


def _stacks(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.stacks")


def _kill(lane: Lane) -> None:
    """Ends a process that hangs, after it has written where. Its pipe closes, which `_hear` meets."""
    lane.heard = time.monotonic()
    pid = cast(int, lane.process.pid)
    os.kill(pid, signal.SIGUSR1)
    lane.process.join(STACKS_SECONDS)
    if lane.process.is_alive():
        os.kill(pid, signal.SIGKILL)


# ── in a forked process ─────────────────────────────────────────────────────────────────────────────────────────────


class Reports:
    """Sends what happens to the process that collected the tests. Takes the place of the terminal's reporter, whose
    writer pytest-timeout shows stacks with.
    """

    def __init__(self, config: pytest.Config, pipe: Connection) -> None:
        self._config = config
        self._pipe = pipe
        self._tw = config.get_terminal_writer()
        self.begun = False
        """A plug-in that is registered is told of earlier warnings, too."""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self._pipe.send(("report", data))

    def pytest_runtest_logfinish(self) -> None:
        self._pipe.send(("finish",))

    def pytest_warning_recorded(
        self, warning_message: warnings.WarningMessage, when: str, nodeid: str, location: tuple[str, int, str] | None
    ) -> None:
        if not self.begun:
            return
        text, category, file, line = (
            getattr(warning_message, n) for n in ("message", "category", "filename", "lineno")
        )
        sent = warnings.WarningMessage(str(text), category, file, line)
        about = {"warning_message": sent, "when": when, "nodeid": nodeid, "location": location}
        self._pipe.send(("warning", about))


def _work(session: pytest.Session, pipe: Connection, inherited: Sequence[Connection], folder: Path) -> None:
    """Runs files until there is none, or until nobody wants their reports. Then the process ends, whatever threads the
    tests have left: those of a test that failed may have nobody who ends them, and Python would wait for them.
    """
    for other in inherited:
        other.close()
    config = session.config
    folder.mkdir()
    _write_stacks_on_signal(_stacks(folder))
    config._tmp_path_factory._basetemp = folder  # type: ignore[attr-defined]
    _capture_apart(config)
    reports = Reports(config, pipe)
    config.pluginmanager.unregister(name="terminalreporter")
    config.pluginmanager.register(reports, "terminalreporter")
    reports.begun = True
    try:
        tests = _tests(session, pipe)
        item = next(tests, None)
        while item is not None:
            following = next(tests, None)
            config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            item = following
    except (EOFError, OSError, KeyboardInterrupt):  # the run was given up
        session._setupstate.teardown_exact(None)
    os._exit(0)


def _write_stacks_on_signal(path: Path) -> None:
    """On `SIGUSR1` writes the stacks of all threads, also of one outside Python, then those of asyncio's tasks."""
    file = path.open("w")

    def write_tasks(*_: object) -> None:
        loop = asyncio._get_running_loop()
        for task in asyncio.all_tasks(loop) if loop else ():
            task.print_stack(file=file)
        file.flush()

    signal.signal(signal.SIGUSR1, write_tasks)
    faulthandler.register(signal.SIGUSR1, file, all_threads=True, chain=True)


def _tests(session: pytest.Session, pipe: Connection) -> Iterator[pytest.Item]:
    while True:
        pipe.send(("next",))
        if not (file := pipe.recv()):
            return
        yield from (session.items[position] for position in file)


def _capture_apart(config: pytest.Config) -> None:
    """Captures into other files, behind the same objects: forked processes would share the offset in one."""
    capture = config.pluginmanager.getplugin("capturemanager")
    streams = capture._global_capturing if isinstance(capture, CaptureManager) else None
    for stream in (streams.out, streams.err) if streams else ():
        if isinstance(stream, FDCapture):
            with tempfile.TemporaryFile() as file:
                os.dup2(file.fileno(), stream.tmpfile.fileno(), inheritable=False)

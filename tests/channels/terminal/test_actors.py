"""`sika actors`, line by line."""

from __future__ import annotations

from channels.cli.admin.actors import lines
from core.runtime.vitals import ActorReport, Backlog, Failure, Overview, ProcessReport

LEAD = ActorReport(
    name="lead",
    consumes=["run.requested", "run.cancel_requested"],
    only=[],
    answers=False,
    position=90,
    in_flight=2,
    limit=16,
    handled=7,
    failed=1,
    restarts=0,
    last_error=Failure("Invalid: \x1b[31mno", "2026-11-22T10:00:00.000Z"),
    p50_ms=12.5,
    p95_ms=None,
)


def test_processes_actors_and_what_waits() -> None:
    process = ProcessReport("host-7-abc", "host", 7, "2026-11-22T09:00:00.000Z", [LEAD])
    backlogs = [Backlog("lead", 3, 2, 41.5), Backlog("title", 0, 0), Backlog("steps~4", 1, 0)]
    first, _, row, error, *waiting = lines(Overview(100, [process], backlogs))
    assert first == "host-7-abc  pid 7 on host, since 2026-11-22T09:00:00"
    assert row.split() == ["lead", "2/16", "7", "1", "0", "90", "10", "12.5", "run.requested,", "run.cancel_requested"]
    assert error.strip() == "last error 2026-11-22T10:00:00: Invalid: no"
    assert waiting == [
        "lead: 3 wake-ups waiting, the first for 41.5 s, 2 delivered",
        "steps~4: 1 wake-up waiting, 0 delivered; it runs nowhere",
    ]


def test_nobody() -> None:
    assert list(lines(Overview(0, [], []))) == ["no process reports"]

"""A replay's result in words."""

from __future__ import annotations

from channels.cli.log.report import replayed
from core.runs.replay import Report


def test_words() -> None:
    assert replayed(Report(runs=2, steps=7)) == ("identical: 7 steps in 2 runs", 0)
    text, code = replayed(Report(runs=2, steps=3, unfinished=1, changed=["prompt: a → b"]))
    assert code == 0
    assert text.splitlines() == [
        "same so far under another prompt, 1 of the runs unfinished: 3 steps in 2 runs",
        "  changed   prompt: a → b",
    ]
    text, _ = replayed(Report(runs=1, steps=3, changed=["model: m is not configured any more"]))
    assert text.startswith("same decisions under another model: ")


def test_the_first_difference_with_both_sides() -> None:
    recorded = {"id": "e9", "type": "tool.requested", "at": "2026", "name": "ls"}
    now = {"type": "approval.requested", "call_id": "c"}
    different = Report(runs=1, steps=3, divergence="\x1b[1mother", recorded=recorded, now=now, seq=9)
    text, code = replayed(different, "t1")
    assert code == 1
    assert text.splitlines() == [
        "DIFFERENT at seq:9, run 1, 3 steps the same; later runs not compared",
        "  other",
        '  recorded  tool.requested       {"name":"ls"}',
        '  now       approval.requested   {"call_id":"c"}',
        "  the same  prompt, configuration, model",
        "  look      sika log why t1 seq:9  ·  sika log replay t1 --break seq=9",
    ]

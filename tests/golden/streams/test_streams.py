"""What every protocol, client and screen shows of a thread stays as it is, to the byte."""

from __future__ import annotations

import pytest

from tests.golden.streams.printers import CUT, PRINTERS
from tests.golden.streams.record import FOLDER, digests
from tests.golden.streams.scripts import RECORDED, SCRIPTS

HELP = "streams are a promise to clients; if the change is meant: python -m tests.golden.streams.record"


@pytest.mark.parametrize("name", SCRIPTS)
@pytest.mark.parametrize("printer", [*PRINTERS, *CUT])
def test_a_scripted_thread(name: str, printer: str) -> None:
    expected = (FOLDER / name / f"{printer}.txt").read_bytes()
    written = {**PRINTERS, **CUT}[printer](SCRIPTS[name]())
    assert written.splitlines() == expected.splitlines(), HELP
    assert written == expected, HELP


@pytest.mark.parametrize("name", RECORDED)
def test_a_recorded_thread(name: str) -> None:
    assert digests(name).splitlines() == (FOLDER / f"{name}.txt").read_text().splitlines(), HELP

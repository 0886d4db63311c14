"""The benchmarks still run. How fast anything is, is not asked here."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.bench import history
from tests.support import warm

pytestmark = pytest.mark.long


def test_a_section_is_measured_and_written(tmp_path: Path) -> None:
    out = tmp_path / "bench.json"
    done = warm.run("tests.bench", "--quick", "--only", "cold", "--out", str(out), timeout=250)
    assert done.returncode == 0, done.stderr
    rows = json.loads(out.read_text())["sections"]["cold"]
    assert [row["verdict"] in ("pass", "MISS") for row in rows] == [True, False, True]
    assert all(row["value"] > 0 for row in rows)
    assert "Cold start" in done.stdout


def test_the_history_has_what_the_questions_ask_for(tmp_path: Path) -> None:
    began, path = datetime(2026, 1, 1, tzinfo=UTC), tmp_path / "views.db"
    history.write_rows(path, history.Stretch(0, 15, began))
    history.write_rows(path, history.Stretch(15, 40, began))
    with closing(sqlite3.connect(path)) as db:
        counts = db.execute("SELECT status, count(*) FROM threads GROUP BY 1").fetchall()
        [(kinds,)] = db.execute("SELECT count(*) FROM metadata WHERE key = 'kind' AND value = '3'")
        [(texts,)] = db.execute("SELECT count(*) FROM texts WHERE texts MATCH ?", [f"text : {history.COMMON}"])
        [(last,)] = db.execute("SELECT max(seq) FROM threads")
    assert dict(counts) == {"interrupted": history.PAUSED, "idle": 40 - history.PAUSED}
    assert (kinds, texts, last) == (history.OF_A_KIND, 40, 40 * history.EVENTS)

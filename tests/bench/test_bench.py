"""The benchmarks still run. How fast anything is, is not asked here."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

from tests.bench import history
from tests.bench.processes import ROOT


def test_a_section_is_measured_and_written(tmp_path: Path) -> None:
    out = tmp_path / "bench.json"
    command = [sys.executable, "-m", "tests.bench", "--quick", "--only", "cold", "--out", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr
    rows = json.loads(out.read_text())["sections"]["cold"]
    assert [row["verdict"] in ("pass", "MISS") for row in rows] == [True, False, True]
    assert all(row["value"] > 0 for row in rows)
    assert "Cold start" in done.stdout


def test_the_history_has_what_the_questions_ask_for(tmp_path: Path) -> None:
    history.write_rows(tmp_path / "views.db", 40)
    with closing(sqlite3.connect(tmp_path / "views.db")) as db:
        counts = db.execute("SELECT status, sum(runs) FROM run_counts WHERE user = '' GROUP BY 1").fetchall()
        [(kinds,)] = db.execute("SELECT count(*) FROM metadata WHERE key = 'kind' AND value = '3'")
        [(texts,)] = db.execute("SELECT count(*) FROM texts WHERE texts MATCH ?", [f"text : {history.COMMON}"])
    assert dict(counts) == {"running": history.OPEN, "success": 40 - history.OPEN}
    assert (kinds, texts) == (history.OF_A_KIND, 40 - history.OPEN)

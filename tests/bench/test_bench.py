"""The benchmarks still run. How fast anything is, is not asked here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.bench.processes import ROOT


def test_a_section_is_measured_and_written(tmp_path: Path) -> None:
    out = tmp_path / "bench.json"
    command = [sys.executable, "-m", "tests.bench", "--quick", "--only", "cold", "--out", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr
    rows = json.loads(out.read_text())["sections"]["cold"]
    assert [row["verdict"] in ("pass", "MISS") for row in rows] == [True, False, True]
    assert all(row["value"] > 0 for row in rows)
    assert "Cold start" in done.stdout

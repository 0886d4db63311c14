"""The Python example of the page about debugging, executed on a file in a folder without a server."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from core.replay.exports.format import FORMAT, Header, Writer
from tests.core.replay.recorded import Story

ROOT = Path(__file__).parents[3]


def test_the_example_of_the_page(tmp_path: Path) -> None:
    page = (ROOT / "channels/http/docs/debugging-http.md").read_text()
    [example] = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    records, writer = Story().records, Writer()
    thread = next(record.aggregate.id for record in records if record.aggregate.kind == "thread")
    header = Header(format=FORMAT, sika="x", thread=thread, at=records[0].at)
    lines = [writer.line(header), *map(writer.event, records), writer.end()]
    (tmp_path / "thread.jsonl").write_bytes(b"".join(lines))
    loaded = "\nimport sys\nassert not {'nats', 'aiohttp', 'langchain_core', 'textual'} & set(sys.modules)\n"
    command = [sys.executable, "-c", example + loaded]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert result.returncode == 0, result.stderr
    status, *rest = result.stdout.splitlines()
    assert status.startswith("idle ")
    assert "thread 2" in rest[0] or rest[0].startswith("thread ")
    assert rest[-1].startswith("['messages")
    assert any("completed" in line or "success" in line for line in rest)
    assert not (tmp_path / ".sika").exists()

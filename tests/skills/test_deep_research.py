"""Citations that are right pass; each kind of wrong one is named."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.skills.conftest import PUBLIC, Desk

pytestmark = pytest.mark.anyio
EXAMPLE = PUBLIC / "deep-research/examples/deliveries"
LEDGER = "python3 $S/deep-research/scripts/ledger.py"
CHECK = "python3 $S/deep-research/scripts/check_citations.py"
PAGE = (
    "<html><script>var late = 1;</script><p>In 2025 <b>1,325</b> parcels arrived&nbsp;late &ndash; a record.</p></html>"
)


@pytest.fixture
def site() -> Iterator[str]:
    """Serves the page at /late, and nothing else."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/late" else 404)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.end_headers()
            self.wfile.write(PAGE.encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


async def test_a_report_whose_citations_are_right_passes(desk: Desk) -> None:
    desk.copy(EXAMPLE)
    text = await desk.run(f"{CHECK} deliveries/report.md --research deliveries/research")
    assert text.startswith("3 citations, 2 sources, 2 quotes, 0 problems")


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("7.2 per cent [1]", "9.4 per cent [1]", "line 3: 9.4 is not in the passages of [1]"),
        ("a stop [2]", "a stop [7]", "line 8: [7] is not a source"),
        ("The union counts 61 of 92 nights with a stop [2].", "It stopped 61 times.", "line 8: 61 has no source"),
        (
            "https://post-workers.example.net/ashford",
            "somewhere",
            "its address https://post-workers.example.net/ashford is not",
        ),
    ],
)
async def test_wrong_citations_are_named(desk: Desk, old: str, new: str, reason: str) -> None:
    desk.copy(EXAMPLE)
    report = (EXAMPLE / "report.md").read_text()
    assert old in report
    desk.write("report.md", report.replace(old, new))
    assert reason in await desk.run(f"{CHECK} report.md --research deliveries/research", 1)


async def test_a_quote_must_stand_in_the_passages(desk: Desk) -> None:
    add = f"{LEDGER} add r --url 'https://a.example/x?utm_source=b#c' --title A --date 2026-01-01"
    passage = "The “sorter” stopped on 61 of 92 nights."
    assert "[1]" in await desk.run(f"echo '{passage}' | {add}")
    assert "[1]" in await desk.run(f"echo 'Another sentence of the same page.' | {add}")
    await desk.run(f"""{LEDGER} claim r --source 1 --quote 'the "sorter" stopped on' x""")
    missing = await desk.run(f"{LEDGER} claim r --source 1 --quote 'the sorter never stopped' x", 2)
    assert "these words are not in the passages of source 1" in missing
    assert "has no passages" in await desk.run(f"{add} < /dev/null", 2)


async def test_pages_are_read_again_over_the_network(connected: Desk, site: str) -> None:
    for path, quote in (("late", "1,325 parcels arrived late - a record"), ("gone", "gone with the wind today")):
        await connected.run(f"echo '{quote}' | {LEDGER} add r --url {site}/{path} --title {path} --date 2026-01-01")
    await connected.run(f"{LEDGER} claim r --source 1 --quote '1,325 parcels arrived late' x")
    await connected.run(f"{LEDGER} claim r --source 2 --quote 'gone with the wind' x")
    connected.write("r.md", f"Late: 1,325 [1]. Gone [2].\n\n## Sources\n[1] {site}/late\n[2] {site}/gone\n")
    text = await connected.run(f"{CHECK} r.md --research r --fetch", 1)
    assert f"[2]: {site}/gone cannot be read: HTTP Error 404" in text
    assert "1 problems" in text
    connected.write("r/source-1.txt", "arrived late because of snow")
    connected.write("r/claims.jsonl", '{"source": 1, "quote": "late because of snow", "claim": "x"}\n')
    assert "[1]: the page does not have 'late because of snow'" in await connected.run(
        f"{CHECK} r.md --research r --fetch", 1
    )

"""Profiles, queries and charts of tables as people have them."""

from __future__ import annotations

import pytest
from openpyxl import Workbook  # type: ignore[import-untyped]
from PIL import Image

from tests.skills.conftest import PUBLIC, Desk

pytestmark = pytest.mark.anyio
S = "python3 $S/data-analysis/scripts"


async def test_the_profile_shows_what_is_suspicious(desk: Desk) -> None:
    desk.copy(PUBLIC / "data-analysis/examples/sales.csv")
    text = await desk.run(f"{S}/profile.py sales.csv")
    assert "73 rows, 5 columns" in text
    assert "1 row too many: exact copies" in text
    assert "region: 1 spellings differ only in capitals or spaces" in text
    assert "article: leading zeros: an identifier, kept as text" in text
    assert "| month | date | 0 | 12 | 2025-01-01 … 2025-12-01 |" in text


async def test_any_delimiter_encoding_and_decimal_sign(desk: Desk) -> None:
    (desk.folder / "german.csv").write_bytes(
        "Straße;Umsatz;Tag;Ungenau\nMühle;1.234,50;31.01.2026;03.04.2026\nWeg;2,25;01.02.2026;04.03.2026\n".encode(
            "cp1252"
        )
    )
    text = await desk.run(
        f"{S}/profile.py german.csv; {S}/query.py 'SELECT SUM(Umsatz) s, MAX(Tag) t FROM german' german.csv"
    )
    assert "encoding cp1252, delimiter ';'" in text
    assert "| 1,236.75 | 2026-02-01 |" in text
    assert "day and month cannot be told apart; ask" in text


async def test_no_value_is_lost(desk: Desk) -> None:
    """What cannot be read as the others of its column leaves all of them text."""
    (desk.folder / "odd.csv").write_text(
        "thousands;mixed;dates;orders;zones\n"
        "1.234.567;1,234,567;2024-01-31;01/13/2024;2024-01-05T10:00:00+01:00\n"
        "2.345;12,5;2024-02-30;14/01/2024;2024-07-05T10:00:00+02:00\n"
    )
    text = await desk.run(f"{S}/query.py 'SELECT * FROM odd' odd.csv")
    assert "| 1234567 | 1,234,567 | 2024-01-31 | 01/13/2024 | 2024-01-05T10:00:00+01:00 |" in text
    assert "| 2345 | 12,5 | 2024-02-30 | 14/01/2024 | 2024-07-05T10:00:00+02:00 |" in text


async def test_files_that_are_odd_as_a_whole(desk: Desk) -> None:
    (desk.folder / "excel.txt").write_text("name\tumsatz\nMühle\t2\n", encoding="utf-16")
    (desk.folder / "case.csv").write_text("Name,name\n1,2\n")
    (desk.folder / "large.csv").write_text("id\n12345678901234567890\n")
    assert "| Mühle | 2 |" in await desk.run(f"{S}/query.py 'SELECT * FROM excel' excel.txt")
    assert "duplicate column name" in (text := await desk.run(f"{S}/query.py 'SELECT 1' case.csv", 2))
    assert "Traceback" not in text
    assert "too large" in (text := await desk.run(f"{S}/query.py 'SELECT 1' large.csv", 2))
    assert "Traceback" not in text


async def test_sql_joins_files_of_two_kinds(desk: Desk) -> None:
    desk.copy(PUBLIC / "data-analysis/examples/sales.csv")
    book = Workbook()
    for row in (("article", "name"), ("0012", "Chair"), ("0340", "Table")):
        book.active.append(row)
    book.save(desk.folder / "articles.xlsx")
    query = "SELECT name, COUNT(*) n FROM sales JOIN articles USING (article) GROUP BY 1 ORDER BY 1"
    text = await desk.run(f'{S}/query.py "{query}" sales.csv articles.xlsx')
    assert "| Chair | 36 |\n| Table | 37 |" in text
    assert "no such table: shops. Tables: sales" in await desk.run(f"{S}/query.py 'SELECT 1 FROM shops' sales.csv", 2)


CHARTS = {
    "line": "--kind line --x month --y revenue --by region --agg sum",
    "heatmap": "--kind heatmap --x region --by month --y revenue --agg sum",
    "scatter": "--kind scatter --x units --y revenue --by article",
}
REFUSED = {
    "--kind line --x month --y revenue": "several rows for one month: say how to condense them",
    "--kind line --x month --y revenu --agg sum": "did you mean 'revenue'?",
    "--kind line --x region --y revenue --by month --agg sum": "12 series cannot be told apart",
    "--kind bar --x month --y region --agg sum": "'region' is not numeric",
    "--kind bar --y revenue": "--x is missing",
}
DRIVER = """\
import shlex, sys
sys.path.insert(0, "/mnt/skills/public/data-analysis/scripts")
import chart
for line in sys.stdin:
    sys.argv = ["chart.py", *shlex.split(line)]
    print(chart.main(), flush=True)
"""
"""Draws many charts in one process: its imports take longer than they."""


async def test_charts_have_ink_and_print_their_numbers(desk: Desk) -> None:
    desk.copy(PUBLIC / "data-analysis/examples/sales.csv")
    desk.write("driver.py", DRIVER)
    lines = [
        f"sales.csv --title T --subtitle s --source x --out {name}.png {options}" for name, options in CHARTS.items()
    ]
    desk.write("lines", "\n".join(lines))
    text = await desk.run("python3 driver.py < lines")
    assert "6378.4" in text
    for name in CHARTS:
        assert f"wrote {name}.png\n0\n" in text
        with Image.open(desk.folder / f"{name}.png") as image:
            assert image.width > 1200
            colours = image.convert("RGB").getcolors(1 << 24) or []
            assert len(colours) > 100
            assert max(count for count, _ in colours) < 0.99 * image.width * image.height


async def test_charts_that_would_mislead_are_refused(desk: Desk) -> None:
    desk.copy(PUBLIC / "data-analysis/examples/sales.csv")
    desk.write("driver.py", DRIVER)
    desk.write("lines", "\n".join(f"sales.csv --title T --out c.png {options}" for options in REFUSED))
    text = await desk.run("python3 driver.py < lines 2>&1")
    assert text.splitlines()[1::2] == ["2"] * len(REFUSED)
    for reason, line in zip(REFUSED.values(), text.splitlines()[::2], strict=True):
        assert reason in line
    assert "required" in await desk.run(f"{S}/chart.py sales.csv", 2)

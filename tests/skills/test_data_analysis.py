"""Profiles, queries and charts of tables as people have them."""

from __future__ import annotations

import pytest
from openpyxl import Workbook
from PIL import Image

from tests.skills.conftest import PUBLIC, Desk

pytestmark = pytest.mark.anyio
S = "python3 $S/data-analysis/scripts"
CHART = f"{S}/chart.py sales.csv --title T --subtitle s --source x --out c.png"


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


@pytest.mark.parametrize(
    "options",
    [
        "--kind line --x month --y revenue --by region --agg sum",
        "--kind heatmap --x region --by month --y revenue --agg sum",
        "--kind scatter --x units --y revenue --by article",
    ],
)
async def test_charts_have_ink_and_print_their_numbers(desk: Desk, options: str) -> None:
    desk.copy(PUBLIC / "data-analysis/examples/sales.csv")
    text = await desk.run(f"{CHART} {options}")
    assert "wrote c.png" in text
    with Image.open(desk.folder / "c.png") as image:
        assert image.width > 1200
        colours = image.convert("RGB").getcolors(1 << 24) or []
        assert len(colours) > 100
        assert max(count for count, _ in colours) < 0.99 * image.width * image.height
    if "line" in options:
        assert "6378.4" in text


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ("--kind line --x month --y revenue", "several rows for one month: say how to condense them"),
        ("--kind line --x month --y revenu --agg sum", "did you mean 'revenue'?"),
        ("--kind line --x region --y revenue --by month --agg sum", "12 series cannot be told apart"),
        ("--kind bar --x month --y region --agg sum", "'region' is not numeric"),
    ],
)
async def test_charts_that_would_mislead_are_refused(desk: Desk, options: str, reason: str) -> None:
    desk.copy(PUBLIC / "data-analysis/examples/sales.csv")
    assert reason in await desk.run(f"{CHART} {options}", 2)

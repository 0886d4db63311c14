"""Profiles, queries and charts of tables as people have them."""

from __future__ import annotations

import json

import pytest
from openpyxl import Workbook  # type: ignore[import-untyped]
from PIL import Image

from tests.skills.conftest import PUBLIC, Desk

pytestmark = [pytest.mark.anyio, pytest.mark.long(keep=5)]
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


NUMBERS = {
    "3.2e-05 0.01 5E+3": [3.2e-05, 0.01, 5000],
    "3,2e-05 1,5 2": [3.2e-05, 1.5, 2],
    ".5 5. -0.25": [0.5, 5, -0.25],
    "\u22123 +4 7": [-3, 4, 7],
    "(12.50) 3.00": [-12.5, 3],
    "$1,234.50 $2 -$3": [1234.5, 2, -3],
    "1.234,50\u20ac 2,25\u20ac": [1234.5, 2.25],
    "1\u202f234 2\u00a0345": [1234, 2345],
    "1'234.5 2": [1234.5, 2],
    "12,34,567 1,00,000": [1234567, 100000],
    "12% 3.5%": [12, 3.5],
}
TEXTS = ["1e5 2e7", "0012 0340", "1-2 3-4", "1.2.3 4.5", "12kg 3kg", "0x1F 0x2"]


async def test_every_form_of_a_number_is_that_number(desk: Desk) -> None:
    """A number that is read as text is counted wrongly without a word."""
    for number, form in enumerate(NUMBERS):
        desk.write(f"n{number}.csv", "v\n" + "\n".join(f'"{value}"' for value in form.split(" ")) + "\n")
    for number, form in enumerate(TEXTS):
        desk.write(f"t{number}.csv", "v\n" + "\n".join(f'"{value}"' for value in form.split(" ")) + "\n")
    desk.write("driver.py", TABLES)
    lines = (await desk.run("python3 driver.py n*.csv t*.csv")).splitlines()
    columns = dict(line.split(" ", 1) for line in lines)
    for number, (form, expected) in enumerate(NUMBERS.items()):
        assert json.loads(columns[f"n{number}.csv"]) == pytest.approx(expected), form
    for number, form in enumerate(TEXTS):
        assert json.loads(columns[f"t{number}.csv"]) == form.split(" ")


TABLES = """\
import json, sys
from pathlib import Path
sys.path.insert(0, "/mnt/skills/public/data-analysis/scripts")
from tables import read
for name in sys.argv[1:]:
    print(name, json.dumps(read(Path(name))[0]["v"].tolist(), default=str))
"""


async def test_an_exponent_counts_in_a_comparison(desk: Desk) -> None:
    desk.write("genes.csv", "gene,p,one\na,3.2e-05,0\nb,0.01,0\nc,0.5,0\n")
    text = await desk.run(
        f"{S}/profile.py genes.csv; {S}/query.py 'SELECT COUNT(*) n FROM genes WHERE p < 0.02' genes.csv"
    )
    assert "| p | number |" in text
    assert "| n |\n|---|\n| 2 |" in text
    assert "one: always 0\n" in text
    assert "np." not in text


TIMES = {
    "2024-01-05T10:00:00Z 2024-02-05T10:00:00.5Z": "2024-01-05 10:00:00",
    "2024-01-05T10:00:00+02:00 2024-02-05T10:00:00+02:00": "2024-01-05 10:00:00",
    "2024/01/05 2024/02/05": "2024-01-05",
    "5_Jan_2024 6_February_2024": "2024-01-05",
    "Jan_5,_2024 Feb_6th,_2024": "2024-01-05",
}


async def test_times_are_times_in_each_form(desk: Desk) -> None:
    for number, form in enumerate(TIMES):
        values = [value.replace("_", " ") for value in form.split(" ")]
        desk.write(f"d{number}.csv", "v\n" + "\n".join(f'"{value}"' for value in values) + "\n")
    commands = (f"{S}/query.py 'SELECT MIN(v) v FROM d{number}' d{number}.csv" for number in range(len(TIMES)))
    text = await desk.run("; ".join(commands))
    assert text.split("| v |\n|---|\n")[1:] == [f"| {expected} |\n" for expected in TIMES.values()]


async def test_json_of_any_shape_is_a_table(desk: Desk) -> None:
    rows = [{"id": "0012", "at": "2024-01-05T10:00:00Z", "shop": {"city": "Bonn", "tags": ["a", "b"]}}, {"id": "0340"}]
    shapes = {
        "list.json": json.dumps(rows),
        "below.json": json.dumps({"total": 2, "items": rows}),
        "lines.jsonl": "\n".join(map(json.dumps, rows)),
        "keys.json": json.dumps({"a": rows[0], "b": rows[1]}),
    }
    for name, text in shapes.items():
        desk.write(name, text)
        query = f'SELECT id, "shop.city" c, "shop.tags" t, at FROM {name.partition(".")[0]} ORDER BY id'
        answer = await desk.run(f"{S}/query.py '{query}' {name}")
        assert '| 0012 | Bonn | ["a", "b"] | 2024-01-05 10:00:00 |\n| 0340 |  |  |  |' in answer, name
    desk.write("columns.json", json.dumps({"a": [1, 2], "b": ["x", "y"]}))
    assert "| 2 | y |" in await desk.run(f"{S}/query.py 'SELECT * FROM columns' columns.json")
    desk.write("two.json", '{"a": 1}\n{"a": 2}\n')
    assert "name it .jsonl" in await desk.run(f"{S}/profile.py two.json", 2)


async def test_parquet_is_read_with_its_types(desk: Desk) -> None:
    select = "'0012' id, 1.5::decimal(10,2) d, {'a': 1} s, timestamptz '2024-01-01 10:00:00+02' t, 9007199254740993 big"
    desk.write("make.py", f"import duckdb; duckdb.sql(\"copy (select {select}) to 'p.parquet'\")")
    text = await desk.run(f"python3 make.py; {S}/query.py 'SELECT * FROM p' p.parquet")
    assert "| 0012 | 1.5 | 1 | 2024-01-01 08:00:00 | 9007199254740993 |" in text


@pytest.mark.parametrize("name", ["no.xlsx", "no.parquet", "no.json"])
async def test_a_file_that_is_not_what_its_name_says(desk: Desk, name: str) -> None:
    desk.write(name, "no")
    assert name in await desk.run(f"{S}/profile.py {name}", 2)


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


async def test_letters_of_any_script_are_letters(desk: Desk) -> None:
    """The font of charts has none of them: without another one, all would be the same box."""
    desk.write("cjk.csv", "m,r,v\n1,東京,3\n2,東京,5\n1,서울 🎉,4\n2,서울 🎉,6\n")
    desk.write("hindi.csv", "m,v\nहिन्दी,3\n")
    chart = f"{S}/chart.py cjk.csv --kind line --x m --y v --by r"
    text = await desk.run(f"{chart} --title 売上は倍増 --out a.png; {chart} --title 利益は半減 --out b.png")
    assert "findfont" not in text
    assert "Glyph" not in text
    pictures = [(desk.folder / name).read_bytes() for name in ("a.png", "b.png")]
    assert pictures[0] != pictures[1]
    refused = await desk.run(f"{S}/chart.py hindi.csv --kind bar --x m --y v --title T --out c.png", 2)
    assert "must be joined" in refused
    desk.write("without.py", WITHOUT)
    assert "no font here has" in await desk.run("python3 without.py", 2)


WITHOUT = """\
import sys
sys.path.insert(0, "/mnt/skills/public/data-analysis/scripts")
import chart
chart.fonts.PACKAGES = ()
chart.fonts.font_manager.findSystemFonts = lambda: []
sys.argv = ["chart.py", *"cjk.csv --kind line --x m --y v --by r --title T --out d.png".split()]
sys.exit(chart.main())
"""


def test_both_skills_have_the_same_fonts() -> None:
    copies = [(PUBLIC / name / "scripts/fonts.py").read_text() for name in ("data-analysis", "documents")]
    assert copies[0] == copies[1]

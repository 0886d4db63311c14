"""Tasks about data and documents."""

from __future__ import annotations

from actors.debugging.work.task import OUTPUTS, UPLOADS, Result, task

SALES = "region;month;amount\n" + "".join(f"{'NESW'[n % 4]};{n % 12 + 1};{n * 7 % 100},{n % 10}0\n" for n in range(400))
"""German numbers: a decimal comma."""


def sales(region: str) -> float:
    rows = [line.split(";") for line in SALES.splitlines()[1:]]
    return round(sum(float(row[2].replace(",", ".")) for row in rows if row[0] == region), 2)


@task(
    "data",
    f"Write {OUTPUTS}/sums.json with the sum of the amounts of each region in sales.csv: an object, numbers with two "
    "decimals.",
    files={"sales.csv": SALES},
)
async def sum_by_groups(result: Result) -> None:
    expected = {region: sales(region) for region in "NESW"}
    await result.python(
        f"import json\nv = json.load(open('{OUTPUTS}/sums.json'))\n"
        f"assert {{k: round(float(n), 2) for k, n in v.items()}} == {expected!r}, v"
    )


@task(
    "data",
    f"Clean people.csv into {OUTPUTS}/people.csv: columns name, email, born. One row for each e-mail address "
    f"(in lower "
    "case, the first row counts), names without spaces around them, dates as YYYY-MM-DD, rows without an e-mail "
    "left out.",
    files={
        "people.csv": "name,email,born\n Ada ,ADA@x.org,10.12.1815\nAda,ada@X.org,11.12.1815\nBob,,1.2.1990\n"
        "Eve , eve@x.org,2001-03-04\n"
    },
)
async def clean_a_table(result: Result) -> None:
    rows = (await result.text(f"{OUTPUTS}/people.csv")).replace("\r", "").splitlines()
    assert rows == ["name,email,born", "Ada,ada@x.org,1815-12-10", "Eve,eve@x.org,2001-03-04"], rows


@task(
    "data",
    "Customers are in shop.db (table customers: id, country), orders in orders.csv (customer, amount). Which country "
    "has the largest sum, and how much is it?",
    files={"orders.csv": "customer,amount\n" + "".join(f"{n % 30},{n}\n" for n in range(900))},
    setup="python3 -c \"import sqlite3; d = sqlite3.connect('shop.db'); "
    "d.execute('CREATE TABLE customers (id, country)');"
    "d.executemany('INSERT INTO customers VALUES (?, ?)', "
    "[(n, ['Chile', 'Ghana', 'Nepal'][n % 3]) for n in range(30)]);"
    'd.commit()"',
)
async def join_two_sources(result: Result) -> None:
    result.says("Nepal")
    result.counts(sum(range(2, 900, 3)))


@task(
    "data",
    f"Flatten tree.json into {OUTPUTS}/leaves.csv: a row path,value for each number, the path joined by dots, in the "
    "order of the file. Items of lists are numbered from 0.",
    files={"tree.json": '{"a": {"b": 1, "c": [2, {"d": 3}]}, "e": 4.5, "f": "no number", "g": {"h": true}}'},
)
async def flatten_a_tree(result: Result) -> None:
    rows = (await result.text(f"{OUTPUTS}/leaves.csv")).replace("\r", "").splitlines()
    assert rows[0] == "path,value", rows
    assert rows[1:] == ["a.b,1", "a.c.0,2", "a.c.1.d,3", "e,4.5"], rows


@task(
    "documents",
    f"How many tons did Lisbon sell by the workbook {UPLOADS}/tons.xlsx?",
    setup=f"python3 -c \"import openpyxl; b = openpyxl.Workbook(); s = b.active; s.append(['city', 'tons']);"
    f"[s.append([f'city{{n}}', n]) for n in range(300)]; t = b.create_sheet('South'); t.append(['city', 'tons']);"
    f"t.append(['Lisbon', 4711]); b.save('{UPLOADS}/tons.xlsx')\"",
)
async def read_a_workbook(result: Result) -> None:
    result.says("4[ ,.]?711")


@task(
    "documents",
    f"What is the code word in {UPLOADS}/report.pdf?",
    setup=f"python3 -c \"from reportlab.pdfgen.canvas import Canvas; c = Canvas('{UPLOADS}/report.pdf');"
    "[(c.drawString(72, 700, f'Page {n}. ' + ('The code word is marmalade.' if n == 17 else 'Nothing of note.')), "
    'c.showPage()) for n in range(1, 31)]; c.save()"',
)
async def read_a_pdf(result: Result) -> None:
    result.says("marmalade")


@task(
    "documents",
    f"Write a letter as {OUTPUTS}/letter.docx: to Mrs. Appleby, on the move of the office to 12 Harbour Road on "
    f"3 May, with "
    "a table of two columns (room, floor): kitchen 1, studio 2.",
)
async def write_a_letter(result: Result) -> None:
    await result.python(
        f"import docx\nd = docx.Document('{OUTPUTS}/letter.docx')\ntext = ' '.join(p.text for p in d.paragraphs)\n"
        "cells = [c.text.strip().lower() for t in d.tables for r in t.rows for c in r.cells]\n"
        "for word in ('Appleby', '12 Harbour Road'):\n    assert word in text, word\n"
        "for word in ('kitchen', 'studio', '1', '2'):\n    assert word in cells, (word, cells)"
    )


@task(
    "documents",
    f"Draw the values of points.csv as a line chart, {OUTPUTS}/chart.png, at least 600 pixels wide, and show it to me.",
    files={"points.csv": "x,y\n" + "".join(f"{n},{n * n % 37}\n" for n in range(60))},
)
async def draw_a_chart(result: Result) -> None:
    await result.python(
        f"from PIL import Image\ni = Image.open('{OUTPUTS}/chart.png').convert('RGB')\nassert i.width >= 600, "
        f"i.size\n"
        "assert len(set(i.resize((100, 100)).getdata())) > 3, 'it is empty'"
    )
    assert any(name == "present_files" for name, _ in result.calls), "it was not shown"

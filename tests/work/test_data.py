"""Sessions with data and documents."""

from __future__ import annotations

import csv
import io
import json
import os
import sqlite3
from pathlib import Path

import pytest

from tests.support import documents
from tests.work.session import OUTPUTS, UPLOADS, WORKSPACE, Work

pytestmark = pytest.mark.long(keep=4)

LONG = bool(os.environ.get("SIKA_LONG"))
MEGABYTES = 300 if LONG else 30
ROW_BYTES = 30


async def test_a_data_set_of_three_hundred_megabytes(work: Work) -> None:
    rows = MEGABYTES * 1_000_000 // ROW_BYTES
    session = await work.session(f"Make events.csv with {rows} rows, and tell me the mean of each group.")
    await session.write(
        "make.py",
        f"with open('events.csv', 'w') as file:\n    file.write('row,group,value\\n')\n    for n in range({rows}):\n"
        "        file.write(f'{n:012d},group{n % 7:03d},{n % 1000:07d}\\n')\n",
    )
    await session.bash("python3 make.py")
    assert str(rows + 1) in await session.bash("wc -l events.csv")
    text = await session.bash("head -3 events.csv; tail -1 events.csv")
    assert f"{rows - 1:012d},group{(rows - 1) % 7:03d},{(rows - 1) % 1000:07d}" in text
    text = await session.read("events.csv", start_line=1, end_line=3)
    if "larger than" in text:  # it says so, and how to go on
        text = await session.bash("sed -n 1,3p events.csv")
    assert "000000000001,group001,0000001" in text
    text = await session.bash(
        "awk -F, 'NR > 1 { s[$2] += $3 } END { for (g in s) printf \"%s %d\\n\", g, s[g] }' events.csv | sort"
    )
    if not LONG:
        truth = [sum(n % 1000 for n in range(group, rows, 7)) for group in range(7)]
        assert text.splitlines()[:7] == [f"group{group:03d} {total}" for group, total in enumerate(truth)]
    assert f"{rows // 2:012d}" in await session.grep(f"^{rows // 2:012d},", "events.csv")
    await session.bash("rm events.csv")
    await session.answers("The means are equal.")


async def test_a_table_is_cleaned(work: Work) -> None:
    session = await work.session("Clean customers.csv: no copies, e-mails in lower case, amounts as numbers.")
    rows = [(n % 4_000, f" Person{n % 4_000}@Example.ORG ", f"{n % 4_000},50 €") for n in range(5_000)]
    text = io.StringIO()
    csv.writer(text, delimiter=";").writerows([("id", "mail", "amount"), *rows])
    await session.uploads("customers.csv", text.getvalue().encode())
    assert "Person0@Example.ORG" in await session.read(f"{UPLOADS}/customers.csv", start_line=1, end_line=3)
    await session.write(
        "clean.py",
        f"import pandas as pd\nt = pd.read_csv('{UPLOADS}/customers.csv', sep=';').drop_duplicates('id')\n"
        "t['mail'] = t['mail'].str.strip().str.lower()\n"
        "t['amount'] = t['amount'].str.replace(' €', '').str.replace(',', '.').astype(float)\n"
        f"t.to_csv('{OUTPUTS}/clean.csv', index=False)\nprint(len(t), t['amount'].sum())\n",
    )
    assert f"4000 {sum(n + 0.5 for n in range(4_000))}" in await session.bash("python3 clean.py")
    assert "clean.csv" in await session.call("present_files", filepaths=[f"{OUTPUTS}/clean.csv"])
    lines = session.file("outputs/clean.csv").read_text().splitlines()
    assert lines[1:3] == ["0,person0@example.org,0.5", "1,person1@example.org,1.5"]
    await session.answers("4 000 customers.")


async def test_a_database_is_asked(work: Work, tmp_path: Path) -> None:
    session = await work.session("Which product earns the most in shop.db?")
    with sqlite3.connect(tmp_path / "shop.db") as database:
        database.execute("CREATE TABLE sales (product TEXT, amount INTEGER)")
        database.executemany("INSERT INTO sales VALUES (?, ?)", [(f"p{n % 9}", n) for n in range(9_000)])
    database.close()
    session.puts("workspace/shop.db", (tmp_path / "shop.db").read_bytes())
    await session.write(
        "ask.py",
        "import sqlite3\nfor row in sqlite3.connect('shop.db').execute('SELECT product, SUM(amount) AS s FROM sales '\n"
        "        'GROUP BY product ORDER BY s DESC LIMIT 2'):\n    print(*row)\n",
    )
    text = await session.bash("python3 ask.py")
    assert text.splitlines()[0] == f"p8 {sum(range(8, 9_000, 9))}"
    await session.answers("p8.")


async def test_a_workbook_is_read(work: Work) -> None:
    session = await work.session("What does the workbook say about Lisbon?")
    rows = [("city", "sales"), *((f"city{n}", str(n)) for n in range(200)), ("Lisbon", "4711")]
    await session.uploads("sales.xlsx", documents.xlsx(*rows))
    text = await session.read(f"{UPLOADS}/sales.xlsx")
    assert "4711" in text, f"the cells are read, or it says how: {text[:300]}"
    assert "\ufffd" not in text
    await session.answers("4711.")


async def test_a_document_of_pages_is_read(work: Work) -> None:
    session = await work.session("What is the code word in the PDF?")
    pages = [f"Page {n} of the report." for n in range(1, 13)]
    pages[9] = "The code word is marmalade."
    await session.uploads("report.pdf", documents.pdf(*pages))
    text = await session.read(f"{UPLOADS}/report.pdf")
    assert "marmalade" in text, f"the pages are read, or it says how: {text[:300]}"
    assert "endobj" not in text
    await session.answers("Marmalade.")


async def test_an_upload_is_searched(work: Work) -> None:
    session = await work.session()
    lines = [f"{n} INFO all is well in the house today\n" for n in range(60_000)]
    lines[45_678] = "45678 FATAL the cellar is under water\n"
    await session.uploads("app.log", "".join(lines).encode())
    await session.asks("What is the fatal error in the log that I have uploaded?")
    assert session.sees("app.log")
    assert "app.log" in await session.call("ls", path=UPLOADS)
    assert "cellar" in await session.grep("FATAL", UPLOADS)
    assert "cellar" in await session.grep("FATAL", f"{UPLOADS}/app.log")
    assert "45677 INFO" in await session.read(f"{UPLOADS}/app.log", start_line=45_678, end_line=45_680)
    await session.answers("The cellar is under water.")


async def test_a_report_with_charts_of_three_sources(work: Work, tmp_path: Path) -> None:
    session = await work.session("Compare the three sources in a report with a chart of each.")
    session.puts("workspace/a.csv", "month,value\n" + "".join(f"{n},{n * 2}\n" for n in range(1, 13)))
    session.puts("workspace/b.json", json.dumps([{"month": n, "value": n * 3} for n in range(1, 13)]))
    with sqlite3.connect(tmp_path / "c.db") as database:
        database.execute("CREATE TABLE t (month INTEGER, value INTEGER)")
        database.executemany("INSERT INTO t VALUES (?, ?)", [(n, n * 5) for n in range(1, 13)])
    database.close()
    session.puts("workspace/c.db", (tmp_path / "c.db").read_bytes())
    await session.write(
        "report.py",
        "import sqlite3\nimport matplotlib.pyplot as plt\nimport pandas as pd\n"
        "tables = {'a': pd.read_csv('a.csv'), 'b': pd.read_json('b.json'),\n"
        "          'c': pd.read_sql('SELECT * FROM t', sqlite3.connect('c.db'))}\n"
        f"out = '{OUTPUTS}'\nlines = ['# Comparison', '']\nfor name, table in tables.items():\n"
        "    plt.figure()\n    plt.plot(table['month'], table['value'])\n    plt.title(name)\n"
        "    plt.savefig(f'{out}/{name}.png')\n"
        "    lines.append(f\"- {name}: {table['value'].sum()} ![{name}]({name}.png)\")\n"
        "open(f'{out}/report.md', 'w').write('\\n'.join(lines))\nprint('\\n'.join(lines))\n",
    )
    text = await session.bash("python3 report.py")
    for name, factor in (("a", 2), ("b", 3), ("c", 5)):
        assert f"- {name}: {factor * 78} " in text
        assert session.file(f"outputs/{name}.png").read_bytes().startswith(b"\x89PNG")
    paths = [f"{OUTPUTS}/report.md", *(f"{OUTPUTS}/{name}.png" for name in "abc")]
    assert "report.md" in await session.call("present_files", filepaths=paths)
    await session.answers("c is the largest.")
    state = await work.client.get(work.server, f"/threads/{session.thread}/state")
    assert state["values"]["artifacts"] == paths


async def test_a_skill_is_loaded_and_followed(work: Work) -> None:
    session = await work.session("Profile the table numbers.csv.")
    assert session.sees("data-analysis")
    session.puts("workspace/numbers.csv", "name,value\n" + "".join(f"n{n},{n}\n" for n in range(1, 101)))
    text = await session.read("/mnt/skills/public/data-analysis/SKILL.md")
    assert "profile.py" in text
    text = await session.bash("python3 /mnt/skills/public/data-analysis/scripts/profile.py numbers.csv")
    assert "100" in text
    assert "value" in text
    await session.answers("100 rows.")


@pytest.mark.parametrize("kind", ["docx", "xlsx"])
async def test_a_document_is_made_and_read_again(work: Work, kind: str) -> None:
    session = await work.session(f"Make a {kind} file that says plum 42.")
    make = {
        "docx": "import docx\nd = docx.Document()\nd.add_paragraph('plum 42')\nd.save('plum.docx')\n",
        "xlsx": "import openpyxl\nb = openpyxl.Workbook()\nb.active.append(['plum', 42])\nb.save('plum.xlsx')\n",
    }
    await session.write("make.py", make[kind])
    await session.bash(f"python3 make.py && cp plum.{kind} {OUTPUTS}/")
    text = await session.read(f"{WORKSPACE}/plum.{kind}")
    assert "plum" in text
    assert "42" in text
    await session.call("present_files", filepaths=[f"{OUTPUTS}/plum.{kind}"])
    await session.answers("Made.")

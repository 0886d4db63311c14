"""Reading, filling and arranging of PDFs, held against what was put into them."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import pypdfium2  # type: ignore[import-untyped]
import pytest
from PIL import Image, ImageDraw
from pypdf import PdfReader
from reportlab.lib.pagesizes import A4  # type: ignore[import-untyped]
from reportlab.lib.styles import getSampleStyleSheet  # type: ignore[import-untyped]
from reportlab.pdfgen.canvas import Canvas  # type: ignore[import-untyped]
from reportlab.platypus import (  # type: ignore[import-untyped]
    BalancedColumns,
    Paragraph,
    SimpleDocTemplate,
    Table,
    TableStyle,
)

from tests.skills.conftest import Desk

pytestmark = [pytest.mark.anyio, pytest.mark.long(keep=3)]
S = "python3 $S/pdf/scripts"
ROWS = [["Month", "Net", "Note"], *[[f"2024-{n:03}", f"{n * 1.25:,.2f}", f"row, {n}"] for n in range(1, 121)]]


def report(path: Path) -> None:
    """Two columns of text, then a table that goes over several pages."""
    styles = getSampleStyleSheet()
    story = [
        BalancedColumns(
            [Paragraph(f"Sentence {n} of the left and the right column.", styles["Normal"]) for n in range(60)], 2
        )
    ]
    table = Table(ROWS, repeatRows=1)
    table.setStyle(TableStyle([("GRID", (0, 0), (-1, -1), 0.5, "#000000")]))
    SimpleDocTemplate(str(path), pagesize=A4, title="Figures").build([*story, table])


def form(path: Path) -> None:
    canvas = Canvas(str(path))
    canvas.acroForm.textfield(name="name", tooltip="Full name", x=72, y=700, width=200)
    canvas.acroForm.textfield(name="zip", x=72, y=650, maxlen=5)
    canvas.acroForm.checkbox(name="agree", x=72, y=600)
    canvas.acroForm.choice(name="size", options=["small", "large"], value="small", x=72, y=550)
    for value in ("card", "cash"):
        canvas.acroForm.radio(name="pay", value=value, x=72 if value == "card" else 150, y=500)
    canvas.showPage()
    canvas.drawString(72, 700, "second page")
    canvas.save()


def scan(path: Path) -> None:
    picture = Image.new("RGB", (1240, 800), "white")
    ImageDraw.Draw(picture).text((100, 100), "INVOICE 4711", fill="black", font_size=80)
    picture.save(path, resolution=150)


async def test_what_a_file_is_is_told(desk: Desk) -> None:
    report(desk.folder / "r.pdf")
    form(desk.folder / "f.pdf")
    scan(desk.folder / "s.pdf")
    text = await desk.run(f"{S}/inspect_pdf.py r.pdf")
    assert "Title: Figures" in text
    assert "210 x 297 mm" in text
    assert "scanned" not in text
    assert "form: 5 fields" in await desk.run(f"{S}/inspect_pdf.py f.pdf")
    assert "1 of 1 pages are scanned, the first is 1" in await desk.run(f"{S}/inspect_pdf.py s.pdf")
    desk.write("no.pdf", "no")
    assert "cannot be read as a PDF" in await desk.run(f"{S}/inspect_pdf.py no.pdf", 2)


async def test_all_of_the_text_is_read_in_its_order(desk: Desk) -> None:
    report(desk.folder / "r.pdf")
    text = await desk.run(f"{S}/text.py r.pdf --pages 1")
    places = [" ".join(text.split()).index(f"Sentence {n} of the left and the right column.") for n in range(60)]
    assert places == sorted(places)
    assert "there are only the pages 1 to" in await desk.run(f"{S}/text.py r.pdf --pages 99", 2)
    scan(desk.folder / "s.pdf")
    assert "no text on 1 pages, the first is 1: scanned?" in await desk.run(f"{S}/text.py s.pdf")


async def test_a_table_over_several_pages_is_one_file_with_every_row(desk: Desk) -> None:
    report(desk.folder / "r.pdf")
    text = await desk.run(f"{S}/tables.py r.pdf --out t")
    assert "121 rows, 3 columns" in text
    with (desk.folder / "t/table-1.csv").open(newline="") as file:
        assert list(csv.reader(file)) == ROWS
    assert sorted(path.name for path in (desk.folder / "t").iterdir()) == ["table-1.csv"]
    form(desk.folder / "f.pdf")
    assert "no tables" in await desk.run(f"{S}/tables.py f.pdf --pages 2 --out t2", 1)


VALUES = {"name": "Ada Löwe", "zip": "53111", "agree": True, "size": "large", "pay": "cash"}
WRONG = {
    "nam": ("x", "nam: no such field; did you mean 'name'?"),
    "zip": ("531111", "zip: at most 5 characters, got 6"),
    "agree": ("perhaps", "agree: true or false, got 'perhaps'"),
    "size": ("huge", "size: one of 'small', 'large', got 'huge'"),
    "pay": ("shells", "pay: one of 'card', 'cash', got 'shells'"),
}


async def test_a_form_is_filled_and_drawn_as_filled(desk: Desk) -> None:
    form(desk.folder / "f.pdf")
    fields = json.loads(await desk.run(f"{S}/form.py list f.pdf"))
    assert {field["name"]: field["kind"] for field in fields} == {
        "name": "text",
        "zip": "text",
        "agree": "checkbox",
        "size": "choice",
        "pay": "radio",
    }
    assert {field["page"] for field in fields} == {1}
    desk.write("v.json", json.dumps(VALUES))
    await desk.run(f"{S}/form.py fill f.pdf v.json --out b.pdf")
    states = {
        name: str(field.get("/V")) for name, field in (PdfReader(desk.folder / "b.pdf").get_fields() or {}).items()
    }
    assert states == {"name": "Ada Löwe", "zip": "53111", "agree": "/Yes", "size": "large", "pay": "/cash"}
    await desk.run(f"{S}/pages.py f.pdf --pages 1 --out a && {S}/pages.py b.pdf --pages 1 --out b")
    pictures = [Image.open(desk.folder / name) for name in ("a/f-1.png", "b/b-1.png")]
    assert pictures[0].size == pictures[1].size
    assert pictures[0].tobytes() != pictures[1].tobytes()
    desk.write("w.json", json.dumps({name: value for name, (value, _) in WRONG.items()}))
    text = await desk.run(f"{S}/form.py fill f.pdf w.json --out c.pdf", 2)
    assert text.splitlines() == [reason for _, reason in WRONG.values()]
    assert not (desk.folder / "c.pdf").exists()
    scan(desk.folder / "s.pdf")
    assert "has no fields" in await desk.run(f"{S}/form.py fill s.pdf v.json --out c.pdf", 2)


async def test_pages_are_put_together_turned_and_locked(desk: Desk) -> None:
    form(desk.folder / "f.pdf")
    report(desk.folder / "r.pdf")
    await desk.run(f"{S}/arrange.py --out n.pdf r.pdf:2 f.pdf:2,1 f.pdf:2@90 --protect geheim")
    assert "needs a password" in await desk.run(f"{S}/inspect_pdf.py n.pdf", 4)
    assert "needs another password" in await desk.run(f"{S}/inspect_pdf.py n.pdf --password no", 4)
    document = pypdfium2.PdfDocument(desk.folder / "n.pdf", password="geheim")
    texts = [page.get_textpage().get_text_range().strip() for page in document]
    assert [text == "second page" for text in texts] == [False, True, False, True]
    assert [page.get_rotation() for page in document] == [0, 0, 0, 90]
    assert "second page" in await desk.run(f"{S}/text.py n.pdf --pages 4-2 --password geheim")
    assert "pages turn by 90" in await desk.run(f"{S}/arrange.py --out m.pdf f.pdf@45", 2)
    assert "expected FILE.pdf" in await desk.run(f"{S}/arrange.py --out m.pdf f.txt", 2)


async def test_a_scan_is_read_or_it_is_said_that_it_cannot_be(desk: Desk) -> None:
    scan(desk.folder / "s.pdf")
    if shutil.which("tesseract"):
        assert "INVOICE 4711" in await desk.run(f"{S}/ocr.py s.pdf")
    else:
        assert "tesseract is not here" in await desk.run(f"{S}/ocr.py s.pdf", 3)

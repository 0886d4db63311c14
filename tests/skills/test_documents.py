"""The documents that the skill writes, opened by the libraries of their formats."""

from __future__ import annotations

from pathlib import Path

import pypdfium2  # type: ignore[import-untyped]
import pytest
import yaml
from docx import Document
from docx.shared import Cm
from openpyxl import Workbook, load_workbook  # type: ignore[import-untyped]
from PIL import Image
from pptx import Presentation

from tests.skills.conftest import PUBLIC, Desk

pytestmark = [pytest.mark.anyio, pytest.mark.long(keep=3)]
SKILL = PUBLIC / "documents"
TEXT = "python3 $S/documents/scripts/write_text.py"
CHECK = "python3 $S/documents/scripts/check.py"


def chart(folder: Path) -> None:
    Image.new("RGB", (3000, 1000), "#336699").save(folder / "chart.png")


async def test_a_report_becomes_word_and_pdf(desk: Desk) -> None:
    report = (SKILL / "examples" / "report.md").read_text() + "\n![Late per depot](chart.png)\n"
    desk.write("report.md", report.replace("toc: false", "toc: true"))
    chart(desk.folder)
    await desk.run(f"{TEXT} report.md --out out/report.docx && {TEXT} report.md --out out/report.pdf")
    for name in ("report.docx", "report.pdf"):
        assert "no problems" in await desk.run(f"{CHECK} out/{name}")
    word = Document(str(desk.folder / "out/report.docx"))
    headings = [p.text for p in word.paragraphs if p.style and (p.style.name or "").startswith("Heading")]
    assert headings == ["Summary", "Findings", "The sorter of Ashford stops each night", "Recommendation"]
    assert [cell.text for cell in word.tables[0].rows[1].cells] == ["Ashford", "3 680", "884", "24.0 %"]
    bold = [run.text for p in word.paragraphs for run in p.runs if run.bold]
    assert "7.2 %" in bold
    assert word.inline_shapes[0].width <= Cm(16.01)  # A4 without its margins
    pdf = pypdfium2.PdfDocument(desk.folder / "out/report.pdf")
    text = "\n".join(page.get_textpage().get_text_range() for page in pdf)
    assert all(heading in text for heading in headings)
    assert "24.0 %" in text
    assert [entry.get_title() for entry in pdf.get_toc()] == headings
    drawn = await desk.run("python3 $S/documents/scripts/render.py out/report.pdf --out pages --pages 2")
    with Image.open(desk.folder / drawn.split()[0]) as image:
        assert len(image.getcolors(1 << 20) or ()) > 50


async def test_slides_have_titles_a_real_chart_and_notes(desk: Desk) -> None:
    deck = yaml.safe_load((SKILL / "templates" / "deck.yaml").read_text())
    chart(desk.folder)
    deck["slides"].append({"kind": "image", "title": "A picture", "image": "chart.png", "caption": "Late"})
    deck["slides"].append({"kind": "quote", "quote": "We reset it and lose an hour.", "by": "shift lead"})
    desk.write("deck.yaml", yaml.safe_dump(deck))
    write = "python3 $S/documents/scripts/write_slides.py deck.yaml"
    await desk.run(f"{write} --out a.pptx && {write} --template a.pptx --out b.pptx")
    for name in ("a.pptx", "b.pptx"):
        assert "no problems" in await desk.run(f"{CHECK} {name}")
        slides = list(Presentation(str(desk.folder / name)).slides)
        assert [slide.shapes.title.text_frame.text for slide in slides if slide.shapes.title][:2] == [
            "Orders grew by a fifth, margins did not",
            "Three decisions are needed today",
        ]
        assert len(slides) == 8
        charts = [shape for shape in slides[2].shapes if shape.has_chart]
        assert list(charts[0].chart.plots[0].series[0].values) == [120, 134, 151]
        assert "Sentences belong here" in slides[0].notes_slide.notes_text_frame.text


async def test_a_workbook_calculates_and_keeps_text_as_text(desk: Desk) -> None:
    book = yaml.safe_load((SKILL / "templates" / "workbook.yaml").read_text())
    desk.write("parts.csv", "part,name,when\n0012,=1+1,2026-01-31\n0340,Belt,2026-02-01\n")
    columns = [{"name": "part", "format": "text"}, "name", {"name": "when", "format": "date"}]
    book["sheets"].append({"name": "Parts", "csv": "parts.csv", "columns": columns})
    desk.write("book.yaml", yaml.safe_dump(book))
    await desk.run("python3 $S/documents/scripts/write_sheet.py book.yaml --out book.xlsx")
    assert "no problems" in await desk.run(f"{CHECK} book.xlsx")
    workbook = load_workbook(desk.folder / "book.xlsx")
    orders, parts = workbook["Orders"], workbook["Parts"]
    assert (orders["D4"].value, orders["D6"].value) == ("=B4*C4", "=SUBTOTAL(109,D4:D5)")
    assert len(orders._charts) == 1
    assert (parts["A2"].value, parts["B2"].value, parts["B2"].data_type) == ("0012", "=1+1", "s")
    assert parts["C2"].is_date


async def test_text_of_a_table_is_neither_a_formula_nor_another_number(desk: Desk) -> None:
    desk.write("rows.csv", '=1+1,price\n=2+2,"1,234.5"\n')
    columns = '[{name: "=1+1"}, {name: price, format: number}]'
    desk.write("book.yaml", f"sheets: [{{csv: rows.csv, columns: {columns}}}]")
    command = "python3 $S/documents/scripts/write_sheet.py book.yaml --out book.xlsx"
    await desk.run(command)
    sheet = load_workbook(desk.folder / "book.xlsx").active
    assert [(cell.value, cell.data_type) for row in sheet.iter_rows() for cell in row] == [
        *(("=1+1", "s"), ("price", "s")),
        *(("=2+2", "s"), (1234.5, "n")),
    ]
    desk.write("rows.csv", 'name,price\nx,"12,5"\n')
    desk.write("book.yaml", "sheets: [{csv: rows.csv, columns: [name, {name: price, format: number}]}]")
    assert "'12,5' does not fit the format number" in await desk.run(command, 2)


async def test_a_value_of_a_template_is_no_formula(desk: Desk) -> None:
    book = Workbook()
    for column, text in enumerate(("{{name}}", "={{factor}}*2"), start=1):
        book.active.cell(1, column, text)
    book.save(desk.folder / "template.xlsx")
    desk.write("values.yaml", 'name: "=1+1"\nfactor: 3\n')
    await desk.run("python3 $S/documents/scripts/fill.py template.xlsx values.yaml --out filled.xlsx")
    [cells] = load_workbook(desk.folder / "filled.xlsx").active.iter_rows()
    assert [(cell.value, cell.data_type) for cell in cells] == [("=1+1", "s"), ("=3*2", "f")]


async def test_a_template_is_filled_with_repeated_rows(desk: Desk) -> None:
    desk.copy(SKILL / "templates" / "invoice.docx")
    desk.copy(SKILL / "examples" / "invoice.yaml")
    fill = "python3 $S/documents/scripts/fill.py invoice.docx"
    assert "items.amount" in await desk.run(f"{fill} --list")
    await desk.run(f"{fill} invoice.yaml --out filled.docx && {CHECK} filled.docx")
    word = Document(str(desk.folder / "filled.docx"))
    assert [row.cells[0].text for row in word.tables[0].rows] == [
        *("Item", "Repair of two chairs", "Oak table top", "Delivery", "Total"),
    ]
    text = "\n".join(p.text for p in word.paragraphs)
    assert "Please pay until 2026-03-01 to DE00 0000 0000." in text  # cut into pieces in the template
    assert word.sections[0].header.paragraphs[0].text == "Alder Workshop · Mill Lane 4, Ashford"
    values = yaml.safe_load((desk.folder / "invoice.yaml").read_text())
    del values["due"]
    desk.write("less.yaml", yaml.safe_dump(values))
    assert "values are missing: due; nothing was written" in await desk.run(f"{fill} less.yaml --out no.docx", 2)
    assert not (desk.folder / "no.docx").exists()


@pytest.mark.parametrize(
    ("name", "text", "command", "reason"),
    [
        ("a.md", "---\ntitel: x\n---\n", f"{TEXT} a.md --out a.pdf", "unknown titel"),
        ("a.md", "![x](no.png)\n", f"{TEXT} a.md --out a.docx", "image 'no.png': no such file"),
        ("a.md", "# \U0010fffd\n", f"{TEXT} a.md --out a.pdf", "no font here has"),
        ("a.md", "# x\n", f"{TEXT} a.md --out a.odt", ".odt is not .docx or .pdf"),
        (
            "d.yaml",
            "slides: [{kind: bullets, title: x, bullets: [1, 2, 3, 4, 5, 6, 7]}]",
            "python3 $S/documents/scripts/write_slides.py d.yaml --out d.pptx",
            "slides[0] (bullets): bullets: 7 (at most 6)",
        ),
        (
            "b.yaml",
            "sheets: [{columns: [{name: a, format: integer}], rows: [[many]]}]",
            "python3 $S/documents/scripts/write_sheet.py b.yaml --out b.xlsx",
            "row 2, column 'a': 'many' does not fit the format integer",
        ),
        ("x.docx", "no zip", f"{CHECK} x.docx", "is not a readable docx"),
    ],
)
async def test_mistakes_are_named(desk: Desk, name: str, text: str, command: str, reason: str) -> None:
    desk.write(name, text)
    assert reason in await desk.run(command, 2)


async def test_the_check_finds_what_is_wrong(desk: Desk) -> None:
    word = Document()
    word.add_heading("First", 1)
    word.add_heading("Third", 3)
    word.add_paragraph("Dear {{name}}, TODO")
    word.save(str(desk.folder / "bad.docx"))
    text = await desk.run(f"{CHECK} bad.docx", 1)
    assert all(part in text for part in ("'{{name}}'", "'TODO'", "skips a level", "no title"))


EAST = """\
---
title: 四半期報告
toc: true
---
# 売上は倍増した

第一四半期の売上は**前年比で倍増**した。 Ødegård 🎉

| 地域 | 売上 |
|---|--:|
| 東京 | 12 |

- 한국어 문장 `代码 x`

```
print("こんにちは")
```
"""


async def test_a_pdf_has_letters_of_any_script(desk: Desk) -> None:
    """Chinese, Japanese and Korean: as text that can be found again, and drawn as letters, not as boxes."""
    desk.write("east.md", EAST)
    desk.write("boxes.md", EAST.replace("売上は倍増した", "利益は半減する"))
    await desk.run(f"{TEXT} east.md --out east.pdf && {TEXT} boxes.md --out boxes.pdf")
    assert "no problems" in await desk.run(f"{CHECK} east.pdf")
    pages = [pypdfium2.PdfDocument(desk.folder / name)[1] for name in ("east.pdf", "boxes.pdf")]
    text = pages[0].get_textpage().get_text_range()
    for words in ("売上は倍増した", "前年比で倍増", "Ødegård", "東京", "한국어 문장", "代码", "こんにちは"):
        assert words in text
    drawn = [page.render(scale=1).to_pil().crop((0, 0, 595, 140)).tobytes() for page in pages]
    assert drawn[0] != drawn[1]
    desk.write("arabic.md", "مبيعات")
    assert "write a docx instead" in await desk.run(f"{TEXT} arabic.md --out a.pdf", 2)

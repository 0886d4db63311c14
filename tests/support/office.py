"""Documents of many makers, and the whole text that each must have: what the document says, nothing else."""

# ruff: noqa: E501  # a line is a file
from __future__ import annotations

import base64
import datetime
import io
import json
import zipfile
from collections.abc import Callable, Mapping
from email.message import EmailMessage
from typing import Any

from tests.support import documents as build

Builder = Callable[[], bytes]


def saved(document: Any) -> bytes:
    """The bytes of a document of openpyxl, python-docx, python-pptx or xlwt."""
    made = io.BytesIO()
    document.save(made)
    return made.getvalue()


def replaced(
    archive: bytes, members: Mapping[str, bytes | None], change: Callable[[str, bytes], bytes] | None = None
) -> bytes:
    """The archive with other members; None removes one. `change` is applied to the rest."""
    with zipfile.ZipFile(io.BytesIO(archive)) as before:
        contents = {name: before.read(name) for name in before.namelist()}
    if change:
        contents = {name: change(name, content) for name, content in contents.items()}
    merged = {**contents, **members}
    return build.packed({name: content for name, content in merged.items() if content is not None})


# ── spreadsheets ────────────────────────────────────────────────────────────────────────────────────────────────────


def book(fill: Callable[[Any], None]) -> Builder:
    def make() -> bytes:
        import openpyxl  # type: ignore[import-untyped]

        workbook = openpyxl.Workbook()
        fill(workbook)
        return saved(workbook)

    return make


def rows(*lines: list[Any], formats: Mapping[str, str] | None = None) -> Builder:
    def fill(workbook: Any) -> None:
        for line in lines:
            workbook.active.append(line)
        for cell, code in (formats or {}).items():
            workbook.active[cell].number_format = code

    return book(fill)


def cells(values: Mapping[str, Any], *, merge: str = "") -> Builder:
    def fill(workbook: Any) -> None:
        for place, value in values.items():
            workbook.active[place] = value
        if merge:
            workbook.active.merge_cells(merge)

    return book(fill)


def _hidden(workbook: Any) -> None:
    workbook.active.title = "Seen"
    workbook.active["A1"] = "x"
    for name, state in (("Hidden", "hidden"), ("Very", "veryHidden")):
        sheet = workbook.create_sheet(name)
        sheet["A1"], sheet.sheet_state = name.lower(), state


SHEET = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"


def sheet_xml(data: str, *, strings: str = "", styles: str = "", after: str = "", book_more: str = "") -> bytes:
    """A workbook of hand-written parts with one sheet."""
    office = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
    package = "http://schemas.openxmlformats.org/package/2006/relationships"
    relations = [("r1", "worksheet", "worksheets/sheet1.xml")]
    members = {
        "_rels/.rels": f'<Relationships xmlns="{package}"><Relationship Id="r0" Type="{office}/officeDocument" '
        'Target="xl/workbook.xml"/></Relationships>',
        "xl/workbook.xml": f'<workbook xmlns="{SHEET}" xmlns:r="{office}">{book_more}<sheets>'
        '<sheet name="S" sheetId="1" r:id="r1"/></sheets></workbook>',
        "xl/worksheets/sheet1.xml": f'<worksheet xmlns="{SHEET}"><sheetData>{data}</sheetData>{after}</worksheet>',
    }
    if strings:
        members["xl/sharedStrings.xml"] = f'<sst xmlns="{SHEET}">{strings}</sst>'
        relations.append(("r2", "sharedStrings", "sharedStrings.xml"))
    if styles:
        members["xl/styles.xml"] = f'<styleSheet xmlns="{SHEET}">{styles}</styleSheet>'
        relations.append(("r3", "styles", "styles.xml"))
    listed = "".join(f'<Relationship Id="{i}" Type="{office}/{kind}" Target="{to}"/>' for i, kind, to in relations)
    members["xl/_rels/workbook.xml.rels"] = f'<Relationships xmlns="{package}">{listed}</Relationships>'
    return build.packed(members)


def strict(archive: bytes) -> bytes:
    """The package in the namespaces of ISO 29500 Strict."""

    def change(name: str, content: bytes) -> bytes:
        for kind in ("spreadsheetml", "wordprocessingml"):
            content = content.replace(
                f"http://schemas.openxmlformats.org/{kind}/2006/main".encode(),
                f"http://purl.oclc.org/ooxml/{kind}/main".encode(),
            )
        usual = b"http://schemas.openxmlformats.org/officeDocument/2006/relationships"
        return content.replace(usual, b"http://purl.oclc.org/ooxml/officeDocument/relationships")

    return replaced(archive, {}, change)


def _backslashes() -> bytes:
    """As some exports of business software write it."""
    archive = sheet_xml('<row r="1"><c r="A1" t="inlineStr"><is><t>007</t></is></c></row>')
    with zipfile.ZipFile(io.BytesIO(archive)) as before:
        contents = {name: before.read(name) for name in before.namelist()}
    names = {name: name if name.startswith("_rels") else name.replace("/", "\\") for name in contents}
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as after:
        for name, content in contents.items():
            after.writestr(names[name], content)
    return made.getvalue()


def old_book() -> bytes:
    import xlwt  # type: ignore[import-untyped]

    workbook = xlwt.Workbook()
    sheet = workbook.add_sheet("Old")
    day, percent, zeros = (xlwt.easyxf(num_format_str=code) for code in ("YYYY-MM-DD", "0.0%", "00000"))
    line: list[Any] = ["007", "a|b", 12.5, True]
    for column, value in enumerate(line):
        sheet.write(0, column, value)
    sheet.write(1, 0, datetime.date(2026, 4, 3), day)
    sheet.write(1, 1, 0.125, percent)
    sheet.write(1, 2, 42, zeros)
    hidden = workbook.add_sheet("Kept")
    hidden.write(0, 0, "NA")
    hidden.visibility = 1
    return saved(workbook)


XML_2003 = (
    '<?xml version="1.0"?><?mso-application progid="Excel.Sheet"?>'
    '<Workbook xmlns="urn:schemas-microsoft-com:office:spreadsheet" '
    'xmlns:ss="urn:schemas-microsoft-com:office:spreadsheet"><Styles><Style ss:ID="p"><NumberFormat ss:Format="Percent"/>'
    '</Style></Styles><Worksheet ss:Name="Year"><Table><Row><Cell><Data ss:Type="String">007</Data></Cell>'
    '<Cell ss:Index="3" ss:StyleID="p"><Data ss:Type="Number">0.125</Data></Cell></Row><Row ss:Index="3"><Cell>'
    '<Data ss:Type="DateTime">2026-04-03T00:00:00.000</Data></Cell></Row></Table></Worksheet></Workbook>'
)

ODF = "urn:oasis:names:tc:opendocument:xmlns"


def odf(kind: str, body: str, *, styles: str = "") -> bytes:
    """A document of OpenDocument, by hand."""
    spaces = " ".join(
        f'xmlns:{prefix}="{ODF}:{name}:1.0"'
        for prefix, name in (
            ("office", "office"), ("text", "text"), ("table", "table"), ("draw", "drawing"),
            ("presentation", "presentation"), ("style", "style"),
        )
    )  # fmt: skip
    automatic = f"<office:automatic-styles>{styles}</office:automatic-styles>"
    element = {"text": "text", "spreadsheet": "spreadsheet", "presentation": "presentation"}[kind]
    content = (
        f'<?xml version="1.0" encoding="UTF-8"?><office:document-content {spaces}>{automatic}'
        f"<office:body><office:{element}>{body}</office:{element}></office:body></office:document-content>"
    )
    return build.packed({"mimetype": f"application/vnd.oasis.opendocument.{kind}", "content.xml": content})


def _cell(text: str, more: str = "") -> str:
    return f"<table:table-cell {more}>{f'<text:p>{text}</text:p>' if text else ''}</table:table-cell>"


# ── texts and slides ────────────────────────────────────────────────────────────────────────────────────────────────


def words(fill: Callable[[Any], None]) -> Builder:
    def make() -> bytes:
        import docx

        document = docx.Document()
        fill(document)
        return saved(document)

    return make


def _structure(document: Any) -> None:
    document.add_heading("Annual report", 0)
    document.add_heading("Numbers", 1)
    document.add_paragraph("The key_of_2 is 3*4*5.")
    document.add_paragraph("first", style="List Bullet")
    document.add_paragraph("then", style="List Number")


def _table(document: Any) -> None:
    table = document.add_table(3, 3)
    for row in range(3):
        for column in range(3):
            table.cell(row, column).text = f"{row}|{column}"
    table.cell(1, 0).merge(table.cell(2, 0)).text = "tall"
    table.cell(0, 1).merge(table.cell(0, 2)).text = "wide"


def _header(document: Any) -> None:
    document.add_paragraph("Body")
    document.sections[0].header.paragraphs[0].text = "Confidential"


def word_xml(body: str, *, parts: Mapping[str, str] | None = None, relations: str = "") -> bytes:
    """A document of hand-written parts; `parts` lie in `word/`."""
    space = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
    office = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
    more = {f"word/{name}": content.replace("<w:", "<w:", 1) for name, content in (parts or {}).items()}
    if relations:
        package = "http://schemas.openxmlformats.org/package/2006/relationships"
        more["word/_rels/document.xml.rels"] = f'<Relationships xmlns="{package}">{relations}</Relationships>'
    spaces = f'xmlns:w="{space}" xmlns:r="{office}"'
    document = f"<w:document {spaces}><w:body>{body}</w:body></w:document>"
    return replaced(
        build.docx("x"), {"word/document.xml": document.encode(), **{n: c.encode() for n, c in more.items()}}
    )


def paragraph(text: str, more: str = "") -> str:
    return f"<w:p>{more}<w:r><w:t>{text}</w:t></w:r></w:p>"


W = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
FOOTNOTES = (
    f'<w:footnotes {W}><w:footnote w:id="2"><w:p><w:r><w:t>The small print</w:t></w:r></w:p></w:footnote></w:footnotes>'
)
OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"


def deck(fill: Callable[[Any], None]) -> Builder:
    def make() -> bytes:
        from pptx import Presentation

        presentation = Presentation()
        fill(presentation)
        return saved(presentation)

    return make


def slide(presentation: Any, layout: int, title: str) -> Any:
    made = presentation.slides.add_slide(presentation.slide_layouts[layout])
    made.shapes.title.text = title
    return made


def _talk(presentation: Any) -> None:
    first = slide(presentation, 1, "Why")
    frame = first.placeholders[1].text_frame
    frame.text = "Because"
    more = frame.add_paragraph()
    more.text, more.level = "of this", 1
    first.notes_slide.notes_text_frame.text = "Speak slowly"
    hidden = slide(presentation, 5, "Spare")
    hidden._element.set("show", "0")


def _chart(presentation: Any) -> None:
    from pptx.chart.data import CategoryChartData
    from pptx.enum.chart import XL_CHART_TYPE

    data = CategoryChartData()  # type: ignore[no-untyped-call]
    data.categories = ["x", "y"]
    data.add_series("Sales", (1.5, None))  # type: ignore[no-untyped-call]
    page = slide(presentation, 5, "Chart")
    page.shapes.add_chart(XL_CHART_TYPE.COLUMN_CLUSTERED, 900_000, 2_900_000, 3_000_000, 2_000_000, data)


def _grid(presentation: Any) -> None:
    page = slide(presentation, 5, "Table")
    table = page.shapes.add_table(2, 2, 900_000, 2_900_000, 3_000_000, 900_000).table
    for place, text in {(0, 0): "a|b", (0, 1): "c", (1, 0): "007"}.items():
        table.cell(*place).text = text


def _chart_error(content: bytes) -> bytes:
    return content.replace(b"<c:v>1.5</c:v>", b"<c:v>#N/A</c:v>")


# ── mails, books, pages ─────────────────────────────────────────────────────────────────────────────────────────────


def mail(fill: Callable[[EmailMessage], None]) -> Builder:
    def make() -> bytes:
        message = EmailMessage()
        message["From"], message["To"], message["Subject"] = "Ada <ada@example.org>", "bob@example.org", "Größe"
        message["Date"] = "Fri, 27 Nov 2026 05:00:00 +0000"
        fill(message)
        return message.as_bytes()

    return make


def _with_attachment(message: EmailMessage) -> None:
    message.set_content("See the file.\n")
    message.add_alternative("<p>See the <b>file</b>.</p>", subtype="html")
    message.add_attachment(b"%PDF-", maintype="application", subtype="pdf", filename="bill.pdf")


def outlook(streams: Mapping[str, bytes]) -> bytes:
    """A message of Outlook: a compound file with these streams, in short sectors as small streams are."""
    return compound({"__properties_version1.0": bytes(32), **streams})


def compound(streams: Mapping[str, bytes]) -> bytes:
    """A compound file (version 3) with streams in its root, each padded to 4096 bytes: none lies in the short sectors."""
    size, end, free, none = 512, 0xFFFFFFFE, 0xFFFFFFFF, 0xFFFFFFFF
    data, table, starts = b"", list[int](), list[int]()
    for content in streams.values():
        padded = content.ljust(4096, b"\0")
        padded += bytes(-len(padded) % size)
        starts.append(len(table))
        count = len(padded) // size
        table += [*range(len(table) + 1, len(table) + count), end]
        data += padded
    entries = [_entry("Root Entry", 5, 1 if streams else none, end, 0)]
    names = sorted(streams, key=lambda name: (len(name), name.upper()))
    order = {name: number for number, name in enumerate(names, 1)}
    sizes = {name: max(4096, len(content)) for name, content in streams.items()}
    first = dict(zip(streams, starts, strict=True))
    entries += [
        _entry(n, 2, none, first[n], sizes[n], right=order[n] + 1 if order[n] < len(names) else none) for n in names
    ]
    entries += [bytes(128)] * (-len(entries) % 4)
    directory = len(table)
    count = len(entries) * 128 // size
    table += [*range(directory + 1, directory + count), end]
    fat = len(table)
    table.append(0xFFFFFFFD)
    table += [free] * (-len(table) % 128)
    assert len(table) == 128, "too much for one sector of the table"
    head = build_head(fat, directory)
    return head + data + b"".join(entries) + b"".join(number.to_bytes(4, "little") for number in table)


def build_head(fat: int, directory: int) -> bytes:
    numbers = (1, directory, 0, 4096, 0xFFFFFFFE, 0, 0xFFFFFFFE, 0)
    fields = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(16) + bytes.fromhex("3e000300feff09000600") + bytes(10)
    fields += b"".join(number.to_bytes(4, "little") for number in numbers)
    fields += fat.to_bytes(4, "little")
    return fields.ljust(512, b"\xff")


def _entry(name: str, kind: int, child: int, start: int, size: int, right: int = 0xFFFFFFFF) -> bytes:
    text = name.encode("utf-16-le") + b"\0\0"
    fields = text.ljust(64, b"\0") + len(text).to_bytes(2, "little") + bytes([kind, 1])
    fields += b"".join(number.to_bytes(4, "little") for number in (0xFFFFFFFF, right, child))
    return (fields + bytes(36) + start.to_bytes(4, "little") + size.to_bytes(8, "little")).ljust(128, b"\0")


def wide(text: str) -> bytes:
    return text.encode("utf-16-le")


def report_pdf() -> bytes:
    """By reportlab."""
    from reportlab.pdfgen import canvas  # type: ignore[import-untyped]

    made = io.BytesIO()
    page = canvas.Canvas(made, invariant=1)
    for text in ("Invoice 007", "Total 1,234.50"):
        page.drawString(72, 720, text)
        page.showPage()
    page.save()
    return made.getvalue()


def notebook() -> bytes:
    code = {
        "cell_type": "code",
        "source": ["print('007')\n", "1/0"],
        "outputs": [
            {"output_type": "stream", "text": ["007\n"]},
            {"output_type": "error", "ename": "ZeroDivisionError", "evalue": "division by zero"},
        ],
    }
    cells_ = [{"cell_type": "markdown", "source": "# Title"}, code]
    return json.dumps({"nbformat": 4, "metadata": {}, "cells": cells_}).encode()


PICTURE = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


def _pictured(document: Any) -> None:
    document.add_paragraph("Before")
    document.add_picture(io.BytesIO(PICTURE))


TABLE = "| name | city |\n| --- | --- |\n| José | Málaga |"
SEMICOLON = "| name | amount |\n| --- | --- |\n| Anna | 1,5 |\n| Bob | 2,75 |"

OFFICES: Mapping[str, tuple[Builder, str]] = {
    # Excel, by openpyxl
    "ids.xlsx": (
        rows(["007", "01234", "NA", "None", "1e5", "1.10", "1-2", "TRUE"], [7, 1234, None, "null", 1e5, 1.1, "3/4", True]),
        "## Sheet\n| 007 | 01234 | NA | None | 1e5 | 1.10 | 1-2 | TRUE |\n| --- | --- | --- | --- | --- | --- | --- | --- |\n"
        "| 7 | 1234 |  | null | 100000 | 1.1 | 3/4 | TRUE |",
    ),
    "formats.xlsx": (
        rows(
            [1234.5, 0.125, 42, 123456789, -1234.5],
            formats={"A1": '#,##0.00\\ "€"', "B1": "0%", "C1": "00000", "D1": "000-00-0000", "E1": "$#,##0.00_);($#,##0.00)"},
        ),
        "## Sheet\n| 1,234.50 € | 12.5% | 00042 | 123-45-6789 | ($1,234.50) |\n| --- | --- | --- | --- | --- |",
    ),
    "dates.xlsx": (
        rows(
            [datetime.date(2026, 4, 3), datetime.datetime(2026, 4, 3, 10, 30), datetime.time(13, 5), datetime.timedelta(hours=27)],
            formats={"A1": "dd/mm/yy", "B1": "m/d/yyyy h:mm"},
        ),
        "## Sheet\n| 2026-04-03 | 2026-04-03 10:30 | 13:05 | 27:00:00 |\n| --- | --- | --- | --- |",
    ),
    "merged.xlsx": (
        cells({"A1": "Title", "A2": "a", "B2": "b"}, merge="A1:B1"),
        "## Sheet\n| Title |  |\n| --- | --- |\n| a | b |",
    ),
    "pipes.xlsx": (
        rows(["a|b", "two\nlines", "back\\|slash"]),
        "## Sheet\n| a\\|b | two<br>lines | back\\\\\\|slash |\n| --- | --- | --- |",
    ),
    "far_rows.xlsx": (
        cells({"A1": "x", "A1048576": "end"}),
        "## Sheet\n> [Rows 2 to 1048575 are empty and left out.]\n\n| x |\n| --- |\n| end |",
    ),
    "far_columns.xlsx": (
        cells({"A1": "x", "XFD1": "end"}),
        "## Sheet\n> [Columns B to XFC are empty and left out.]\n\n| x | end |\n| --- | --- |",
    ),
    "blank_far.xlsx": (cells({"A1": "x", "A200000": " "}), "## Sheet\n| x |\n| --- |"),
    "gap.xlsx": (
        cells({"B2": "a", "D2": "b", "B4": "c"}),
        "## Sheet\n| a |  | b |\n| --- | --- | --- |\n|  |  |  |\n| c |  |  |",
    ),
    "formula.xlsx": (rows([1, 2, "=A1+B1"]), "## Sheet\n| 1 | 2 | =A1+B1 |\n| --- | --- | --- |"),
    "hidden.xlsm": (
        book(_hidden),
        "## Seen\n| x |\n| --- |\n\n## Hidden (hidden)\n| hidden |\n| --- |\n\n## Very (hidden)\n| very |\n| --- |",
    ),
    # Excel, by hand: as other programs write it
    "cached.xlsx": (
        lambda: sheet_xml('<row r="1"><c r="A1"><f>1+1</f><v>2</v></c><c r="B1" t="str"><f>A1</f><v>02</v></c>'
                          '<c r="C1" t="e"><f>1/0</f><v>#DIV/0!</v></c></row>'),
        "## S\n| 2 | 02 | #DIV/0! |\n| --- | --- | --- |",
    ),
    "shared.xlsx": (
        lambda: sheet_xml('<row><c t="s"><v>0</v></c><c t="s"><v>1</v></c><c t="s"><v>9</v></c></row>',
                          strings="<si><r><t>0</t></r><r><t>07</t></r></si><si><t>東京</t><rPh><t>トウキョウ</t></rPh></si>"),
        "## S\n| 007 | 東京 | [text 9 is missing] |\n| --- | --- | --- |",
    ),
    "from_1904.xlsx": (
        lambda: sheet_xml('<row><c s="0"><v>1</v></c></row>', styles='<cellXfs><xf numFmtId="14"/></cellXfs>',
                          book_more='<workbookPr date1904="1"/>'),
        "## S\n| 1904-01-02 |\n| --- |",
    ),
    "east_asia.xlsx": (
        lambda: sheet_xml('<row><c s="0"><v>46115</v></c></row>', styles='<cellXfs><xf numFmtId="31"/></cellXfs>'),
        "## S\n| 2026-04-03 |\n| --- |",
    ),
    "strict.xlsx": (
        lambda: strict(sheet_xml('<row><c t="inlineStr"><is><t>007</t></is></c></row>')),
        "## S\n| 007 |\n| --- |",
    ),
    "backslashes.xlsx": (_backslashes, "## S\n| 007 |\n| --- |"),
    "font_family.xlsx": (
        lambda: replaced(rows(["x"])(), {}, lambda n, c: c.replace(b'<family val="2"', b'<family val="34"')),
        "## Sheet\n| x |\n| --- |",
    ),
    "bad_property.xlsx": (
        lambda: replaced(rows(["x"])(), {"docProps/core.xml": b"<coreProperties><created>yesterday"}),
        "## Sheet\n| x |\n| --- |",
    ),
    "escapes.xlsx": (
        lambda: sheet_xml('<row><c t="str"><v>a_x000D_b_x0041_</v></c></row>'),
        "## S\n| a<br>bA |\n| --- |",
    ),
    # Excel of old, and files that are only called so
    "old.xls": (
        old_book,
        "## Old\n| 007 | a\\|b | 12.5 | TRUE |\n| --- | --- | --- | --- |\n| 2026-04-03 | 12.5% | 00042 |  |\n\n"
        "## Kept (hidden)\n| NA |\n| --- |",
    ),
    "year.xls": (lambda: XML_2003.encode(), "## Year\n| 007 |  | 12.5% |\n| --- | --- | --- |\n|  |  |  |\n| 2026-04-03 |  |  |"),
    "page.xls": (
        lambda: b"<html><table><tr><td>007</td><td>a|b</td></tr><tr><td>NA</td><td></td></tr></table></html>",
        "| 007 | a\\|b |\n| --- | --- |\n| NA |  |",
    ),
    "tabs.xls": (lambda: b"id\tname\r\n007\tNA\r\n", "| id | name |\n| --- | --- |\n| 007 | NA |"),
    "new.xls": (rows(["007"]), "## Sheet\n| 007 |\n| --- |"),
    # tables as text
    "plain.csv": (lambda: b"id,zip\n007,01234\n,NA\n", "| id | zip |\n| --- | --- |\n| 007 | 01234 |\n|  | NA |"),
    "semicolon.csv": (lambda: b"name;amount\nAnna;1,5\nBob;2,75\n", SEMICOLON),
    "declared.csv": (lambda: b"sep=;\r\nname;amount\r\nAnna;1,5\r\nBob;2,75\r\n", SEMICOLON),
    "pipe.csv": (lambda: b"a|b\n1|2,5\n", "| a | b |\n| --- | --- |\n| 1 | 2,5 |"),
    "quoted.csv": (
        lambda: b'a,b\n"x, ""y""","1\n2|3"\n',
        '| a | b |\n| --- | --- |\n| x, "y" | 1<br>2\\|3 |',
    ),
    "unicode_text.csv": (lambda: b"\xff\xfe" + wide("name\tcity\nJosé\tMálaga\n"), TABLE),
    "wide.csv": (lambda: wide("name\tcity\r\nJosé\tMálaga\r\n"), TABLE),
    "latin.csv": (lambda: "name;city\nJosé;Málaga\n".encode("cp1252"), TABLE),
    "marked.csv": (lambda: b"\xef\xbb\xbf" + "name,city\nJosé,Málaga\n".encode(), TABLE),
    "chinese.csv": (
        lambda: ("姓名,城市,说明\n" + "张伟,北京,他在这里工作了很多年\n李娜,上海,她是一名医生\n" * 3).encode("gb18030"),
        "| 姓名 | 城市 | 说明 |\n| --- | --- | --- |\n"
        + "\n".join(["| 张伟 | 北京 | 他在这里工作了很多年 |\n| 李娜 | 上海 | 她是一名医生 |"] * 3),
    ),
    "tabs.tsv": (lambda: b"a\tb\n1,5\t007\n", "| a | b |\n| --- | --- |\n| 1,5 | 007 |"),
    "long_cell.csv": (lambda: b"a,b\n" + b"x" * 140_000 + b",1\n", f"| a | b |\n| --- | --- |\n| {'x' * 140_000} | 1 |"),
    # Word
    "structure.docx": (
        words(_structure),
        "# Annual report\n\n# Numbers\n\nThe key_of_2 is 3*4*5.\n\n* first\n\n1. then",
    ),
    "table.docx": (
        words(_table),
        "| 0\\|0 | wide |  |\n| --- | --- | --- |\n| tall | 1\\|1 | 1\\|2 |\n|  | 2\\|1 | 2\\|2 |",
    ),
    "header.docx": (words(_header), "Body\n\n> [Header of pages: Confidential]"),
    "picture.docx": (words(_pictured), "Before\n\n[picture]"),
    "footnote.docx": (
        lambda: word_xml(
            '<w:p><w:r><w:t>Text</w:t></w:r><w:r><w:footnoteReference w:id="2"/></w:r></w:p>',
            parts={"footnotes.xml": FOOTNOTES},
            relations=f'<Relationship Id="f" Type="{OFFICE}/footnotes" Target="footnotes.xml"/>',
        ),
        "Text[[1]](#footnote-2)\n\n1. The small print [↑](#footnote-ref-2)",
    ),
    "lost_footnote.docx": (
        lambda: word_xml(
            '<w:p><w:pPr><w:pStyle w:val="Heading1"/></w:pPr><w:r><w:rPr><w:b/></w:rPr><w:t>Head</w:t></w:r></w:p>'
            '<w:p><w:r><w:t>Text</w:t></w:r><w:r><w:footnoteReference w:id="7"/></w:r></w:p>',
            parts={"footnotes.xml": FOOTNOTES},
            relations=f'<Relationship Id="f" Type="{OFFICE}/footnotes" Target="footnotes.xml"/>',
        ),
        "# **Head**\n\nText\n\n> [Not converted: a footnote that it refers to is missing in the file]",
    ),
    "lost_picture.docx": (
        lambda: replaced(words(_pictured)(), {}, lambda n, c: c.replace(b"media/image1.png", b"media/image9.png")),
        "Before\n\n> [Not converted: word/media/image9.png: is missing, though document.xml names it]\n\n"
        "> [Not converted: a picture or an object is missing in the file]",
    ),
    "lost_link.docx": (
        lambda: word_xml('<w:p><w:hyperlink r:id="none"><w:r><w:rPr><w:b/></w:rPr><w:t>a page</w:t></w:r></w:hyperlink></w:p>'),
        "**a page**\n\n> [Not converted: a link is missing in the file]",
    ),
    "word_online.docx": (
        lambda: replaced(
            build.docx("x"),
            {
                "word/document.xml": None,
                "word/document2.xml": f"<w:document {W}><w:body>{paragraph('Online')}</w:body></w:document>".encode(),
            },
            lambda name, content: content.replace(b"word/document.xml", b"word/document2.xml"),
        ),
        "Online",
    ),
    "strict.docx": (lambda: strict(build.docx("Strict text")), "Strict text"),
    "tracked.docx": (
        lambda: word_xml("<w:p><w:ins><w:r><w:t>new</w:t></w:r></w:ins><w:del><w:r><w:delText>old</w:delText></w:r></w:del></w:p>"),
        "new",
    ),
    "rich.doc": (lambda: rb"{\rtf1\ansi\ansicpg1252 Gr\'f6\'dfe}", "Größe"),
    # PowerPoint
    "talk.pptx": (
        deck(_talk),
        "<!-- Slide number: 1 -->\n\n# Why\n\nBecause\n  - of this\n\n### Notes:\nSpeak slowly\n\n"
        "<!-- Slide number: 2 -->\n\n> [This slide is hidden.]\n\n# Spare",
    ),
    "chart.pptx": (
        deck(_chart),
        "<!-- Slide number: 1 -->\n\n# Chart\n\n### Chart\n\n| Category | Sales |\n| --- | --- |\n| x | 1.5 |\n| y |  |",
    ),
    "error_chart.pptx": (
        lambda: replaced(deck(_chart)(), {}, lambda n, c: _chart_error(c) if "/charts/" in n else c),
        "<!-- Slide number: 1 -->\n\n# Chart\n\n### Chart\n\n| Category | Sales |\n| --- | --- |\n| x | #N/A |\n| y |  |",
    ),
    "grid.pptx": (deck(_grid), "<!-- Slide number: 1 -->\n\n# Table\n\n| a\\|b | c |\n| --- | --- |\n| 007 |  |"),
    # OpenDocument
    "letter.odt": (
        lambda: odf("text", '<text:h text:outline-level="2">Head</text:h><text:p>a<text:s text:c="3"/>b<text:line-break/>c'
                            "<text:note><text:note-citation>1</text:note-citation><text:note-body><text:p>small</text:p>"
                            "</text:note-body></text:note></text:p><text:list><text:list-item><text:p>x</text:p>"
                            "</text:list-item></text:list>"),
        "## Head\n\na   b\nc[^1]\n\n- x\n\n[^1]: small",
    ),
    "sheet.ods": (
        lambda: odf("spreadsheet", '<table:table table:name="T" table:style-name="h"><table:table-row>'
                    + _cell("007") + _cell("13%", 'office:value-type="percentage" office:value="0.125"')
                    + _cell("", 'table:number-columns-repeated="16380"') + "</table:table-row><table:table-row "
                    'table:number-rows-repeated="1048570">' + _cell("", 'table:number-columns-repeated="16384"')
                    + "</table:table-row></table:table>",
                    styles='<style:style style:name="h"><style:table-properties table:display="false"/></style:style>'),
        "## T (hidden)\n| 007 | 13% (0.125) |\n| --- | --- |",
    ),
    "talk.odp": (
        lambda: odf("presentation", '<draw:page><draw:frame presentation:class="title"><draw:text-box><text:p>Why</text:p>'
                    "</draw:text-box></draw:frame><draw:frame><draw:text-box><text:p>Because</text:p></draw:text-box>"
                    "</draw:frame></draw:page>"),
        "<!-- Slide number: 1 -->\n\n# Why\n\nBecause",
    ),
    # RTF
    "letter.rtf": (lambda: rb"{\rtf1\ansi\ansicpg1251 \'cf\'f0\'e8\'e2\'e5\'f2\par \u8364?5 a|b}", "Привет\n€5 a|b"),
    "table.rtf": (
        lambda: rb"{\rtf1\ansi x\par\trowd\cellx1\cellx2\intbl 007\cell a|b\cell\row\trowd\cellx1\cellx2\intbl NA\cell \cell\row\pard y}",
        "x\n\n| 007 | a\\|b |\n| --- | --- |\n| NA |  |\n\ny",
    ),
    # PDF
    "bill.pdf": (report_pdf, "Invoice 007\n\nTotal 1,234.50"),
    "pages.pdf": (lambda: build.pdf("First", "007 NA"), "First\n\n007 NA"),
    # pages, books, notebooks
    "plain.html": (
        lambda: b"<h1>Title</h1><p>key_of 2*3</p><table><tr><th rowspan=2>a</th><th>b|c</th></tr><tr><td>007</td></tr></table>",
        "# Title\n\nkey_of 2*3\n\n| a | b\\|c |\n| --- | --- |\n|  | 007 |",
    ),
    "declared.html": (
        lambda: '<html><head><meta charset="windows-1251"></head><body><p>Привет</p></body></html>'.encode("cp1251"),
        "Привет",
    ),
    "book.epub": (lambda: build.epub("One", "Two"), "**Title:** Book\n\nOne\n\nTwo"),
    "work.ipynb": (
        notebook,
        "# Title\n\n```python\nprint('007')\n1/0\n```\n\nOutput:\n\n```\n007\n\nZeroDivisionError: division by zero\n```",
    ),
    # mails
    "plain.eml": (
        mail(_with_attachment),
        "# Email Message\n\n**From:** Ada <ada@example.org>\n**To:** bob@example.org\n**Date:** Fri, 27 Nov 2026 05:00:00 +0000\n"
        "**Subject:** Größe\n\n## Content\n\nSee the file.\n\n## Attachments\n- bill.pdf",
    ),
    "html.eml": (
        mail(lambda message: message.set_content("<p>Only <b>HTML</b></p>", subtype="html")),
        "# Email Message\n\n**From:** Ada <ada@example.org>\n**To:** bob@example.org\n**Date:** Fri, 27 Nov 2026 05:00:00 +0000\n"
        "**Subject:** Größe\n\n## Content\n\nOnly **HTML**",
    ),
    "raw.eml": (
        lambda: b"From: a@b.c\r\nSubject: x\r\nContent-Type: text/plain; charset=nonsense\r\n\r\n" + "Größe".encode("cp1252"),
        "# Email Message\n\n**From:** a@b.c\n**Subject:** x\n\n## Content\n\nGröße",
    ),
    "outlook.msg": (
        lambda: outlook({"__substg1.0_0037001F": wide("Größe"), "__substg1.0_0E04001F": wide("Bob"),
                         "__substg1.0_1000001F": wide("The body 007")}),
        "# Email Message\n\n**To:** Bob\n**Subject:** Größe\n\n## Content\n\nThe body 007",
    ),
}  # fmt: skip
"""Files by name: what makes each, and its text."""

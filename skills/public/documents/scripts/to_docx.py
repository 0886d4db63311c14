"""Word documents from blocks, in the styles of a template where there is one."""

from __future__ import annotations

import sys
from pathlib import Path

from blocks import Block, Document, Problem, Span

try:
    from docx import Document as Word
    from docx.enum.table import WD_TABLE_ALIGNMENT
    from docx.enum.text import WD_ALIGN_PARAGRAPH as ALIGN
    from docx.oxml import OxmlElement
    from docx.oxml.ns import qn
    from docx.shared import Cm, Pt, RGBColor
except ModuleNotFoundError as error:
    print(f"missing Python package {error.name}. Fix: pip install python-docx", file=sys.stderr)
    sys.exit(3)

PAGES = {"A4": (21.0, 29.7), "Letter": (21.59, 27.94)}
ALIGNS = {"left": ALIGN.LEFT, "center": ALIGN.CENTER, "right": ALIGN.RIGHT}


def write(document: Document, target: Path, template: Path | None) -> None:
    word = Word(str(template) if template else None)
    accent = RGBColor.from_string(str(document.meta.get("accent", "#1F4E79")).lstrip("#").upper())
    if template is None:
        _style(word, document, accent)
    _properties(word, document)
    _cover(word, document, accent)
    for block in document.blocks:
        _block(word, document, block)
    if not template:
        _footer(word, document)
    word.save(str(target))


def _style(word: Word, document: Document, accent: RGBColor) -> None:
    page = str(document.meta.get("page", "A4"))
    if page not in PAGES:
        raise Problem(f"page: {page!r} is not one of {', '.join(PAGES)}")
    section = word.sections[0]
    section.page_width, section.page_height = Cm(PAGES[page][0]), Cm(PAGES[page][1])
    section.left_margin = section.right_margin = Cm(2.5)
    section.top_margin = section.bottom_margin = Cm(2.3)
    normal = word.styles["Normal"]
    _font(normal, "Calibri", 11)
    normal.paragraph_format.space_after, normal.paragraph_format.line_spacing = Pt(7), 1.15
    for level, size in enumerate((18, 14, 12, 11), start=1):
        style = word.styles[f"Heading {level}"]
        _font(style, "Calibri", size)
        style.font.color.rgb, style.font.bold = accent, True
        style.paragraph_format.space_before, style.paragraph_format.space_after = Pt(size), Pt(5)
        style.paragraph_format.keep_with_next = True


def _font(style, name: str, size: float) -> None:
    style.font.name, style.font.size = name, Pt(size)
    fonts = style.element.get_or_add_rPr().get_or_add_rFonts()
    for key in ("w:asciiTheme", "w:hAnsiTheme", "w:eastAsiaTheme", "w:cstheme"):
        fonts.attrib.pop(qn(key), None)  # a theme's font would win
    fonts.set(qn("w:eastAsia"), name)


def _properties(word: Word, document: Document) -> None:
    meta, core = document.meta, word.core_properties
    core.title, core.author = str(meta.get("title", "")), str(meta.get("author", ""))
    core.language, core.comments = str(meta.get("lang", "")), ""


def _cover(word: Word, document: Document, accent: RGBColor) -> None:
    meta = document.meta
    if "title" in meta:
        title = word.add_paragraph(style=_known(word, "Title"))
        title.add_run(str(meta["title"]))
        if accent and title.style.name == "Title":
            _font(title.style, "Calibri", 26)
            title.style.font.color.rgb = accent
    if "subtitle" in meta:
        word.add_paragraph(str(meta["subtitle"]), style=_known(word, "Subtitle"))
    if line := " · ".join(str(meta[key]) for key in ("author", "date") if key in meta):
        word.add_paragraph(line).runs[0].font.color.rgb = RGBColor(0x59, 0x59, 0x59)
    if meta.get("toc"):
        _contents(word, document)


def _contents(word: Word, document: Document) -> None:
    """Adds a table of contents. Word asks to fill in the page numbers when it opens the file."""
    paragraph = word.add_paragraph()
    _field(
        paragraph,
        'TOC \\o "1-2" \\h \\z \\u',
        "\n".join(b.plain for b in document.blocks if b.kind == "heading" and b.level <= 2),
    )
    setting = OxmlElement("w:updateFields")
    setting.set(qn("w:val"), "true")
    word.settings.element.append(setting)
    word.add_page_break()


def _block(word: Word, document: Document, block: Block) -> None:
    match block.kind:
        case "heading":
            _runs(word.add_paragraph(style=_known(word, f"Heading {min(block.level, 4)}")), block.spans)
        case "paragraph":
            _runs(word.add_paragraph(), block.spans)
        case "quote":
            paragraph = word.add_paragraph(style=_known(word, "Quote"))
            paragraph.paragraph_format.left_indent = Cm(0.8)
            _runs(paragraph, block.spans)
        case "item":
            _item(word, block)
        case "code":
            _code(word, block)
        case "table":
            _table(word, block)
        case "image":
            _image(word, document, block)
        case "break":
            word.add_page_break()
        case "rule":
            _border(word.add_paragraph())


def _item(word: Word, block: Block) -> None:
    """Writes the number as text: Word's own numbering would go on from one list to the next."""
    paragraph = word.add_paragraph()
    form = paragraph.paragraph_format
    form.left_indent, form.first_line_indent = Cm(0.65 * (block.level + 1)), Cm(-0.65 if block.marker else 0)
    form.space_after = Pt(3)
    form.tab_stops.add_tab_stop(Cm(0.65 * (block.level + 1)))
    if block.marker:
        paragraph.add_run(f"{block.marker}\t")
    _runs(paragraph, block.spans)


def _code(word: Word, block: Block) -> None:
    paragraph = word.add_paragraph()
    paragraph.paragraph_format.left_indent, paragraph.paragraph_format.line_spacing = Cm(0.3), 1.0
    run = paragraph.add_run(block.text)
    run.font.name, run.font.size = "Consolas", Pt(9)
    _shade(paragraph._p.get_or_add_pPr(), "F3F4F6")


def _table(word: Word, block: Block) -> None:
    columns = max(len(row) for row in block.rows)
    table = word.add_table(rows=0, cols=columns)
    table.style, table.alignment = _known(word, "Table Grid"), WD_TABLE_ALIGNMENT.CENTER
    for number, row in enumerate(block.rows):
        cells = table.add_row().cells
        for index, spans in enumerate(row):
            paragraph = cells[index].paragraphs[0]
            paragraph.paragraph_format.space_after = Pt(2)
            paragraph.alignment = ALIGNS[block.aligns[index]]
            _runs(paragraph, spans, bold=number == 0)
            if number == 0:
                _shade(cells[index]._tc.get_or_add_tcPr(), "E8EEF4")
    head = table.rows[0]._tr.get_or_add_trPr()
    for row in table.rows:
        row._tr.get_or_add_trPr().append(OxmlElement("w:cantSplit"))
    head.append(OxmlElement("w:tblHeader"))  # repeated on each page
    word.add_paragraph().paragraph_format.space_after = Pt(2)


def _image(word: Word, document: Document, block: Block) -> None:
    section = word.sections[-1]
    room = section.page_width - section.left_margin - section.right_margin
    high = section.page_height - section.top_margin - section.bottom_margin - Cm(2)
    picture = word.add_picture(str(document.picture(block)))
    scale = min(1.0, room / picture.width, high / picture.height)
    picture.width, picture.height = int(picture.width * scale), int(picture.height * scale)
    picture._inline.docPr.set("descr", block.plain)
    word.paragraphs[-1].alignment = ALIGN.CENTER
    if block.plain:
        word.paragraphs[-1].paragraph_format.keep_with_next = True
        caption = word.add_paragraph(block.plain, style=_known(word, "Caption"))
        caption.alignment = ALIGN.CENTER


def _runs(paragraph, spans: list[Span], bold: bool = False) -> None:
    for span in spans:
        run = _hyperlink(paragraph, span) if span.link else paragraph.add_run(span.text)
        run.bold, run.italic = (span.bold or bold) or None, span.italic or None
        run.font.strike = span.strike or None
        if span.code:
            run.font.name, run.font.size = "Consolas", Pt(9.5)


def _hyperlink(paragraph, span: Span):
    run = paragraph.add_run(span.text)
    run.font.color.rgb, run.font.underline = RGBColor(0x05, 0x63, 0xC1), True
    relation = paragraph.part.relate_to(
        span.link, "http://schemas.openxmlformats.org/officeDocument/2006/relationships/hyperlink", is_external=True
    )
    link = OxmlElement("w:hyperlink")
    link.set(qn("r:id"), relation)
    paragraph._p.append(link)
    link.append(run._r)
    return run


def _footer(word: Word, document: Document) -> None:
    paragraph = word.sections[0].footer.paragraphs[0]
    paragraph.alignment = ALIGN.RIGHT
    text = str(document.meta.get("footer", document.meta.get("title", "")))
    paragraph.add_run(f"{text}   " if text else "").font.size = Pt(8.5)
    _field(paragraph, "PAGE", "1")


def _field(paragraph, code: str, shown: str) -> None:
    for kind, text in (("begin", ""), ("", code), ("separate", ""), ("text", shown), ("end", "")):
        run = paragraph.add_run(text if kind == "text" else "")
        run.font.size = Pt(8.5) if code == "PAGE" else None
        if kind in ("begin", "separate", "end"):
            mark = OxmlElement("w:fldChar")
            mark.set(qn("w:fldCharType"), kind)
            run._r.append(mark)
        elif not kind:
            instruction = OxmlElement("w:instrText")
            instruction.set(qn("xml:space"), "preserve")
            instruction.text = text
            run._r.append(instruction)


def _shade(properties, colour: str) -> None:
    shade = OxmlElement("w:shd")
    shade.set(qn("w:val"), "clear")
    shade.set(qn("w:fill"), colour)
    properties.append(shade)


def _border(paragraph) -> None:
    borders, line = OxmlElement("w:pBdr"), OxmlElement("w:bottom")
    for key, value in (("val", "single"), ("sz", "6"), ("space", "1"), ("color", "BFBFBF")):
        line.set(qn(f"w:{key}"), value)
    borders.append(line)
    paragraph._p.get_or_add_pPr().append(borders)


def _known(word: Word, name: str) -> str | None:
    """Returns the style, None if the template does not have it."""
    return name if name in [style.name for style in word.styles] else None

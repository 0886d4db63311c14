"""PDF from blocks, with a font for Latin, Greek and Cyrillic letters, and others for what it lacks."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from html import escape
from itertools import groupby
from pathlib import Path

from blocks import Block, Document, Problem, Span

try:
    import fonts
    import matplotlib
    from reportlab.lib import colors, pagesizes
    from reportlab.lib.enums import TA_CENTER, TA_RIGHT
    from reportlab.lib.styles import ParagraphStyle
    from reportlab.lib.units import cm
    from reportlab.lib.utils import ImageReader
    from reportlab.pdfbase import pdfmetrics
    from reportlab.pdfbase.ttfonts import TTFont
    from reportlab.platypus import (
        HRFlowable,
        Image,
        KeepTogether,
        LongTable,
        PageBreak,
        Paragraph,
        Preformatted,
        SimpleDocTemplate,
        Spacer,
        TableStyle,
        XPreformatted,
    )
    from reportlab.platypus.tableofcontents import TableOfContents
except ModuleNotFoundError as error:
    print(f"missing Python package {error.name}. Fix: pip install reportlab matplotlib", file=sys.stderr)
    sys.exit(3)

PAGES = {"A4": pagesizes.A4, "Letter": pagesizes.LETTER}
MARGIN = 2.3 * cm
PADDING = 6
"""Points that the library leaves free inside of the margins."""
FONTS = {"Body": "", "Body-Bold": "-Bold", "Body-Italic": "-Oblique", "Body-BoldItalic": "-BoldOblique"}
FACES: dict[str, str] = {}
"""Characters that the font lacks, and the fonts that have them."""
WIDE = ((0x1100, 0x11FF), (0x2E80, 0x9FFF), (0xAC00, 0xD7FF), (0xF900, 0xFAFF), (0xFF00, 0xFFEF), (0x20000, 0x3FFFF))
"""Scripts without spaces: lines break between any two characters."""
ALIGNS = {"left": 0, "center": TA_CENTER, "right": TA_RIGHT}


def write(document: Document, target: Path, template: Path | None) -> None:
    if template:
        raise Problem("--template: a PDF has none; set accent, page and footer in the front matter")
    _fonts(document)
    page = str(document.meta.get("page", "A4"))
    if page not in PAGES:
        raise Problem(f"page: {page!r} is not one of {', '.join(PAGES)}")
    styles = _styles(str(document.meta.get("accent", "#1F4E79")))
    frame = _Frame(str(target), pagesize=PAGES[page], title=str(document.meta.get("title", target.stem)))
    frame.author, frame.lang = str(document.meta.get("author", "")), str(document.meta.get("lang", "en"))
    story = [*_cover(document, styles), *_story(document, styles, PAGES[page])]

    def footer(canvas, _) -> None:
        canvas.saveState()
        canvas.setFillColor(colors.HexColor("#595959"))
        line = canvas.beginText(MARGIN + PADDING, 1.3 * cm)
        for face, text in _runs(str(document.meta.get("footer", document.meta.get("title", "")))[:90]):
            line.setFont(face or "Body", 8)
            line.textOut(text)
        canvas.drawText(line)
        canvas.setFont("Body", 8)
        canvas.drawRightString(PAGES[page][0] - MARGIN - PADDING, 1.3 * cm, str(canvas.getPageNumber()))
        canvas.restoreState()

    frame.multiBuild(story, onFirstPage=footer, onLaterPages=footer)


class _Frame(SimpleDocTemplate):
    """Tells headings to the table of contents and to the bookmarks of the reader."""

    def __init__(self, path: str, **settings) -> None:
        super().__init__(path, leftMargin=MARGIN, rightMargin=MARGIN, topMargin=MARGIN, bottomMargin=MARGIN, **settings)

    def afterFlowable(self, flowable) -> None:
        level = getattr(flowable, "outline", None)
        if level is not None:
            key = f"h{id(flowable)}"
            self.canv.bookmarkPage(key)
            self.canv.addOutlineEntry(flowable.getPlainText(), key, level, closed=level > 0)
            self.notify("TOCEntry", (level, _lettered(flowable.getPlainText()), self.page, key))


def _fonts(document: Document) -> None:
    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    for name, suffix in FONTS.items():
        pdfmetrics.registerFont(TTFont(name, str(folder / f"DejaVuSans{suffix}.ttf")))
    pdfmetrics.registerFont(TTFont("Code", str(folder / "DejaVuSansMono.ttf")))
    pdfmetrics.registerFontFamily("Body", *FONTS)
    glyphs = pdfmetrics.getFont("Body").face.charToGlyph
    texts = [_all_text(block) for block in document.blocks] + [str(value) for value in document.meta.values()]
    lacking = {char for char in fonts.visible("".join(texts)) if ord(char) not in glyphs}
    if shaped := fonts.shaped("".join(texts)):
        joined = " ".join(sorted(shaped)[:20])
        raise Problem(
            f"the letters {joined} must be joined, which is not done here: write a docx instead, Word does it"
        )
    _more_fonts(lacking)


def _more_fonts(lacking: set[str]) -> None:
    """Registers fonts for what the usual one lacks. They have no italics."""
    with tempfile.TemporaryDirectory() as folder:
        made, missing = fonts.made_for(lacking, Path(folder))
        if missing:
            letters = " ".join(sorted(missing)[:20])
            raise Problem(f"no font here has {letters}: {fonts.FIX}, or write a docx, Word finds a font")
        bold = dict(zip((path for path, _ in made), fonts.made_for(lacking, Path(folder), bold=True)[0], strict=True))
        for number, (path, characters) in enumerate(made):
            name = f"Letters{number}"
            pdfmetrics.registerFont(TTFont(name, str(path)))
            pdfmetrics.registerFont(TTFont(f"{name}-Bold", str(bold[path][0])))
            pdfmetrics.registerFontFamily(name, name, f"{name}-Bold", name, f"{name}-Bold")
            FACES.update(dict.fromkeys(characters, name))


def _runs(text: str) -> Iterator[tuple[str, str]]:
    """Yields parts of a text with the font that they need, "" for the usual one."""
    for face, characters in groupby(fonts.printable(text), lambda char: FACES.get(char, "")):
        yield face, "".join(characters)


def _lettered(text: str, bold: bool = False) -> str:
    """Returns a text as markup. A font within bold text is not bold by itself."""
    weight = "-Bold" if bold else ""
    runs = _runs(text)
    return "".join(
        f'<font face="{face}{weight}">{escape(part)}</font>' if face else escape(part) for face, part in runs
    )


def _wrapped(style: ParagraphStyle, text: str) -> ParagraphStyle:
    """Returns a style whose lines break where this text allows it."""
    wide = any(low <= ord(char) <= high for char in text for low, high in WIDE)
    return ParagraphStyle(f"{style.name}-wide", style, wordWrap="CJK") if wide else style


def _paragraph(spans: list[Span], style: ParagraphStyle, **more: str | None) -> Paragraph:
    bold = style.fontName.endswith("-Bold")
    return Paragraph(_markup(spans, bold), _wrapped(style, "".join(span.text for span in spans)), **more)


def _all_text(block: Block) -> str:
    return block.text + block.plain + "".join(s.text for row in block.rows for cell in row for s in cell)


def _styles(accent: str) -> dict[str, ParagraphStyle]:
    body = ParagraphStyle("body", fontName="Body", fontSize=9.5, leading=14, spaceAfter=7)
    styles = {"body": body, "title": _like(body, accent, 22, 28), "subtitle": _like(body, "#404040", 13, 18)}
    styles["small"] = ParagraphStyle("small", body, fontSize=8.5, textColor=colors.HexColor("#595959"), spaceAfter=16)
    for level, size in enumerate((16, 13, 11, 10), start=1):
        style = _like(body, accent, size, size * 1.3)
        style.spaceBefore, style.spaceAfter, style.keepWithNext = size, 5, 1
        styles[f"h{level}"] = style
    styles["quote"] = ParagraphStyle(
        "quote", body, leftIndent=14, textColor=colors.HexColor("#404040"), fontName="Body-Italic"
    )
    styles["caption"] = ParagraphStyle("caption", styles["small"], alignment=TA_CENTER)
    styles["code"] = ParagraphStyle(
        "code", fontName="Code", fontSize=8, leading=11, backColor=colors.HexColor("#F3F4F6"), borderPadding=5,
        spaceBefore=6, spaceAfter=12, leftIndent=5, rightIndent=5,
    )  # fmt: skip
    return styles


def _like(body: ParagraphStyle, colour: str, size: float, leading: float) -> ParagraphStyle:
    return ParagraphStyle(
        f"s{size}", body, fontName="Body-Bold", fontSize=size, leading=leading, textColor=colors.HexColor(colour)
    )


def _cover(document: Document, styles: dict[str, ParagraphStyle]) -> list:
    meta, story = document.meta, []
    for key in ("title", "subtitle"):
        if key in meta:
            story.append(_paragraph([Span(str(meta[key]))], styles[key]))
    if line := " · ".join(str(meta[key]) for key in ("author", "date") if key in meta):
        story.append(_paragraph([Span(line)], styles["small"]))
    if meta.get("toc"):
        contents = TableOfContents(dotsMinLevel=0)
        contents.levelStyles = [
            ParagraphStyle(f"toc{level}", styles["body"], leftIndent=14 * level, spaceAfter=2) for level in range(2)
        ]
        story += [contents, PageBreak()]
    return story


def _story(document: Document, styles: dict[str, ParagraphStyle], page: tuple[float, float]) -> list:
    story: list = []
    for block in document.blocks:
        match block.kind:
            case "heading":
                heading = _paragraph(block.spans, styles[f"h{min(block.level, 4)}"])
                if block.level <= 2:
                    heading.outline = block.level - 1
                story.append(heading)
            case "paragraph" | "quote":
                style = "quote" if block.kind == "quote" else "body"
                story.append(_paragraph(block.spans, styles[style]))
            case "item":
                indent = 16 * (block.level + 1)
                style = ParagraphStyle(
                    "item", styles["body"], leftIndent=indent, bulletIndent=indent - 14, spaceAfter=3
                )
                story.append(_paragraph(block.spans, style, bulletText=block.marker or None))
            case "code":
                story.append(_code(block.text, styles["code"]))
            case "table":
                story += [_table(block, styles, page[0] - 2 * (MARGIN + PADDING)), Spacer(1, 10)]
            case "image":
                story.append(_image(document, block, styles, page))
            case "break":
                story.append(PageBreak())
            case "rule":
                story.append(HRFlowable(width="100%", color=colors.HexColor("#BFBFBF"), spaceBefore=6, spaceAfter=10))
    return story


def _table(block: Block, styles: dict[str, ParagraphStyle], width: float) -> LongTable:
    def cell(spans: list[Span], column: int, head: bool) -> Paragraph:
        style = ParagraphStyle(
            "cell", styles["body"], fontSize=8.5, leading=11, spaceAfter=0, alignment=ALIGNS[block.aligns[column]]
        )
        text = "".join(span.text for span in spans)
        return Paragraph(f"<b>{_markup(spans, head)}</b>" if head else _markup(spans), _wrapped(style, text))

    rows = [[cell(spans, i, number == 0) for i, spans in enumerate(row)] for number, row in enumerate(block.rows)]
    lengths = [max(len("".join(s.text for s in row[i])) for row in block.rows) for i in range(len(block.rows[0]))]
    weights = [min(max(length, 6), 40) for length in lengths]
    table = LongTable(rows, colWidths=[width * weight / sum(weights) for weight in weights], repeatRows=1)
    table.setStyle(
        TableStyle(
            [
                ("BACKGROUND", (0, 0), (-1, 0), colors.HexColor("#E8EEF4")),
                ("LINEBELOW", (0, 0), (-1, -1), 0.4, colors.HexColor("#C8CDD3")),
                ("VALIGN", (0, 0), (-1, -1), "TOP"),
                ("TOPPADDING", (0, 0), (-1, -1), 4),
                ("BOTTOMPADDING", (0, 0), (-1, -1), 4),
            ]
        )
    )
    return table


def _image(
    document: Document, block: Block, styles: dict[str, ParagraphStyle], page: tuple[float, float]
) -> KeepTogether:
    path = document.picture(block)
    width, height = ImageReader(str(path)).getSize()
    points = 72 / 150  # of a pixel on paper
    scale = min(points, (page[0] - 2 * MARGIN) / width, (page[1] - 2 * MARGIN - 3 * cm) / height)
    picture = Image(str(path), width * scale, height * scale)
    return KeepTogether([picture, _paragraph([Span(block.plain)], styles["caption"])])


def _code(text: str, style: ParagraphStyle) -> Preformatted:
    if FACES.keys() & set(text):
        return XPreformatted(_lettered(text), style)
    return Preformatted(text, style, maxLineLength=92, splitChars=" ,;(", newLineChars="  ")


def _markup(spans: list[Span], bold: bool = False) -> str:
    parts = []
    for span in spans:
        text = _lettered(span.text, bold or span.bold).replace("\n", "<br/>")
        for tag, on in (("b", span.bold), ("i", span.italic), ("strike", span.strike)):
            text = f"<{tag}>{text}</{tag}>" if on else text
        text = f'<font face="Code" size="8.5">{text}</font>' if span.code else text
        parts.append(f'<a href="{escape(span.link, quote=True)}" color="#0563C1">{text}</a>' if span.link else text)
    return "".join(parts)

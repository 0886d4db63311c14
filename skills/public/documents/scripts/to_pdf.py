"""PDF from blocks, with fonts that have Latin, Greek and Cyrillic letters."""

from __future__ import annotations

import sys
from html import escape
from pathlib import Path

from blocks import Block, Document, Problem, Span

try:
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
        canvas.setFont("Body", 8)
        canvas.setFillColor(colors.HexColor("#595959"))
        canvas.drawString(
            MARGIN + PADDING, 1.3 * cm, str(document.meta.get("footer", document.meta.get("title", "")))[:90]
        )
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
            self.notify("TOCEntry", (level, flowable.getPlainText(), self.page, key))


def _fonts(document: Document) -> None:
    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    for name, suffix in FONTS.items():
        pdfmetrics.registerFont(TTFont(name, str(folder / f"DejaVuSans{suffix}.ttf")))
    pdfmetrics.registerFont(TTFont("Code", str(folder / "DejaVuSansMono.ttf")))
    pdfmetrics.registerFontFamily("Body", *FONTS)
    glyphs = pdfmetrics.getFont("Body").face.charToGlyph
    texts = [_all_text(block) for block in document.blocks] + [str(value) for value in document.meta.values()]
    if missing := sorted({char for text in texts for char in text if ord(char) not in glyphs and not char.isspace()}):
        raise Problem(f"the font has no {' '.join(missing[:20])}: write a docx instead, Word finds a font for it")


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
            story.append(Paragraph(escape(str(meta[key])), styles[key]))
    if line := " · ".join(str(meta[key]) for key in ("author", "date") if key in meta):
        story.append(Paragraph(escape(line), styles["small"]))
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
                heading = Paragraph(_markup(block.spans), styles[f"h{min(block.level, 4)}"])
                if block.level <= 2:
                    heading.outline = block.level - 1
                story.append(heading)
            case "paragraph" | "quote":
                style = "quote" if block.kind == "quote" else "body"
                story.append(Paragraph(_markup(block.spans), styles[style]))
            case "item":
                indent = 16 * (block.level + 1)
                style = ParagraphStyle(
                    "item", styles["body"], leftIndent=indent, bulletIndent=indent - 14, spaceAfter=3
                )
                story.append(Paragraph(_markup(block.spans), style, bulletText=block.marker or None))
            case "code":
                story.append(
                    Preformatted(block.text, styles["code"], maxLineLength=92, splitChars=" ,;(", newLineChars="  ")
                )
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
        return Paragraph(f"<b>{_markup(spans)}</b>" if head else _markup(spans), style)

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
    return KeepTogether([picture, Paragraph(escape(block.plain), styles["caption"])])


def _markup(spans: list[Span]) -> str:
    parts = []
    for span in spans:
        text = escape(span.text).replace("\n", "<br/>")
        for tag, on in (("b", span.bold), ("i", span.italic), ("strike", span.strike)):
            text = f"<{tag}>{text}</{tag}>" if on else text
        text = f'<font face="Code" size="8.5">{text}</font>' if span.code else text
        parts.append(f'<a href="{escape(span.link, quote=True)}" color="#0563C1">{text}</a>' if span.link else text)
    return "".join(parts)

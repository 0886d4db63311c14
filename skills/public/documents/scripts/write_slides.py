"""Writes a presentation from a YAML deck: python3 write_slides.py deck.yaml --out deck.pptx [--template house.pptx]."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

try:
    import yaml
    from pptx import Presentation
    from pptx.chart.data import CategoryChartData
    from pptx.dml.color import RGBColor
    from pptx.enum.chart import XL_CHART_TYPE, XL_LEGEND_POSITION
    from pptx.util import Emu, Inches, Pt
except ModuleNotFoundError as error:
    print(f"missing Python package {error.name}. Fix: pip install python-pptx pyyaml", file=sys.stderr)
    sys.exit(3)

CHARTS = {
    "bar": XL_CHART_TYPE.BAR_CLUSTERED,
    "column": XL_CHART_TYPE.COLUMN_CLUSTERED,
    "stacked": XL_CHART_TYPE.COLUMN_STACKED,
    "line": XL_CHART_TYPE.LINE_MARKERS,
}
PALETTE = ("1F4E79", "D9822B", "2E8B7A", "A23B72", "6B7280", "C9A227")
KINDS = {
    "title": {"title", "subtitle"},
    "section": {"title", "subtitle"},
    "bullets": {"title", "bullets"},
    "columns": {"title", "left", "right"},
    "table": {"title", "rows"},
    "chart": {"title", "chart", "categories", "series", "unit"},
    "image": {"title", "image", "caption"},
    "quote": {"quote", "by"},
}
MAX_BULLETS, MAX_ROWS, MAX_TITLE, MAX_WORDS = 6, 12, 90, 18


class Problem(Exception):
    """A mistake in the deck, with its place."""


class Deck:
    def __init__(self, settings: dict[str, Any], folder: Path, template: Path | None) -> None:
        self.file = Presentation(str(template) if template else None)
        self.folder, self._template = folder, template is not None
        if not self._template:
            self.file.slide_width, self.file.slide_height = Inches(13.333), Inches(7.5)
        else:
            self._empty()
        self.width, self.height = self.file.slide_width, self.file.slide_height
        self.accent = RGBColor.from_string(str(settings.get("accent", "#1F4E79")).lstrip("#").upper())
        self.font = str(settings.get("font", "Calibri"))
        self.footer = str(settings.get("footer", ""))
        self.margin = int(self.width * 0.06)
        self.inner = self.width - 2 * self.margin

    def add(self, spec: dict[str, Any], number: int) -> None:
        kind = str(spec.pop("kind", "bullets"))
        if kind not in KINDS:
            raise Problem(f"slides[{number}].kind: {kind!r} is not one of {', '.join(KINDS)}")
        notes = spec.pop("notes", "")
        if unknown := sorted(set(spec) - KINDS[kind]):
            raise Problem(
                f"slides[{number}]: {kind} has no {', '.join(unknown)}; it has {', '.join(sorted(KINDS[kind]))}"
            )
        slide = self.file.slides.add_slide(self._layout())
        for shape in list(slide.placeholders):
            if shape.placeholder_format.type not in (1, 3):  # a title stays: outlines and screen readers use it
                shape._element.getparent().remove(shape._element)
        try:
            getattr(self, f"_{kind}")(slide, spec)
        except KeyError as error:
            raise Problem(f"slides[{number}] ({kind}): {error.args[0]} is missing") from None
        except Problem as error:
            raise Problem(f"slides[{number}] ({kind}): {error}") from None
        if notes:
            slide.notes_slide.notes_text_frame.text = str(notes)
        if number and kind not in ("title", "section"):
            self._foot(slide, number + 1)

    def _layout(self):
        """Returns the layout with a title and nothing else; that of any template has one."""
        named = {layout.name.lower(): layout for layout in self.file.slide_layouts}
        return named.get("title only") or self.file.slide_layouts[min(5, len(self.file.slide_layouts) - 1)]

    def _empty(self) -> None:
        ids = self.file.slides._sldIdLst
        for entry in list(ids):
            self.file.part.drop_rel(entry.rId)
            ids.remove(entry)

    def _title(self, slide, spec: dict[str, Any]) -> None:
        self._heading(slide, spec["title"], top=0.36, size=40, height=0.2)
        if subtitle := spec.get("subtitle"):
            self._text(
                slide,
                [str(subtitle)],
                self.margin,
                int(self.height * 0.57),
                self.inner,
                int(self.height * 0.15),
                20,
                colour="595959",
            )
        self._bar(slide, int(self.height * 0.56))

    def _section(self, slide, spec: dict[str, Any]) -> None:
        slide.background.fill.solid()
        slide.background.fill.fore_color.rgb = self.accent
        self._heading(slide, spec["title"], top=0.38, size=36, height=0.2, colour=RGBColor(255, 255, 255))
        if subtitle := spec.get("subtitle"):
            self._text(
                slide,
                [str(subtitle)],
                self.margin,
                int(self.height * 0.58),
                self.inner,
                int(self.height * 0.15),
                18,
                colour="FFFFFF",
            )

    def _bullets(self, slide, spec: dict[str, Any]) -> None:
        self._heading(slide, spec["title"])
        self._list(slide, spec["bullets"], self.margin, self.inner)

    def _columns(self, slide, spec: dict[str, Any]) -> None:
        self._heading(slide, spec["title"])
        half = int(self.inner * 0.48)
        for side, left in (("left", self.margin), ("right", self.margin + self.inner - half)):
            column = spec[side]
            if not isinstance(column, dict):
                raise Problem(f"{side}: is not {{heading, bullets}}")
            top = int(self.height * 0.24)
            self._text(slide, [str(column.get("heading", ""))], left, top, half, int(self.height * 0.08), 20, bold=True)
            self._list(slide, column["bullets"], left, half, top=0.33)

    def _table(self, slide, spec: dict[str, Any]) -> None:
        self._heading(slide, spec["title"])
        rows = spec["rows"]
        if not rows or any(len(row) != len(rows[0]) for row in rows):
            raise Problem("rows: is empty, or the rows have different lengths")
        if len(rows) > MAX_ROWS:
            raise Problem(f"rows: {len(rows)} (at most {MAX_ROWS}); show the top, put the rest in a file")
        top, height = int(self.height * 0.24), int(self.height * 0.055) * len(rows)
        table = slide.shapes.add_table(len(rows), len(rows[0]), self.margin, top, self.inner, height).table
        widths = [max(len(str(row[column])) for row in rows) + 4 for column in range(len(rows[0]))]
        for column, width in enumerate(widths):
            table.columns[column].width = Emu(int(self.inner * width / sum(widths)))
        for i, row in enumerate(rows):
            for j, value in enumerate(row):
                cell = table.cell(i, j)
                numeric = i > 0 and isinstance(value, int | float)
                cell.text = f"{value:,}" if numeric else str(value)
                for paragraph in cell.text_frame.paragraphs:
                    paragraph.font.size, paragraph.font.name, paragraph.font.bold = Pt(14), self.font, i == 0
                    paragraph.alignment = 3 if numeric or (i == 0 and isinstance(rows[-1][j], int | float)) else 1
                cell.fill.solid()
                cell.fill.fore_color.rgb = (
                    self.accent if i == 0 else RGBColor.from_string("F3F4F6" if i % 2 == 0 else "FFFFFF")
                )

    def _chart(self, slide, spec: dict[str, Any]) -> None:
        self._heading(slide, spec["title"])
        if spec["chart"] not in CHARTS:
            raise Problem(f"chart: {spec['chart']!r} is not one of {', '.join(CHARTS)}")
        data = CategoryChartData()
        data.categories = [str(name) for name in spec["categories"]]
        for name, values in spec["series"].items():
            if len(values) != len(spec["categories"]):
                raise Problem(f"series {name!r}: {len(values)} values for {len(spec['categories'])} categories")
            data.add_series(str(name), values)
        top = int(self.height * 0.22)
        frame = slide.shapes.add_chart(
            CHARTS[spec["chart"]], self.margin, top, self.inner, int(self.height * 0.66), data
        )
        self._chart_style(frame.chart, spec)

    def _chart_style(self, chart, spec: dict[str, Any]) -> None:
        several = len(spec["series"]) > 1
        chart.has_title, chart.has_legend = False, several
        chart.font.size, chart.font.name = Pt(14), self.font
        if several:
            chart.legend.position, chart.legend.include_in_layout = XL_LEGEND_POSITION.TOP, False
        chart.value_axis.major_gridlines.format.line.color.rgb = RGBColor.from_string("E5E7EB")
        chart.value_axis.format.line.fill.background()
        if unit := spec.get("unit"):
            chart.value_axis.has_title = True
            chart.value_axis.axis_title.text_frame.text = str(unit)
            chart.value_axis.axis_title.text_frame.paragraphs[0].font.size = Pt(12)
        for series, colour in zip(chart.plots[0].series, PALETTE * 3, strict=False):
            target = series.format.line if spec["chart"] == "line" else series.format.fill
            if spec["chart"] != "line":
                target.solid()
            (target.color if spec["chart"] == "line" else target.fore_color).rgb = RGBColor.from_string(colour)
        if not several and spec["chart"] != "line":
            chart.plots[0].has_data_labels, chart.plots[0].gap_width = True, 60
            chart.plots[0].data_labels.font.size = Pt(12)

    def _image(self, slide, spec: dict[str, Any]) -> None:
        self._heading(slide, spec["title"])
        path = (self.folder / str(spec["image"])).resolve()
        if not path.is_file():
            raise Problem(f"image {spec['image']!r}: no such file beside the deck")
        top, room = int(self.height * 0.22), int(self.height * 0.64)
        picture = slide.shapes.add_picture(str(path), self.margin, top)
        scale = min(self.inner / picture.width, room / picture.height)
        picture.width, picture.height = int(picture.width * scale), int(picture.height * scale)
        picture.left = self.margin + (self.inner - picture.width) // 2
        caption = str(spec.get("caption", ""))
        picture._element.nvPicPr.cNvPr.set("descr", caption or str(spec["title"]))
        if caption:
            self._text(
                slide,
                [caption],
                self.margin,
                int(self.height * 0.87),
                self.inner,
                int(self.height * 0.05),
                12,
                colour="595959",
            )

    def _quote(self, slide, spec: dict[str, Any]) -> None:
        self._heading(slide, f"“{spec['quote']}”", top=0.28, size=30, height=0.36)
        if by := spec.get("by"):
            self._text(
                slide,
                [f"— {by}"],
                self.margin,
                int(self.height * 0.68),
                self.inner,
                int(self.height * 0.1),
                18,
                colour="595959",
            )

    def _heading(
        self, slide, text: object, *, top: float = 0.07, size: int = 28, height: float = 0.14, colour=None
    ) -> None:
        if len(str(text)) > MAX_TITLE * 2:
            raise Problem(f"title: {len(str(text))} characters; say it in {MAX_TITLE}")
        shape = slide.shapes.title
        if shape is None:
            raise Problem("the template's layouts have no title")
        shape.text_frame.text = str(text)
        shape.text_frame.word_wrap = True
        if self._template and top == 0.07:
            return  # the template knows where its titles stand
        shape.left, shape.top, shape.width, shape.height = (
            self.margin,
            int(self.height * top),
            self.inner,
            int(self.height * height),
        )
        shape.text_frame.vertical_anchor = 3
        for paragraph in shape.text_frame.paragraphs:
            paragraph.alignment = 1
            paragraph.font.size, paragraph.font.bold, paragraph.font.name = Pt(size), True, self.font
            paragraph.font.color.rgb = colour or self.accent

    def _list(self, slide, bullets: list[Any], left: int, width: int, top: float = 0.25) -> None:
        if len(bullets) > MAX_BULLETS:
            raise Problem(f"bullets: {len(bullets)} (at most {MAX_BULLETS}); split the slide")
        if long := [bullet for bullet in bullets if len(str(bullet).split()) > MAX_WORDS]:
            raise Problem(f"bullets: {str(long[0])[:40]!r}… has over {MAX_WORDS} words; the notes are for sentences")
        size = 22 if len(bullets) <= 4 else 20
        self._text(
            slide,
            [str(b) for b in bullets],
            left,
            int(self.height * top),
            width,
            int(self.height * 0.6),
            size,
            bullet=True,
        )

    def _text(
        self, slide, lines: list[str], left: int, top: int, width: int, height: int, size: int,
        *, bold: bool = False, bullet: bool = False, colour: str = "1F2937",
    ) -> None:  # fmt: skip
        frame = slide.shapes.add_textbox(left, top, width, height).text_frame
        frame.word_wrap = True
        for index, line in enumerate(lines):
            paragraph = frame.paragraphs[0] if index == 0 else frame.add_paragraph()
            paragraph.text = line
            paragraph.font.size, paragraph.font.bold, paragraph.font.name = Pt(size), bold, self.font
            paragraph.font.color.rgb = RGBColor.from_string(colour)
            if bullet:
                paragraph.space_after = Pt(size * 0.6)
                properties = paragraph._p.get_or_add_pPr()
                properties.set("marL", "285750")
                properties.set("indent", "-285750")
                mark = properties.makeelement(
                    "{http://schemas.openxmlformats.org/drawingml/2006/main}buChar", {"char": "•"}
                )
                properties.append(mark)

    def _bar(self, slide, top: int) -> None:
        bar = slide.shapes.add_shape(1, self.margin + 91440, top, int(self.width * 0.12), 45720)
        bar.fill.solid()
        bar.fill.fore_color.rgb = self.accent
        bar.line.fill.background()

    def _foot(self, slide, number: int) -> None:
        line = f"{self.footer}   {number}" if self.footer else str(number)
        self._text(
            slide,
            [line],
            self.margin,
            int(self.height * 0.93),
            self.inner,
            int(self.height * 0.05),
            10,
            colour="6B7280",
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("deck", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument(
        "--template", type=Path, help="a .pptx whose master, fonts and colours are used; its slides are dropped"
    )
    options = parser.parse_args()
    try:
        spec = yaml.safe_load(options.deck.read_text(encoding="utf-8"))
        if not isinstance(spec, dict) or not isinstance(spec.get("slides"), list):
            raise Problem("is not a mapping with a list `slides`")
        deck = Deck(spec, options.deck.parent, options.template)
        for number, slide in enumerate(spec["slides"]):
            if not isinstance(slide, dict):
                raise Problem(f"slides[{number}]: is not a mapping")
            deck.add(dict(slide), number)
        deck.file.core_properties.title = str(spec.get("title", options.deck.stem))
        deck.file.core_properties.author = str(spec.get("author", ""))
        options.out.parent.mkdir(parents=True, exist_ok=True)
        deck.file.save(str(options.out))
    except (Problem, OSError, yaml.YAMLError, ValueError) as error:
        print(f"{options.deck}: {error}", file=sys.stderr)
        return 2
    print(f"wrote {options.out}: {len(deck.file.slides)} slides")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Presentations (PPTX): the texts, tables, charts and notes of each slide, from the top left to the bottom right.

Read part by part: python-pptx and so markitdown refuse a deck for one part that they cannot read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO

from lxml import etree  # type: ignore[import-untyped]

from adapters.documents.job import Job, Rejected, joined, note
from adapters.documents.package import Package, completed
from adapters.documents.tables import table

_DRAWN = ("sp", "pic", "graphicFrame", "grpSp", "cxnSp", "AlternateContent")
_TITLES = ("title", "ctrTitle")
_MARGINS = ("dt", "ftr", "sldNum", "sldImg")
MOST_DEPTH = 20
"""Limit of groups within groups."""


def read(document: BinaryIO, job: Job) -> tuple[str, int]:
    package = Package(document)
    main = package.main() or "ppt/presentation.xml"
    slides = _slides(package, main)
    if not slides:
        raise Rejected("is damaged, or not complete" if package.xml(main) is None else "holds no slides")
    parts = list[str]()
    for number, slide in job.chosen(slides, "slides"):
        parts.append(joined([f"<!-- Slide number: {number} -->", *_slide(package, slide)]))
        job.progress(number, len(slides))
        if job.late:
            parts.append(note(f"slides after {number}: the time for a document is over"))
            break
    return joined([*parts, *package.notes.values()]), len(slides)


def _slides(package: Package, main: str) -> list[str]:
    """Returns the parts of the slides in their order, "" for one that is missing."""
    root, relations = package.xml(main), package.relations(main)
    identities = [_attribute(element, "}id") for element in root.iter("{*}sldId")] if root is not None else []
    targets = [relations[identity].target if identity in relations else "" for identity in identities]
    listed = [target if target in package else "" for target in targets]
    names = (name for name in package if re.fullmatch(r"ppt/slides/slide\d+\.xml", name))
    parts = sorted(names, key=lambda name: (len(name), name))
    return completed(listed, parts, damaged=not identities or main in package.notes)


def _slide(package: Package, part: str) -> Iterator[str]:
    root = package.xml(part) if part else None
    if root is None:
        yield note("this slide is missing in the file, or cannot be read")
        return
    if root.get("show") in ("0", "false"):
        yield "> [This slide is hidden.]"
    tree = next(root.iter("{*}spTree"), None)
    for shape in _sorted(tree if tree is not None else ()):
        yield _shape(package, part, shape, 0)
    for name in package.related(part, "notesSlide"):
        notes = package.xml(name)
        texts = (
            [_body(shape) for shape in notes.iter("{*}sp") if _kind(shape) not in _MARGINS] if notes is not None else []
        )
        if text := joined(texts):
            yield f"### Notes:\n{text}"


def _sorted(shapes: Iterable[Any]) -> list[Any]:
    drawn = [shape for shape in shapes if isinstance(shape.tag, str) and etree.QName(shape).localname in _DRAWN]
    return sorted(drawn, key=lambda shape: (_kind(shape) not in _TITLES, *_position(shape)))


def _position(shape: Any) -> tuple[float, float]:
    """Returns top and left; shapes that take them from the layout come first, in their order."""
    offset = next(shape.iter("{*}off"), None)
    try:
        return (float(offset.get("y")), float(offset.get("x"))) if offset is not None else (-1.0, -1.0)
    except (TypeError, ValueError):
        return -1.0, -1.0


def _kind(shape: Any) -> str:
    place = next(shape.iter("{*}ph"), None)
    return "" if place is None else place.get("type") or "body"


def _shape(package: Package, part: str, shape: Any, depth: int) -> str:
    match etree.QName(shape).localname:
        case "grpSp" if depth < MOST_DEPTH:
            return joined(_shape(package, part, child, depth + 1) for child in _sorted(shape))
        case "AlternateContent":
            choice = next(iter(shape), None)
            return (
                joined(_shape(package, part, child, depth + 1) for child in _sorted(choice))
                if choice is not None and depth < MOST_DEPTH
                else ""
            )
        case "pic":
            about = next(shape.iter("{*}cNvPr"), None)
            text = " ".join((about.get("descr") or about.get("name") or "").split()) if about is not None else ""
            return f"[picture: {text}]" if text else "[picture]"
        case "graphicFrame":
            return _frame(package, part, shape)
    text = _body(shape)
    title = _kind(shape) in _TITLES and text
    return f"# {' '.join(text.split())}" if title else text


def _body(shape: Any) -> str:
    body = next(shape.iter("{*}txBody"), None)
    return "\n".join(_paragraphs(body)).strip("\n") if body is not None else ""


def _paragraphs(body: Any) -> Iterator[str]:
    for paragraph in body.iter("{*}p"):
        style = paragraph.find("{*}pPr")
        text = (style.get("lvl") or "") if style is not None else ""
        level = int(text) if text.isdecimal() and len(text) < 9 else 0
        text = "".join(
            "\n" if etree.QName(run).localname == "br" else run.text or "" for run in paragraph.iter("{*}t", "{*}br")
        )
        yield f"{'  ' * min(level, 8)}- {text}" if level and text.strip() else text


def _frame(package: Package, part: str, frame: Any) -> str:
    """Returns the table, the chart or the diagram of a frame."""
    if (found := next(frame.iter("{*}tbl"), None)) is not None:
        return table([[_cell(cell) for cell in row.iterchildren("{*}tc")] for row in found.iterchildren("{*}tr")])
    relations = package.relations(part)
    for element in frame.iter():
        if not isinstance(element.tag, str):
            continue
        name = etree.QName(element).localname
        if name not in ("chart", "relIds"):
            continue
        relation = relations.get(_attribute(element, "}dm" if name == "relIds" else "}id"))
        root = package.xml(relation.target) if relation is not None else None
        if root is None:
            return note(f"a {'chart' if name == 'chart' else 'diagram'} is missing in the file")
        return _chart(root) if name == "chart" else _diagram(root)
    return ""


def _cell(cell: Any) -> str:
    """Returns the text of a cell; those that a merged one covers are empty."""
    return "" if cell.get("hMerge") in ("1", "true") or cell.get("vMerge") in ("1", "true") else _body(cell)


def _diagram(root: Any) -> str:
    return "\n".join(text for point in root.iter("{*}pt") if (text := "\n".join(_paragraphs(point)).strip()))


def _chart(root: Any) -> str:
    """Returns a chart as a table: its categories, and a column for each series. Points without a value are empty."""
    title = next(root.iter("{*}title"), None)
    name = "".join(text.text or "" for text in title.iter("{*}t")) if title is not None else ""
    series = list(root.iter("{*}ser"))
    labels = dict[int, str]()
    columns = list[dict[int, str]]()
    for one in series:
        for tag in ("cat", "xVal"):
            for element in one.iterchildren(f"{{*}}{tag}"):
                labels = _points(element) | labels
        columns.append(
            {
                n: text
                for tag in ("val", "yVal")
                for element in one.iterchildren(f"{{*}}{tag}")
                for n, text in _points(element).items()
            }
        )
    heads = ["Category", *(_series_name(one, number) for number, one in enumerate(series, 1))]
    numbers = sorted({*labels, *(number for column in columns for number in column)})
    rows = [[labels.get(number, ""), *(column.get(number, "") for column in columns)] for number in numbers]
    return joined([f"### Chart: {name}" if name.strip() else "### Chart", table([heads, *rows])])


def _series_name(series: Any, number: int) -> str:
    text = series.find("{*}tx")
    values = [value.text or "" for value in text.iter("{*}v")] if text is not None else []
    return " ".join(values) or f"Series {number}"


def _points(element: Any) -> dict[int, str]:
    points = dict[int, str]()
    for point in element.iter("{*}pt"):
        value = next(point.iter("{*}v"), None)
        index = point.get("idx") or ""
        if index.isdecimal() and len(index) < 9 and value is not None and value.text:
            points[int(index)] = value.text
    return points


def _attribute(element: Any, ending: str) -> str:
    return next((str(value) for key, value in element.attrib.items() if key.endswith(ending)), "")

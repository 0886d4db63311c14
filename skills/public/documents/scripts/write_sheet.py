"""Writes a workbook from a YAML description: python3 write_sheet.py workbook.yaml --out workbook.xlsx."""

from __future__ import annotations

import argparse
import csv
import re
import sys
from datetime import date, datetime
from pathlib import Path
from typing import Any

try:
    import yaml
    from openpyxl import Workbook, load_workbook
    from openpyxl.chart import BarChart, LineChart, Reference
    from openpyxl.formatting.rule import DataBarRule
    from openpyxl.styles import Alignment, Border, Font, PatternFill, Side
    from openpyxl.utils import get_column_letter
    from openpyxl.worksheet.worksheet import Worksheet
except ModuleNotFoundError as error:
    print(f"missing Python package {error.name}. Fix: pip install openpyxl pyyaml", file=sys.stderr)
    sys.exit(3)

FORMATS = {
    "text": "@",
    "integer": "#,##0",
    "number": "#,##0.00",
    "percent": "0.0%",
    "date": "yyyy-mm-dd",
    "EUR": '#,##0.00 "€"',
    "USD": '"$"#,##0.00',
    "GBP": '"£"#,##0.00',
}
KEYS = {"name", "title", "csv", "columns", "rows", "totals", "charts", "bars", "note"}
MAX_WIDTH = 48
_THOUSANDS = re.compile(r"[-+]?\d{1,3}(,\d{3})+(\.\d+)?")
_FORMULA = re.compile(r"\{(\w[\w ]*)\}")


class Problem(Exception):
    """A mistake in the description, with its place."""


class Sheet:
    def __init__(self, sheet: Worksheet, spec: dict[str, Any], folder: Path, accent: str) -> None:
        if unknown := sorted(set(spec) - KEYS):
            raise Problem(f"sheet {sheet.title!r}: unknown {', '.join(unknown)}; known are {', '.join(sorted(KEYS))}")
        self.sheet, self.spec, self.accent = sheet, spec, accent
        self.rows = _csv(folder / str(spec["csv"])) if "csv" in spec else list(spec.get("rows", ()))
        self.columns = self._columns()
        self.names = [str(column["name"]) for column in self.columns]
        self.head = 3 if "title" in spec else 1

    def write(self) -> None:
        if "title" in self.spec:
            self.sheet["A1"] = str(self.spec["title"])
            self.sheet["A1"].font = Font(size=14, bold=True, color=self.accent)
        for index, name in enumerate(self.names, start=1):
            cell = self.sheet.cell(self.head, index, name)
            cell.data_type = "s"
            cell.font, cell.fill = Font(bold=True, color="FFFFFF"), PatternFill("solid", fgColor=self.accent)
            cell.alignment = Alignment(
                wrap_text=True, vertical="center", horizontal="left" if self._is_text(index) else "right"
            )
        for number, row in enumerate(self.rows, start=self.head + 1):
            self._row(number, row)
        self.last = self.head + len(self.rows)
        self._totals()
        self.sheet.freeze_panes = self.sheet.cell(self.head + 1, 1)
        if self.rows:
            self.sheet.auto_filter.ref = f"A{self.head}:{get_column_letter(len(self.names))}{self.last}"
        self._widths()
        self._print()
        self._bars()
        for index, chart in enumerate(self.spec.get("charts", ())):
            self._chart(chart, index)
        if note := self.spec.get("note"):
            cell = self.sheet.cell(self.last + (3 if self.spec.get("totals") else 2), 1, str(note))
            cell.font = Font(italic=True, size=9, color="595959")

    def _columns(self) -> list[dict[str, Any]]:
        columns = self.spec.get("columns")
        if columns is None:
            if not self.rows or not isinstance(self.rows[0], dict):
                raise Problem(f"sheet {self.sheet.title!r}: columns are missing")
            columns = list(self.rows[0])
        result = [column if isinstance(column, dict) else {"name": column} for column in columns]
        for column in result:
            if "name" not in column:
                raise Problem(f"sheet {self.sheet.title!r}: a column without a name")
            if (form := column.get("format")) is not None and form not in FORMATS and not re.search(r"[0#@]", form):
                raise Problem(
                    f"column {column['name']!r}: format {form!r} is not one of {', '.join(FORMATS)}, nor a pattern"
                )
        return result

    def _row(self, number: int, row: Any) -> None:
        for index, column in enumerate(self.columns, start=1):
            name = str(column["name"])
            if "formula" in column:
                value: Any = self._formula(str(column["formula"]), number)
            elif isinstance(row, dict):
                value = row.get(name)
            else:
                value = row[index - 1] if index <= len(row) else None
            cell = self.sheet.cell(number, index)
            cell.value = _value(
                value, str(column.get("format", "")), f"row {number}, column {name!r}", "formula" in column
            )
            if isinstance(cell.value, str) and "formula" not in column:
                cell.data_type = "s"  # text of others never becomes a formula
            if form := column.get("format"):
                cell.number_format = FORMATS.get(form, form)

    def _formula(self, text: str, row: int) -> str:
        def place(match: re.Match[str]) -> str:
            if match[1] not in self.names:
                raise Problem(f"formula {text!r}: no column {match[1]!r}; there are {', '.join(self.names)}")
            return f"{get_column_letter(self.names.index(match[1]) + 1)}{row}"

        return _FORMULA.sub(place, text if text.startswith("=") else f"={text}")

    def _totals(self) -> None:
        totals = self.spec.get("totals") or {}
        if not totals or not self.rows:
            return
        row, line = self.last + 1, Side(style="thin", color="595959")
        for index, name in enumerate(self.names, start=1):
            cell = self.sheet.cell(row, index)
            cell.font, cell.border = Font(bold=True), Border(top=line)
            if index == 1 and name not in totals:
                cell.value = "Total"
            elif name in totals:
                letter = get_column_letter(index)
                # SUBTOTAL follows the filter, so the total is that of the rows that are shown.
                code = {"sum": 109, "average": 101, "count": 103, "max": 104, "min": 105}.get(str(totals[name]))
                if code is None:
                    raise Problem(f"totals.{name}: {totals[name]!r} is not sum, average, count, max or min")
                cell.value = f"=SUBTOTAL({code},{letter}{self.head + 1}:{letter}{self.last})"
                cell.number_format = self.sheet.cell(self.last, index).number_format
        if unknown := sorted(set(totals) - set(self.names)):
            raise Problem(f"totals: no column {', '.join(unknown)}; there are {', '.join(self.names)}")

    def _widths(self) -> None:
        for index, name in enumerate(self.names, start=1):
            cells = (self.sheet.cell(row, index) for row in range(self.head + 1, self.last + 1))
            lengths = [12 if isinstance(c.value, str) and c.value.startswith("=") else _length(c) for c in cells]
            width = max([len(name), *lengths]) + 3
            self.sheet.column_dimensions[get_column_letter(index)].width = min(max(width, 9), MAX_WIDTH)
            if width > MAX_WIDTH:
                for row in range(self.head + 1, self.last + 1):
                    self.sheet.cell(row, index).alignment = Alignment(wrap_text=True, vertical="top")

    def _print(self) -> None:
        setup = self.sheet.page_setup
        setup.orientation, setup.fitToWidth, setup.fitToHeight = "landscape", 1, 0
        self.sheet.sheet_properties.pageSetUpPr.fitToPage = True
        self.sheet.print_title_rows = f"{self.head}:{self.head}"

    def _bars(self) -> None:
        for name in self.spec.get("bars", ()):
            letter = get_column_letter(self._index(name, "bars"))
            rule = DataBarRule(start_type="num", start_value=0, end_type="max", color="9DC3E6")
            self.sheet.conditional_formatting.add(f"{letter}{self.head + 1}:{letter}{self.last}", rule)

    def _chart(self, spec: dict[str, Any], number: int) -> None:
        kinds = {"bar": BarChart, "line": LineChart}
        if spec.get("kind", "bar") not in kinds:
            raise Problem(f"charts[{number}].kind: {spec['kind']!r} is not bar or line")
        chart = kinds[spec.get("kind", "bar")]()
        chart.title, chart.height, chart.width = str(spec.get("title", "")), 8.5, 17
        for name in [spec["y"]] if isinstance(spec["y"], str) else spec["y"]:
            index = self._index(name, f"charts[{number}].y")
            chart.add_data(
                Reference(self.sheet, min_col=index, min_row=self.head, max_row=self.last), titles_from_data=True
            )
        index = self._index(spec["x"], f"charts[{number}].x")
        chart.set_categories(Reference(self.sheet, min_col=index, min_row=self.head + 1, max_row=self.last))
        chart.x_axis.delete = chart.y_axis.delete = False  # else newer Excel shows no axes
        chart.y_axis.number_format = self.sheet.cell(
            self.last, self._index(spec["y"] if isinstance(spec["y"], str) else spec["y"][0], "y")
        ).number_format
        if isinstance(spec["y"], str):
            chart.legend = None
        self.sheet.add_chart(chart, f"{get_column_letter(len(self.names) + 2)}{self.head + 18 * number}")

    def _index(self, name: object, place: str) -> int:
        if name not in self.names:
            raise Problem(f"{place}: no column {name!r}; there are {', '.join(self.names)}")
        return self.names.index(str(name)) + 1

    def _is_text(self, index: int) -> bool:
        form = str(self.columns[index - 1].get("format", ""))
        values = [
            row.get(self.names[index - 1]) if isinstance(row, dict) else row[index - 1]
            for row in self.rows[:1]
            if isinstance(row, dict) or index <= len(row)
        ]
        return form in ("", "text", "date") and not any(isinstance(value, int | float) for value in values)


def _csv(path: Path) -> list[dict[str, str]]:
    if not path.is_file():
        raise Problem(f"csv {path.name!r}: no such file beside the description")
    with path.open(newline="", encoding="utf-8-sig") as file:
        return list(csv.DictReader(file))


def _value(value: Any, form: str, place: str, is_formula: bool) -> Any:
    """Returns the value in the type that the format needs."""
    if isinstance(value, str) and not is_formula:
        text = value.strip()
        if not text:
            return None
        try:
            if form == "date":
                return date.fromisoformat(text[:10])
            if form and form != "text":
                if "," in text and not _THOUSANDS.fullmatch(text):
                    raise ValueError  # perhaps a decimal comma
                return float(text.replace(",", "")) if form != "integer" else int(text.replace(",", ""))
        except ValueError:
            raise Problem(f"{place}: {text!r} does not fit the format {form}") from None
        return value
    return value if isinstance(value, str | int | float | date | datetime | None) else str(value)


def _length(cell) -> int:
    if isinstance(cell.value, int | float):
        return len(f"{cell.value:,.2f}")
    return max((len(line) for line in str(cell.value or "").splitlines()), default=0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("description", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--template", type=Path, help="an .xlsx to which the sheets are added; its own sheets stay")
    options = parser.parse_args()
    try:
        spec = yaml.safe_load(options.description.read_text(encoding="utf-8"))
        if not isinstance(spec, dict) or not spec.get("sheets"):
            raise Problem("is not a mapping with a list `sheets`")
        book = load_workbook(options.template) if options.template else Workbook()
        if not options.template:
            book.remove(book.active)
        for number, sheet in enumerate(spec["sheets"]):
            name = str(sheet.get("name", f"Sheet{number + 1}"))
            if len(name) > 31 or re.search(r"[\[\]:*?/\\]", name) or name in book.sheetnames:
                raise Problem(f"sheets[{number}].name: {name!r} is taken, longer than 31 or has one of []:*?/\\")
            Sheet(
                book.create_sheet(name),
                sheet,
                options.description.parent,
                str(spec.get("accent", "#1F4E79")).lstrip("#").upper(),
            ).write()
        book.properties.title, book.properties.creator = str(spec.get("title", "")), str(spec.get("author", ""))
        options.out.parent.mkdir(parents=True, exist_ok=True)
        book.save(options.out)
    except (Problem, OSError, yaml.YAMLError, KeyError) as error:
        reason = f"{error.args[0]} is missing" if isinstance(error, KeyError) else error
        print(f"{options.description}: {reason}", file=sys.stderr)
        return 2
    print(f"wrote {options.out}: {', '.join(book.sheetnames)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

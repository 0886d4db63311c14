"""Reads tables of people: any delimiter, encoding and decimal sign, Excel, JSON and Parquet; says what it assumed."""

from __future__ import annotations

import codecs
import csv
import difflib
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

try:
    import pandas as pd
except ModuleNotFoundError as error:
    print(f"missing Python package {error.name}. Fix: pip install pandas openpyxl", file=sys.stderr)
    sys.exit(3)

ENCODINGS = ("utf-8-sig", "cp1252")
SAMPLE = 64_000
TEXTS = {".csv", ".tsv", ".txt"}
SPACES = " \u00a0\u2009\u202f"
_DIGITS = rf"(?:\d{{1,3}}(?:[{SPACES},.’']\d{{3}})+|\d{{1,2}}(?:,\d{{2}})+,\d{{3}}|\d+)"
_PLAIN = rf"(?:{_DIGITS}(?:[.,]\d*)?|[.,]\d+)(?:[eE][-+\u2212]?\d{{1,3}})?"
_SIGN, _UNIT = r"[-+\u2212]?", r"(?:[€$£¥₹]|EUR|USD|GBP|CHF|JPY|CNY)"
NUMBER = rf"\(?{_SIGN}\s*{_UNIT}?\s*{_SIGN}{_PLAIN}\s*(?:{_UNIT}|%)?\)?"
"""Thousands by comma, dot, apostrophe or space, also the Indian way; exponents; signs; brackets for less than zero; a
currency or `%` before or behind."""
CODE = r"\d+[eE]\d+"
"""A number with an exponent, or an identifier: a column of nothing else stays text."""
MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
_MONTH = rf"(?i:{'|'.join(MONTHS)})[a-z]*\.?"
DATES = (
    r"\d{4}-\d{1,2}(-\d{1,2})?([T ].*)?",
    r"\d{4}/\d{1,2}/\d{1,2}([T ].*)?",
    rf"\d{{1,2}}\.? {_MONTH},? \d{{4}}",
    rf"{_MONTH} \d{{1,2}}(st|nd|rd|th)?,? \d{{4}}",
)


class Problem(Exception):
    """A mistake in the request or the file, with its place."""


def read(path: Path, sheet: str | None = None) -> tuple[pd.DataFrame, list[str]]:
    """Returns the table as it lies there, and what was assumed. Values that look like identifiers stay text."""
    if not path.is_file():
        raise Problem(f"{path}: no such file")
    suffix = path.suffix.lower()
    try:
        table, notes = _table(path, suffix, sheet)
    except Problem:
        raise
    except Exception as error:  # each library has its own errors for a file that is not what its name says
        raise Problem(f"{path}: cannot be read as {suffix}: {str(error).splitlines()[0][:200]}") from None
    if table.empty:
        raise Problem(f"{path}: has no rows")
    table.columns = [str(name).strip() for name in table.columns]
    if double := sorted(set(table.columns[table.columns.duplicated()])):
        raise Problem(f"{path}: the columns {', '.join(double)} are there twice; rename them first")
    return table, notes


def _table(path: Path, suffix: str, sheet: str | None) -> tuple[pd.DataFrame, list[str]]:
    if suffix in TEXTS:
        return _text(path)
    if suffix in (".xlsx", ".xlsm"):
        return _excel(path, sheet)
    if suffix in (".json", ".jsonl", ".ndjson"):
        return _json(path, lines=suffix != ".json")
    if suffix == ".parquet":
        return _parquet(path)
    raise Problem(f"{path}: {suffix or 'no ending'} is not csv, tsv, txt, xlsx, json, jsonl or parquet")


def column(table: pd.DataFrame, name: str) -> str:
    """Returns the column's exact name; capitals do not matter."""
    matches = [str(known) for known in table.columns if str(known).lower() == name.lower()]
    if len(matches) == 1:
        return matches[0]
    near = difflib.get_close_matches(name, [str(known) for known in table.columns], n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise Problem(f"no column {name!r}{hint} There are: {', '.join(map(str, table.columns))}")


def typed(values: pd.Series) -> pd.Series:
    """Returns text as numbers or dates if all of it reads so, without losing leading zeros."""
    if not (values.dtype == object or isinstance(values.dtype, pd.StringDtype)):
        return values
    if not values.dropna().map(lambda value: isinstance(value, str)).all():
        return values
    texts = values.dropna().astype(str).str.strip()
    texts = texts[texts != ""]
    if texts.empty:
        return values
    try:
        parsed = _parsed(values, texts)
    except (ValueError, TypeError):  # dates of several time zones
        return values
    return parsed if parsed.notna().sum() >= len(texts) else values


def _parsed(values: pd.Series, texts: pd.Series) -> pd.Series:
    """Returns the text as what it looks like; what cannot be read is missing."""
    if not texts.str.match(r"0\d").any() and texts.str.fullmatch(NUMBER).all():
        return values if texts.str.fullmatch(CODE).all() else _numbers(values)
    if any(texts.str.fullmatch(form).all() for form in DATES):
        dates = pd.to_datetime(values.astype(object), errors="coerce", format="mixed")
        return (
            dates if dates.dt.tz is None else dates.dt.tz_localize(None)
        )  # the time of its own zone, as it is written
    if texts.str.fullmatch(r"\d{1,2}[./]\d{1,2}[./]\d{4}").all():
        parts = texts.str.split(r"[./]", regex=True)
        first, second = parts.str[0].astype(int).max(), parts.str[1].astype(int).max()
        if (first > 12) != (second > 12):  # else day and month cannot be told apart
            return pd.to_datetime(values, errors="coerce", dayfirst=first > 12, format="mixed")
    return values


def _numbers(values: pd.Series) -> pd.Series:
    """A comma before one, two or four digits is decimal; before three it parts thousands, unless a dot does."""
    plain = values.astype("string").str.strip().str.replace("\u2212", "-")
    negative = plain.str.match(r"\(.*\)$").fillna(False)
    plain = plain.str.replace(rf"{_UNIT}|[{SPACES}\s’'%()]", "", regex=True).str.lower()
    digits = plain.str.replace(r"e.*$", "", regex=True)
    parts_by_comma = digits.str.contains(r"^[-+]?\d{1,2}(?:,\d{2})+,\d{3}", regex=True).any()
    decimal_comma = digits.str.contains(r",\d{1,2}$|,\d{4,}$|,$|\.\d{3}[.,]", regex=True).any()
    thousands, decimal = (".", ",") if decimal_comma and not parts_by_comma else (",", ".")
    plain = plain.str.replace(thousands, "", regex=False).str.replace(decimal, ".", regex=False)
    plain = plain.where(~negative, "-" + plain)
    return pd.to_numeric(plain, errors="coerce")


def _text(path: Path) -> tuple[pd.DataFrame, list[str]]:
    raw = path.read_bytes()
    for encoding in ("utf-16",) if raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else ENCODINGS:
        try:
            text = raw.decode(encoding)
            break
        except UnicodeDecodeError:
            continue
    else:
        raise Problem(f"{path}: is neither UTF-8, UTF-16 nor Windows-1252 text")
    try:
        delimiter = csv.Sniffer().sniff(text[:SAMPLE], delimiters=",;\t|").delimiter
    except csv.Error:
        delimiter = ","
    try:
        table = pd.read_csv(
            path, encoding=encoding, sep=delimiter, dtype="string", keep_default_na=False, na_values=[""]
        )
    except (pd.errors.ParserError, pd.errors.EmptyDataError) as error:
        raise Problem(f"{path}: {error}") from None
    notes = [f"encoding {encoding}, delimiter {delimiter!r}"]
    return table.apply(typed), notes


def _excel(path: Path, sheet: str | None) -> tuple[pd.DataFrame, list[str]]:
    book = pd.ExcelFile(path)
    if sheet is not None and sheet not in book.sheet_names:
        raise Problem(f"{path}: no sheet {sheet!r}; there are {', '.join(map(str, book.sheet_names))}")
    name = sheet if sheet is not None else book.sheet_names[0]
    notes = [f"sheet {name!r} of {', '.join(map(str, book.sheet_names))}"]
    return book.parse(name).apply(typed), notes


def _json(path: Path, *, lines: bool) -> tuple[pd.DataFrame, list[str]]:
    """Reads records. Fields within fields become columns `a.b`, lists stay JSON: nothing is lost or multiplied."""
    text = path.read_text(encoding="utf-8-sig")
    try:
        data = [json.loads(line) for line in text.splitlines() if line.strip()] if lines else json.loads(text)
    except json.JSONDecodeError as error:
        hint = " (one object in each line? name it .jsonl)" if error.msg == "Extra data" else ""
        raise Problem(f"{path}: line {error.lineno}: {error.msg}{hint}") from None
    rows, notes = _records(data)
    return _framed([_flat(row) for row in rows]).apply(lambda values: typed(values.infer_objects())), notes


def _records(data: Any) -> tuple[list[Any], list[str]]:
    """Returns the rows in JSON of any shape: a list, a list below a key, columns, or rows by their names."""
    if isinstance(data, list):
        return data, []
    if not isinstance(data, dict):
        return [data], []
    lists = {key: value for key, value in data.items() if isinstance(value, list)}
    tables = [key for key, value in lists.items() if value and all(isinstance(row, dict) for row in value)]
    if len(tables) == 1:
        others = ", ".join(key for key in data if key != tables[0])
        return lists[tables[0]], [f"the rows are those of {tables[0]!r}" + (f"; not read: {others}" if others else "")]
    if data and len(lists) == len(data) and len({len(value) for value in lists.values()}) == 1:
        return [dict(zip(lists, row, strict=True)) for row in zip(*lists.values(), strict=True)], ["by columns"]
    if len(data) > 1 and all(isinstance(value, dict) for value in data.values()):
        return [{"key": key, **value} for key, value in data.items()], ["a row for each key"]
    return [data], []


def _flat(row: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(row, Mapping):
        return {
            prefix.rstrip(".") or "value": json.dumps(row, ensure_ascii=False, default=str)
            if isinstance(row, list)
            else row
        }
    cells: dict[str, Any] = {}
    for key, value in row.items():
        cells |= _flat(value, f"{prefix}{key}.") if value or not isinstance(value, Mapping) else {}
    return cells


def _parquet(path: Path) -> tuple[pd.DataFrame, list[str]]:
    try:
        import duckdb
    except ModuleNotFoundError:
        print("missing Python package duckdb. Fix: pip install duckdb", file=sys.stderr)
        sys.exit(3)
    table = duckdb.read_parquet(str(path)).df()
    for name in table.columns:
        if isinstance(table[name].dtype, pd.DatetimeTZDtype):
            table[name] = table[name].dt.tz_localize(None)  # UTC
    if any(isinstance(value, dict | list) for name in table.columns for value in table[name].head(100)):
        rows = [_flat({key: _plain(cell) for key, cell in row.items()}) for row in table.to_dict("records")]
        return _framed(rows).apply(lambda values: values.infer_objects()), []
    return table, []


def _plain(cell: Any) -> Any:
    return cell.tolist() if hasattr(cell, "tolist") else cell


def _framed(rows: list[dict[str, Any]]) -> pd.DataFrame:
    columns = dict.fromkeys(name for row in rows for name in row)
    return pd.DataFrame({name: pd.Series([row.get(name) for row in rows], dtype=object) for name in columns})

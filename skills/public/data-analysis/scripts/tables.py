"""Reads tables of people: any delimiter, encoding and decimal sign, Excel and JSON; says what it assumed."""

from __future__ import annotations

import codecs
import csv
import difflib
import sys
from pathlib import Path

try:
    import pandas as pd
except ModuleNotFoundError as error:
    print(f"missing Python package {error.name}. Fix: pip install pandas openpyxl", file=sys.stderr)
    sys.exit(3)

ENCODINGS = ("utf-8-sig", "cp1252")
SAMPLE = 64_000
TEXTS = {".csv", ".tsv", ".txt"}
NUMBER = r"[-+]?(?:\d{1,3}(?:[ ,.’']\d{3})+|\d+)(?:[.,]\d+)?"


class Problem(Exception):
    """A mistake in the request or the file, with its place."""


def read(path: Path, sheet: str | None = None) -> tuple[pd.DataFrame, list[str]]:
    """Returns the table as it lies there, and what was assumed. Values that look like identifiers stay text."""
    if not path.is_file():
        raise Problem(f"{path}: no such file")
    suffix = path.suffix.lower()
    if suffix in TEXTS:
        table, notes = _text(path)
    elif suffix in (".xlsx", ".xlsm"):
        table, notes = _excel(path, sheet)
    elif suffix in (".json", ".jsonl"):
        table, notes = pd.read_json(path, lines=suffix == ".jsonl"), []
    else:
        raise Problem(f"{path}: {suffix or 'no ending'} is not csv, tsv, txt, xlsx, json or jsonl")
    if table.empty:
        raise Problem(f"{path}: has no rows")
    table.columns = [str(name).strip() for name in table.columns]
    if double := sorted(set(table.columns[table.columns.duplicated()])):
        raise Problem(f"{path}: the columns {', '.join(double)} are there twice; rename them first")
    return table, notes


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
    texts = values.dropna().astype(str).str.strip()
    texts = texts[texts != ""]
    if texts.empty:
        return values
    try:
        parsed = _parsed(values, texts)
    except ValueError:  # dates of several time zones
        return values
    return parsed if parsed.notna().sum() >= len(texts) else values


def _parsed(values: pd.Series, texts: pd.Series) -> pd.Series:
    """Returns the text as what it looks like; what cannot be read is missing."""
    if not texts.str.match(r"0\d").any() and texts.str.fullmatch(rf"{NUMBER}\s*%?").all():
        return _numbers(values, texts)
    if texts.str.match(r"\d{4}-\d{1,2}(-\d{1,2})?").all():
        return pd.to_datetime(values, errors="coerce", format="mixed")
    if texts.str.fullmatch(r"\d{1,2}[./]\d{1,2}[./]\d{4}").all():
        parts = texts.str.split(r"[./]", regex=True)
        first, second = parts.str[0].astype(int).max(), parts.str[1].astype(int).max()
        if (first > 12) != (second > 12):  # else day and month cannot be told apart
            return pd.to_datetime(values, errors="coerce", dayfirst=first > 12, format="mixed")
    return values


def _numbers(values: pd.Series, texts: pd.Series) -> pd.Series:
    """A comma before one, two or four digits is decimal; before three it parts thousands, unless a dot does."""
    plain = values.astype("string").str.strip().str.rstrip("% ").str.replace(r"[ ’']", "", regex=True)
    decimal_comma = texts.str.contains(r",\d{1,2}$|,\d{4,}$|\.\d{3}[.,]", regex=True).any()
    thousands, decimal = (".", ",") if decimal_comma else (",", ".")
    plain = plain.str.replace(thousands, "", regex=False).str.replace(decimal, ".", regex=False)
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

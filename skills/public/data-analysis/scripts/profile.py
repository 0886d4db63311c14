"""Shows what is in a table before anybody calculates with it: python3 profile.py data.csv [--sheet NAME]."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tables import CODE, NUMBER, Problem, pd, read

MANY = 20
MISSING_WORDS = {"n/a", "na", "null", "none", "-", "--", "?", "unknown", "nan", "#n/a", "missing"}


def describe(values: pd.Series) -> str:
    present = values.dropna()
    if present.empty:
        return "nothing"
    if pd.api.types.is_bool_dtype(values):
        return f"{int(present.sum())} true"
    if pd.api.types.is_numeric_dtype(values):
        low, half, high = present.min(), present.median(), present.max()
        return f"{low:,.6g} … {half:,.6g} (median) … {high:,.6g}; mean {present.mean():,.6g}"
    if pd.api.types.is_datetime64_any_dtype(values):
        return f"{present.min():%Y-%m-%d} … {present.max():%Y-%m-%d}"
    counts = present.astype(str).value_counts()
    return ", ".join(f"{name[:24]} ({count})" for name, count in counts.head(4).items())


def kind(values: pd.Series) -> str:
    if pd.api.types.is_bool_dtype(values):
        return "yes/no"
    if pd.api.types.is_numeric_dtype(values):
        return "number"
    return "date" if pd.api.types.is_datetime64_any_dtype(values) else "text"


def warnings(table: pd.DataFrame) -> list[str]:
    lines = []
    if double := int(table.duplicated().sum()):
        lines.append(f"{double} row{'s' * (double > 1)} too many: exact copies")
    for name in table.columns:
        lines += [f"{name}: {line}" for line in _column_warnings(table[name], len(table))]
    return lines


def _column_warnings(values: pd.Series, rows: int) -> list[str]:
    present = values.dropna()
    missing = rows - len(present)
    lines = [f"{missing} of {rows} values are missing ({missing / rows:.0%})"] if missing else []
    if len(present) > 1 and present.nunique() == 1:
        lines.append(f"always {present.iloc[0]}")
    match kind(values):
        case "number":
            lines += _outliers(present)
        case "text":
            lines += _text_warnings(present.astype(str))
        case "date":
            if (present > pd.Timestamp.now()).any():
                lines.append(f"{int((present > pd.Timestamp.now()).sum())} dates lie in the future")
    return lines


def _outliers(present: pd.Series) -> list[str]:
    low, high = present.quantile(0.25), present.quantile(0.75)
    width = high - low
    far = present[(present < low - 3 * width) | (present > high + 3 * width)]
    if width == 0 or far.empty:
        return []
    return [f"{len(far)} values far from the others, as {far.iloc[0]:,.6g} (row {far.index[0] + 2})"]


def _text_warnings(texts: pd.Series) -> list[str]:
    lines = []
    numeric = texts.str.fullmatch(rf"\s*{NUMBER}\s*")
    if texts.str.fullmatch(CODE).all():
        lines.append(f"as {texts.iloc[0]}: identifiers, or numbers with exponents? kept as text")
    elif texts.str.match(r"0\d+$").any():
        lines.append("leading zeros: an identifier, kept as text")
    elif 0.5 < numeric.mean() < 1:
        lines.append(f"mostly numbers, but also {texts[~numeric].iloc[0]!r} (row {texts[~numeric].index[0] + 2})")
    elif texts.str.fullmatch(rf"\s*{NUMBER}\s*[^\d\W]+\s*").mean() > 0.5:
        lines.append(f"numbers with units, as {texts.iloc[0]!r}: text, which no sum or comparison reads")
    if words := sorted({text for text in texts if text.strip().lower() in MISSING_WORDS}):
        lines.append(f"words for missing values: {', '.join(words)}")
    if (texts != texts.str.strip()).any():
        lines.append(f"{int((texts != texts.str.strip()).sum())} values with spaces around them")
    folded = texts.str.strip().str.lower().nunique()
    if folded < texts.nunique():
        lines.append(f"{texts.nunique() - folded} spellings differ only in capitals or spaces")
    if texts.str.match(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d.*[+-]\d\d:?\d\d$").all():
        lines.append("times of several zones, kept as text: convert them to UTC")
    if texts.str.fullmatch(r"\d{1,2}[./]\d{1,2}[./]\d{4}").all():
        lines.append(f"dates as {texts.iloc[0]}: day and month cannot be told apart; ask")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--sheet")
    options = parser.parse_args()
    try:
        table, notes = read(options.file, options.sheet)
    except (Problem, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    print(f"{options.file.name}: {len(table):,} rows, {len(table.columns)} columns ({'; '.join(notes)})\n")
    print("| column | kind | missing | different | values |\n|---|---|--:|--:|---|")
    for name in table.columns:
        values = table[name]
        cells = (name, kind(values), f"{values.isna().sum():,}", f"{values.nunique():,}", describe(values))
        print("| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |")
    lines = warnings(table)
    print(
        "\n" + ("Look at this first:\n" + "\n".join(f"- {line}" for line in lines) if lines else "Nothing suspicious.")
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())

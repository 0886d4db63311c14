"""Asks tables in SQL (SQLite): python3 query.py "SELECT region, SUM(units) FROM sales GROUP BY 1" sales.csv.

Each file is a table of its name; dates are ISO text. The result is a Markdown table, or a CSV with --out.
"""

from __future__ import annotations

import argparse
import re
import sqlite3
import sys
from pathlib import Path

from tables import Problem, pd, read

MAX_ROWS = 60


def name_of(path: Path) -> str:
    return re.sub(r"\W+", "_", path.stem).strip("_").lower() or "data"


def run(query: str, files: list[Path]) -> tuple[pd.DataFrame, list[str]]:
    connection = sqlite3.connect(":memory:")
    names = [name_of(path) for path in files]
    if len(set(names)) < len(names):
        raise Problem(f"two files make the same table name: {', '.join(names)}")
    for name, path in zip(names, files, strict=True):
        table, _ = read(path)
        for column in table.select_dtypes(include="datetime").columns:
            table[column] = table[column].dt.strftime("%Y-%m-%d %H:%M:%S").str.removesuffix(" 00:00:00")
        try:
            table.to_sql(name, connection, index=False)
        except (
            sqlite3.Error,
            OverflowError,
            pd.errors.DatabaseError,
        ) as error:  # as for names of columns that differ in capitals only
            raise Problem(f"{path}: cannot become a table of SQLite: {error}") from None
    try:
        return pd.read_sql_query(query, connection), names
    except Exception as error:  # pandas wraps what SQLite says
        raise Problem(f"{error}. Tables: {', '.join(names)}") from None


def markdown(table: pd.DataFrame) -> str:
    lines = ["| " + " | ".join(map(str, table.columns)) + " |", "|" + "---|" * len(table.columns)]
    for row in table.head(MAX_ROWS).itertuples(index=False):
        lines.append("| " + " | ".join(_cell(value) for value in row) + " |")
    if len(table) > MAX_ROWS:
        lines.append(f"\n{MAX_ROWS} of {len(table):,} rows; use --out for all")
    return "\n".join(lines)


def _cell(value: object) -> str:
    if value is None or value != value:
        return ""
    return f"{value:,.10g}" if isinstance(value, float) else str(value)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("query")
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, help="a CSV with all rows")
    options = parser.parse_args()
    try:
        result, _ = run(options.query, options.files)
    except (Problem, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    if options.out:
        result.to_csv(options.out, index=False)
    print(f"wrote {options.out}: {len(result):,} rows" if options.out else markdown(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Columns on a screen, where Chinese characters take two places."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from channels.terminal.table import GAP, table

ROWS = st.lists(st.tuples(*[st.text("ab 数据é", max_size=9)] * 3), min_size=1, max_size=6)


def test_columns_stand_below_each_other() -> None:
    assert table([("季度报告", 7, "x"), ("q", 120, "数")], ("TITLE", "RUNS"), right=[1]) == [
        "TITLE     RUNS",
        "季度报告     7  x",
        "q          120  数",
    ]


def test_no_row_is_no_line() -> None:
    assert table([]) == []


@given(ROWS)
def test_a_column_begins_at_the_same_place_in_each_row(rows: list[tuple[str, str, str]]) -> None:
    ends = [(*row[:2], "|") for row in rows]
    assert len({cell_len(line) for line in table(ends)}) == 1
    widest = sum(max(cell_len(row[column]) for row in rows) for column in (0, 1))
    assert cell_len(table(ends)[0]) == widest + 2 * len(GAP) + 1

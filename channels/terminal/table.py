"""Tables for a terminal or a pipe. A column is as wide as its widest cell is on a screen, where Chinese characters take
two places.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import zip_longest

from rich.cells import cell_len

GAP = "  "


def table(
    rows: Iterable[Sequence[object]], heads: Sequence[str] = (), *, right: Collection[int] = (), indent: str = ""
) -> list[str]:
    """Returns a line for each row, after one of the `heads` if there are any. Columns whose numbers are in `right` end
    flush. Cells are texts on one line, without colours.
    """
    cells = [[str(cell) for cell in row] for row in ([heads, *rows] if heads else rows)]
    widths = [max(map(cell_len, column)) for column in zip_longest(*cells, fillvalue="")]
    return [indent + GAP.join(map(_padded, row, widths, range(len(row)), [right] * len(row))).rstrip() for row in cells]


def _padded(text: str, width: int, column: int, right: Collection[int]) -> str:
    space = " " * (width - cell_len(text))
    return space + text if column in right else text + space

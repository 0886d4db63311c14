"""Prints what came of each attempt, and where that is not what the page says: `python -m tests…escape [--write]`."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from tests.adapters.sandboxes.escape import table


def main() -> int:
    if "--write" in sys.argv:
        table.PAGE.write_text(table.page())
    wrong = 0
    for column in table.COLUMNS:
        if table.python_for(column.uid) is None:
            print(f"\n{column.provider} as uid {column.uid}: cannot be run here")
            continue
        outcomes = table.happened(column, Path(tempfile.gettempdir()) / f"sika-escape-{os.getpid()}")
        print(f"\n{column.provider} as uid {os.geteuid() if column.uid is None else column.uid}")
        for name, wanted in table.expected(column.provider).items():
            outcome = outcomes.get(name, (table.NOT_RUN, ""))
            verdict = table.verdict_of(outcome, wanted)
            wrong += verdict != wanted
            note = f"  EXPECTED {wanted}" if verdict != wanted else ""
            print(f"  {name:75} {verdict:20} {outcome[1][:300]}{note}")
    print(f"\n{wrong} verdicts are not as expected")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())

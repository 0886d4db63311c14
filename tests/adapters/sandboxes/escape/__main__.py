"""Prints what came of each attempt, and where that is not what the page says: `python -m tests…escape [--write]`."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.adapters.sandboxes.escape import table
from tests.support.engine import engine, no_python, problem, python_in


@contextlib.contextmanager
def engine_for(provider: str) -> Iterator[tuple[str, ...]]:
    """Starts an engine for containers. Yields its address and the name of its image."""
    if provider != "docker":
        yield ()
        return
    with engine() as running:
        running.admit_everybody()
        yield running.host, python_in(running)


def main() -> int:
    if "--write" in sys.argv:
        table.PAGE.write_text(table.page())
    wrong = 0
    for column in table.COLUMNS:
        if table.python_for(column.uid) is None:
            print(f"\n{column.provider} as uid {column.uid}: cannot be run here")
            continue
        if column.provider == "docker" and (reason := problem() or no_python()):
            print(f"\n{column.provider}: {reason}")
            continue
        with engine_for(column.provider) as options:
            outcomes = table.happened(column, Path(tempfile.gettempdir()) / f"sika-escape-{os.getpid()}", *options)
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

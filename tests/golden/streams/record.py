"""Write the golden streams anew: `python -m tests.golden.streams.record`.

Only for a change that clients are meant to see: what they keep, and where they resume, is made of these bytes.
"""

from __future__ import annotations

from pathlib import Path

from tests.golden.streams.printers import CUT, PRINTERS, digest
from tests.golden.streams.scripts import RECORDED, SCRIPTS, recorded

FOLDER = Path(__file__).parent


def main() -> None:
    for name, script in SCRIPTS.items():
        (FOLDER / name).mkdir(exist_ok=True)
        for printer, written in {**PRINTERS, **CUT}.items():
            (FOLDER / name / f"{printer}.txt").write_bytes(written(script()))
    for name in RECORDED:
        (FOLDER / f"{name}.txt").write_text(digests(name))


def digests(name: str) -> str:
    """A line for each printer of a recorded log."""
    sizes = {printer: written(recorded(name)) for printer, written in PRINTERS.items()}
    return "".join(f"{printer} {len(data)} {digest(data)}\n" for printer, data in sizes.items())


if __name__ == "__main__":
    main()

"""Packs a checked skill as NAME.skill, the same bytes each time: python3 pack_skill.py FOLDER --out OUTPUTS."""

from __future__ import annotations

import argparse
import sys
import zipfile
from pathlib import Path

from check_skill import check

EPOCH = (1980, 1, 1, 0, 0, 0)


def members(folder: Path) -> list[Path]:
    """Returns the files, without links, hidden and compiled ones."""
    paths = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return sorted(path for path in paths if not _hidden(path.relative_to(folder)))


def _hidden(place: Path) -> bool:
    return place.suffix == ".pyc" or any(part.startswith(".") or part == "__pycache__" for part in place.parts)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, required=True, help="a folder")
    options = parser.parse_args()
    folder = options.folder.resolve()
    if errors := [line for kind, line in check(folder) if kind == "error"]:
        print("not packed:\n" + "\n".join(f"- {line}" for line in errors), file=sys.stderr)
        return 1
    options.out.mkdir(parents=True, exist_ok=True)
    target = options.out / f"{folder.name}.skill"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in members(folder):
            entry = zipfile.ZipInfo(f"{folder.name}/{path.relative_to(folder).as_posix()}", EPOCH)
            entry.external_attr, entry.compress_type = 0o100644 << 16, zipfile.ZIP_DEFLATED
            archive.writestr(entry, path.read_bytes())
    print(f"wrote {target}: {len(members(folder))} files")
    return 0


if __name__ == "__main__":
    sys.exit(main())

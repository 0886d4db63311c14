"""Skills for tests: folders, and archives of any content."""

from __future__ import annotations

import io
import stat
import zipfile
from collections.abc import Mapping
from pathlib import Path

ALLOW = '{"decision": "allow", "reason": "It is fine."}'
BLOCK = '{"decision": "block", "reason": "It leaks."}'
WARN = '{"decision": "warn", "reason": "It is odd."}'


def document(name: str, description: str = "Does it.", body: str = "", **lines: str) -> str:
    """A `SKILL.md`."""
    more = "".join(f"{key.replace('_', '-')}: {value}\n" for key, value in lines.items())
    return f"---\nname: {name}\ndescription: {description}\n{more}---\n{body or f'Do {name}.'}\n"


def write(folder: Path, name: str, description: str = "Does it.", body: str = "", **lines: str) -> Path:
    """A folder with a `SKILL.md`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "SKILL.md").write_text(document(name, description, body, **lines))
    return folder


def archive(files: Mapping[str, str | bytes], links: Mapping[str, str] = {}, *, deflate: bool = False) -> bytes:
    """A zip archive. Names may be hostile."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED if deflate else zipfile.ZIP_STORED) as opened:
        for name, content in files.items():
            opened.writestr(zipfile.ZipInfo(name) if not deflate else name, content)
        for name, target in links.items():
            info = zipfile.ZipInfo(name)
            info.create_system, info.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
            opened.writestr(info, target)
    return packed.getvalue()

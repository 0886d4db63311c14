"""The switches of skills in DeerFlow's `extensions_config.json`."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import structlog

log = structlog.get_logger("sika.skills")

VARIABLE = "DEER_FLOW_EXTENSIONS_CONFIG_PATH"
NAMES = ("extensions_config.json", "mcp_config.json")
MOST_BYTES = 4 << 20
_NONE: Mapping[str, bool] = {}


class Switches:
    """The map `skills` of the file, as it is now. A broken file switches nothing, and is named in the log."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: tuple[tuple[Path, int, int, int] | None, Mapping[str, bool]] = (None, _NONE)

    def read(self) -> Mapping[str, bool]:
        """Returns the switches by name. Blocks: call it in a thread."""
        if (signature := self._signature()) != self._known[0]:
            self._known = (signature, _read(signature[0]) if signature else _NONE)
        return self._known[1]

    def unchanged(self) -> Mapping[str, bool] | None:
        """Returns the switches as they were read; None if the file has changed since. Costs a `stat`."""
        return self._known[1] if self._signature() == self._known[0] else None

    def _signature(self) -> tuple[Path, int, int, int] | None:
        """Returns what changes with the first file that is there; None if there is none."""
        for file in self._files():
            with suppress(OSError):
                info = os.stat(file)
                return file, info.st_mtime_ns, info.st_size, info.st_ino
        return None

    def _files(self) -> list[Path]:
        if named := os.environ.get(VARIABLE):
            return [Path(named).expanduser()]
        return [self._folder / name for name in NAMES]


def _read(file: Path) -> Mapping[str, bool]:
    try:
        with open(file, "rb") as opened:
            entries = json.loads(opened.read(MOST_BYTES)).get("skills") or {}
        return {name: entry["enabled"] for name, entry in entries.items() if isinstance(entry.get("enabled"), bool)}
    except (OSError, ValueError, AttributeError, TypeError) as error:
        log.warning("switches of skills are not read", file=file.name, reason=str(error)[:200])
        return {}

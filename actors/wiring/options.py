"""The options of the command line, as a server and its tools get them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from core.runtime.readiness import Finding

if TYPE_CHECKING:
    from core.config.load import Additions, ConfigSource


@dataclass(frozen=True, slots=True)
class Options:
    """The options of the command line. None means as configured."""

    home: Path
    config: Path | None = None
    nats: str | None = None
    host: str | None = None
    port: int | None = None
    actors: tuple[str, ...] | None = None
    own_process: bool = False
    """Tune the garbage collector: the process runs nothing but this server."""
    drains: bool = False
    """At its end the server serves on for a while (`http.drain_seconds`)."""
    examine: Callable[[], Awaitable[Sequence[Finding]]] | None = None
    """Returns what `sika doctor` says, for administrators who ask the server."""
    additions: Additions | None = None
    """Models beside the file, for commands that start no server (`actors.wiring.added`)."""
    writes: bool = False
    """The command appends to the log, so it makes streams that are missing."""

    def source(self) -> ConfigSource:
        """Returns the configuration, with the additions. Raises `Invalid`."""
        from core.config.load import ConfigSource

        return ConfigSource(self.config, self.additions)

"""The imports of a package with a verb; installed, this is called `sika.cli`. See `core.extend`."""

from __future__ import annotations

from channels.cli.common import FAILED, OK, client_of
from channels.cli.verbs import Parser

__all__ = ["FAILED", "OK", "Parser", "client_of"]

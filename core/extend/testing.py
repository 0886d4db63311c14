"""The imports of the tests of a package; installed, this is called `sika.testing`. See `core.testing`."""

from __future__ import annotations

from core.testing import Stage, ToolStage, acting

__all__ = ["Stage", "ToolStage", "acting"]

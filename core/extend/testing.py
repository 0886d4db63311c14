"""What the tests of a package import; installed, it is called `sika.testing`. See `core.testing`."""

from __future__ import annotations

from core.testing import Stage, ToolStage, acting

__all__ = ["Stage", "ToolStage", "acting"]

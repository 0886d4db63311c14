"""The browser of the tests, if this machine has one."""

from __future__ import annotations

import shutil

NAMES = ("chromium-headless-shell", "chromium", "google-chrome", "chromium-browser")
"""The first takes a third less CPU for a tab: it has no window, so no toolbars that would be pages, too."""
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), None)

"""`python -m channels.cli`: the command line, where the console command `sika` is not installed."""

from __future__ import annotations

import sys

from channels.cli import main

sys.exit(main())

"""Logs of tests, in a form that costs little."""

from __future__ import annotations

import logging

import structlog


def plain() -> None:
    """Configures logs of INFO and above. Without a configuration structlog draws tracebacks with the source and all
    local variables of each frame: half a second of CPU for one.
    """
    renderer = structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback)
    structlog.configure(
        processors=[structlog.processors.add_log_level, structlog.processors.TimeStamper("%H:%M:%S.%f"), renderer],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
    )

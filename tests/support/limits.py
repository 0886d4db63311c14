"""Time limits of tests: what pytest-timeout leaves to others.

pytest-timeout raises in the main thread, which leaves the event loop: a coroutine goes on in the task of its runner,
and the fixtures of its module wait behind it for ever. So a coroutine is cancelled a little before its limit, from
within: its fixtures end it, and the failure shows where it waited.
"""

from __future__ import annotations

import asyncio
import functools
import signal
from collections.abc import Generator
from inspect import iscoroutinefunction
from typing import Any

import pytest

SHARE = 0.9
"""The share of the time that is left to a coroutine after which it is cancelled."""


def seconds_of(item: pytest.Item) -> float:
    """Returns the limit of a test: that of its mark, of the command line or of the configuration; 0 for none."""
    mark = item.get_closest_marker("timeout")
    if mark and mark.args:
        return float(mark.args[0])
    return float(item.config.getoption("timeout", None) or item.config.getini("timeout") or 0)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, Any, Any]:
    test = pyfuncitem.obj
    seconds, _ = signal.getitimer(signal.ITIMER_REAL)  # set by pytest-timeout
    if not iscoroutinefunction(test) or not seconds:
        return (yield)

    @functools.wraps(test)
    async def limited(**arguments: Any) -> None:
        limit = asyncio.timeout(seconds * SHARE)
        try:
            async with limit:
                await test(**arguments)
        finally:
            if limit.expired():
                signal.setitimer(signal.ITIMER_REAL, 0)  # else it strikes while the failure is reported

    pyfuncitem.obj = limited
    try:
        return (yield)
    finally:
        pyfuncitem.obj = test

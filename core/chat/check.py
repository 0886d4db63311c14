"""Checks of an account of a chat platform: what the platform says of its credentials and permissions."""

from __future__ import annotations

from collections.abc import Sequence

import anyio

from core.chat.port import Finding, Platform
from core.errors import SikaError

CHECK_SECONDS = 60.0
"""Timeout of all checks of an account."""


async def checked(platform: Platform) -> Sequence[Finding]:
    """Returns what the checks of an account find, and closes it. Failures of the platform are findings."""
    try:
        with anyio.fail_after(CHECK_SECONDS):
            return list(await platform.check())
    except TimeoutError:
        return [Finding(False, f"no answer within {CHECK_SECONDS:g} s")]
    except SikaError as error:
        return [Finding(False, str(error))]
    finally:
        await platform.close()

"""Why somebody is not let in, or not yet."""

from __future__ import annotations

import math
from typing import Literal

from core.errors import Invalid, Refused, SikaError

Reason = Literal[
    "invalid_credentials",
    "token_expired",
    "token_invalid",
    "user_not_found",
    "not_authenticated",
    "provider_not_found",
]
"""The words of the contract, which web pages act on."""


class Unauthenticated(SikaError):
    """Nobody knows who asks (HTTP 401). Sign in, then ask again."""

    code = "not_authenticated"

    def __init__(self, code: Reason, text: str) -> None:
        super().__init__(text)
        self.code = code


class TooMany(SikaError):
    """More than is granted (HTTP 429). Ask again after `retry_after` seconds."""

    code = "too_many_requests"

    def __init__(self, code: str, text: str, retry_after: float) -> None:
        super().__init__(text)
        self.code = code
        self.retry_after = max(1, math.ceil(retry_after))


class EmailTaken(Refused):
    """Another account has this address. Choose another, or sign in."""

    code = "email_already_exists"


class Initialized(Refused):
    """There is an administrator. Let them make accounts."""

    code = "system_already_initialized"


class WrongPassword(Invalid):
    """The current password is another one."""

    code = "invalid_credentials"

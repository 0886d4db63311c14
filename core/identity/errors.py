"""Errors of authentication and of limits."""

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
"""The contract's codes, which web pages act on."""


class Unauthenticated(SikaError):
    """The request has no valid credentials (HTTP 401). Sign in, then retry."""

    code = "not_authenticated"

    def __init__(self, code: Reason, text: str) -> None:
        super().__init__(text)
        self.code = code


class TooMany(SikaError):
    """A limit is exceeded (HTTP 429). Retry after `retry_after` seconds."""

    code = "too_many_requests"

    def __init__(self, code: str, text: str, retry_after: float) -> None:
        super().__init__(text)
        self.code = code
        self.retry_after = max(1, math.ceil(retry_after))


class Inactive(Refused):
    """The account is disabled. An administrator can enable it."""

    code = "account_disabled"


class EmailTaken(Refused):
    """Another account has this address. Choose another, or sign in."""

    code = "email_already_exists"


class Initialized(Refused):
    """An administrator exists already, and can create accounts."""

    code = "system_already_initialized"


class WrongPassword(Invalid):
    """The current password is wrong."""

    code = "invalid_credentials"

"""Errors of NATS as errors of the core: what may succeed later is `Unavailable`, what never will is `Invalid`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from core.errors import Invalid, SikaError, Unavailable

CONSUMER_NOT_FOUND = 10014
STREAM_NOT_FOUND = 10059
STREAM_NAME_IN_USE = 10058
CONSUMER_EXISTS = 10148
MESSAGE_NOT_FOUND = 10037
SEQUENCE_NOT_FOUND = 10043
DELETION_FAILED = 10057
WRONG_LAST_SEQUENCE = frozenset({10071, 10164})

BAD_REQUEST = 400
"""Status of a response that says that the request itself is wrong."""
NOT_READY = 503
"""Status of a response of a cluster that is forming, or has lost too many servers."""
NO_PEERS = 10005
_LATER = frozenset(
    {
        10002,  # limits of the account are exceeded
        NO_PEERS,  # no server can hold the stream at the moment
        10026,  # too many consumers
        10027,  # too many streams
        SEQUENCE_NOT_FOUND,
        DELETION_FAILED,
        STREAM_NAME_IN_USE,
        CONSUMER_EXISTS,
        10158,  # a batch is not complete yet
        10176,  # a batch was abandoned
        10201,  # an id of a batch is there already
        *WRONG_LAST_SEQUENCE,
    }
)
"""Errors of that status that another attempt, or another time, may not meet."""

PERMANENT = frozenset(
    {
        "BadSubjectError",
        "BadSubscriptionError",
        "BadHeaderError",
        "BadTimeoutError",
        "MaxPayloadError",
        "InvalidCallbackTypeError",
        "InvalidUserCredentialsError",
        "JsonParseError",
        "NotJSMessageError",
        "MsgAlreadyAckdError",
        "BadRequestError",
        "BadBucketError",
        "InvalidKeyError",
        "InvalidBucketNameError",
        "InvalidObjectNameError",
        "BadObjectMetaError",
        "LinkIsABucketError",
        "KeyHistoryTooLargeError",
        "KeyValueLimitMarkerTTLNotSupportedError",
    }
)
"""The client's errors, by class, that a repetition meets again: wrong arguments. Subclasses are permanent, too."""


class BusUnavailable(Unavailable):
    """NATS does not answer. Whoever works on a run cannot end it either: they wait, and try again."""


class ApiError(SikaError):
    """The JetStream API refused. `err_code` is its error code, see nats-server's errors.json."""

    def __init__(self, err_code: int, text: str, status: int = 0) -> None:
        super().__init__(f"JetStream {err_code}: {text}")
        self.err_code = err_code
        self.status = status


class ApiUnavailable(ApiError, BusUnavailable):
    """The API may accept the request another time."""


class ApiRefused(ApiError, Invalid):
    """The API will never accept the request."""


def api_error(error: Mapping[str, Any], where: str = "") -> ApiError:
    """Returns the error of a response of the JetStream API; `where` precedes its text."""
    number, status = error.get("err_code", 0), error.get("code", 0)
    permanent = status == BAD_REQUEST and number not in _LATER
    return (ApiRefused if permanent else ApiUnavailable)(number, where + error.get("description", ""), status)


def is_permanent(error: BaseException) -> bool:
    """Tells whether an error of the client would come again at each repetition."""
    return any(cls.__name__ in PERMANENT for cls in type(error).__mro__)

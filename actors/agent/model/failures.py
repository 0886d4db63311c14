"""Classifies failed model calls, computes pauses before retries (DeerFlow's middleware LLMErrorHandling)."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence, Set
from ipaddress import ip_address
from urllib.parse import SplitResult, urlsplit

from actors.agent.model.refusals import Refusal, read
from actors.agent.model.refusals import status_of as status_of
from core import reasons

BASE_MS = 1000
CAP_MS = 8000
LONGEST_MS = 600_000
"""Limit of a pause that a provider requests: some limits of a minute are counted over ten."""
RETRIABLE_STATUS = frozenset({408, 409, 425, 429, 499, *range(500, 600)}) - {501, 505}
RETRIABLE_TYPES = frozenset({"server_error", "internalservererror", "internal_server_error", "api_error", "timeout"})
"""Types of errors of the server within a stream, which have no status."""
RETRIABLE_CLASSES = frozenset(
    {"APITimeoutError", "APIConnectionError", "InternalServerError", "ReadError", "RemoteProtocolError"}
    | {"ReadTimeout", "ConnectError", "ConnectTimeout", "StreamChunkTimeoutError", "AnswerBroken"}
    | {"ConnectionError", "TimeoutError", "ClientConnectionError", "ClientPayloadError"}
)
"""The first line is the contract's; the others have the equivalents of other clients."""
AMAZON_CODES = frozenset(
    {"throttlingexception", "serviceunavailableexception", "internalserverexception", "modelstreamerrorexception"}
    | {"modeltimeoutexception", "modelnotreadyexception"}
)
"""Amazon's errors that pass. Those within a stream have the status 400, and one of them speaks of too many tokens."""
CONTEXT_CLASS = "ContextOverflowError"
"""LangChain's class of a request that is too long."""

ELSEWHERE = "the model's server"
_NUMBERS = re.compile(
    r"(?:https?://)?(?<![\w.:])\[?(?P<address>(?:\d{1,3}\.){3}\d{1,3}|[0-9a-f]{0,4}:[0-9a-f:.]+)\]?"
    r"(?:', \d+|:\d+)?(?:/[^\s'\")\]>]*)?"
)
"""Matches what may be an address of a network, with its port."""

# ── codes ───────────────────────────────────────────────────────────────────────────────────────────────────────────

QUOTA_CODES = frozenset(
    {"insufficient_quota", "billing_hard_limit_reached", "billing_not_active", "exceeded_current_quota_error", "1113"}
    | {"insufficient_balance", "insufficient_credits", "payment_required", "arrearage", "allocationquota.freetieronly"}
)
AUTH_CODES = frozenset(
    {"invalid_api_key", "invalid_authentication_error", "authentication_error", "permission_error", "api_key_invalid"}
    | {"unauthenticated", "permission_denied", "access_denied"}
)
CONTEXT_CODES = frozenset(
    {"context_length_exceeded", "context_window_exceeded", "model_context_window_exceeded", "prompt_too_long", "1261"}
    | {"exceed_context_size_error", "tokens_limit_reached", "request_too_large", "input_too_long"}
)

# ── words ───────────────────────────────────────────────────────────────────────────────────────────────────────────

_WAIT = re.compile(
    r"rate.?limit|per.?(?:minute|min\b|second|hour)|\b[rt]p[mshd]\b|too many requests|try again|retry"
    r"|请求过多|频率|限流"
)
"""Words of a limit that passes with time."""
_QUOTA = re.compile(
    r"insufficient.?(?:quota|balance|credit|funds)|quota.{0,20}exceeded|exceeded.{0,20}quota|billing|payment required"
    r"|balance is not enough|out of credit|余额不足|额度|欠费|超出限额"
)
_AUTH = re.compile(
    r"^.{0,60}?(?:(?:invalid|incorrect|wrong|missing|expired) (?:x-)?api.?key|api.?key (?:is )?(?:not valid|invalid)"
    r"|invalid_api_key)|无权|未授权|鉴权失败",
    re.DOTALL,
)
"""A message that begins so: an error may also quote such words of a conversation."""
_BUSY = re.compile(
    r"overloaded|busy|too many requests|rate.?limit|high demand|temporarily unavailable|try again later|at capacity"
    r"|繁忙|稍后|负载较高|请求过多"
)
_TOO_LONG = re.compile(
    r"""
    maximum\ (?:context|prompt|model|input|sequence)\ (?:length|size|window) | context_length_exceeded
    | context\ (?:length|size|window|limit).{0,40}(?:exceed|overflow|too\ small|only|greater)
    | (?:exceed|overflow|longer|greater|larger|beyond|fit).{0,60}
        (?:context|model's\ maximum|max(?:imum)?\ (?:model|input|prompt)\ len)
    | (?:prompt|input|conversation|history|messages?)\ (?:is|are|was|were)\ too\ (?:long|large)
    | prompt\ exceeds | prompt\ tokens?\ too\ (?:long|many) | context\ window\ exceeds | exceeded\ model\ token\ limit
    | too\ many\ (?:input\ |prompt\ )?tokens | input\ length\ should\ be | request\ too\ large
    | (?:input|prompt|message)s?`?\ tok.{0,60}(?:exceed|must\ be\ <=)
    | exceed.{0,10}\ max(?:imum)?\ (?:message|input|prompt)
    | reduce\ (?:the\ |your\ )?(?:length\ of\ the\ )?(?:messages?|prompt|input) | max\ input\ (?:characters|tokens)
    | messages\[\d+\].{0,60}string\ too\ long
    | (?:上下文|输入|提示|消息|prompt|token).{0,12}(?:超长|超过|超出|过长)
    | (?:超长|超过|超出).{0,12}(?:上下文|最大长度|输入|token)
    """,
    re.VERBOSE | re.DOTALL,
)
_OF_ANSWER = re.compile(
    r"max(?:_completion|_output|_new)?_tokens['`\"]?:? (?:is|are|must|should|cannot|may|\d)"
    r"|completion tokens|output tokens|budget_tokens|image|tools?[.\[ ]|per.?min"
)
"""Other limits: a shorter conversation does not help."""
_SIZE = re.compile(r"token|context|length|window|长度|上下文")
_EXCESS = re.compile(r"exceed|too (?:long|large|many|big)|(?:longer|greater|larger|more) than|overflow|> \d|<= ?\d|超")
_OF_REQUEST = re.compile(r"prompt|input|context|conversation|messages?\b|request|输入|上下文")


def classify(error: BaseException) -> tuple[str, bool]:
    """Returns `quota`, `auth`, `transient`, `context`, `busy` or `generic`, and whether a retry may help.

    The first rule of the table that fits counts. Status, pause and codes come before words.
    """
    refusal = read(error)
    classes = {cls.__name__ for cls in type(error).__mro__}
    return next((reason, retry) for reason, retry, fits in _TABLE if fits(refusal, classes))


def _of_client(refusal: Refusal) -> bool:
    """Tells whether the words of an error count: of an error of the server, the status does."""
    return refusal.status is None or 400 <= refusal.status < 500


def _is_too_long(refusal: Refusal) -> bool:
    if refusal.codes & CONTEXT_CODES or refusal.status == 413:
        return True
    words = refusal.words
    if refusal.codes & AMAZON_CODES:
        return False
    if refusal.status == 429:
        return "request too large" in words
    if refusal.status not in (None, 400, 404, 422, 500):
        return False
    if _TOO_LONG.search(words):
        return True
    general = _SIZE.search(words) and _EXCESS.search(words) and _OF_REQUEST.search(words)
    return refusal.status in (400, 422) and bool(general) and not _OF_ANSWER.search(words)


def _waits(refusal: Refusal) -> bool:
    """Tells whether the limit passes with time. Headers of limits alone do not say so of an empty account."""
    if refusal.pause_ms is not None or _WAIT.search(refusal.words):
        return True
    return refusal.reset_ms is not None and not refusal.codes & QUOTA_CODES


Fits = Callable[[Refusal, Set[str]], object]
_TABLE: Sequence[tuple[str, bool, Fits]] = (
    ("context", False, lambda it, classes: CONTEXT_CLASS in classes or _is_too_long(it)),
    ("transient", True, lambda it, _: it.status == 429 and _waits(it)),
    ("quota", False, lambda it, _: it.status == 402 or it.codes & QUOTA_CODES),
    ("auth", False, lambda it, _: it.status == 401 or it.codes & AUTH_CODES),
    ("quota", False, lambda it, _: _of_client(it) and _QUOTA.search(it.words)),
    ("auth", False, lambda it, _: it.status == 403 or (_of_client(it) and _AUTH.search(it.words))),
    ("transient", True, lambda it, _: it.status in RETRIABLE_STATUS or it.codes & AMAZON_CODES),
    ("transient", True, lambda it, _: it.status is None and it.codes & RETRIABLE_TYPES),
    ("transient", True, lambda it, classes: it.status is None and classes & RETRIABLE_CLASSES),
    ("busy", True, lambda it, _: _of_client(it) and (_BUSY.search(it.words) or _BUSY.search(" ".join(it.codes)))),
    ("generic", False, lambda *_: True),
)
"""Class, whether a retry may help, and what errors are of the class, in order."""


def address(error: BaseException, model: object) -> str:
    """Returns the provider's name of the model, and the URL of the request without credentials and query."""
    named = (getattr(model, name, None) for name in ("model_name", "model"))
    name = next((text for text in named if isinstance(text, str) and text), "")
    url = _url_of(error, model)
    origin = f"{url.scheme}://{url.netloc.rpartition('@')[2]}{url.path}" if url.netloc else ""
    return " at ".join(part for part in (name, origin) if part)


def without_address(text: str, error: BaseException, model: object) -> str:
    """Returns a text for people, without where the model is: neither its host nor an address of a network."""
    if host := _url_of(error, model).hostname:
        place = rf"(?:[a-z]+://)?(?:[^\s/@]*@)?(?<![\w.-]){re.escape(host)}(?![\w-])(?:', \d+|:\d+)?(?:/[^\s'\")\]>]*)?"
        text = re.sub(place, ELSEWHERE, text, flags=re.IGNORECASE)
    return _NUMBERS.sub(lambda match: ELSEWHERE if _is_internal(match["address"]) else match[0], text)


def unreachable(error: BaseException) -> str | None:
    """Returns why a model's server could not be reached, in words; None for an error that is none of the connection."""
    if status_of(error) is not None or (type(error) is TimeoutError and str(error)):
        return None  # the latter is of our own making: it says more
    problem = reasons.of_connection(error)
    return f"The model's server cannot be reached: {problem}" if problem is not None else None


def _is_internal(text: str) -> bool:
    try:
        return not ip_address(text).is_global
    except ValueError:
        return False


def _url_of(error: BaseException, model: object) -> SplitResult:
    requests = (getattr(error, "request", None), getattr(getattr(error, "response", None), "request", None))
    urls = (
        *(getattr(request, "url", None) for request in requests),
        *(getattr(model, name, None) for name in ("openai_api_base", "anthropic_api_url", "base_url")),
    )
    return urlsplit(next((str(url) for url in urls if url), ""))


def pause_ms(error: BaseException, attempt: int) -> int:
    """Returns the pause before the next attempt: as the provider requests, else 1, 2, 4, then 8 seconds."""
    refusal = read(error)
    requested = refusal.reset_ms if refusal.pause_ms is None and refusal.status == 429 else refusal.pause_ms
    if requested is not None:
        return int(min(max(requested, 0), LONGEST_MS))
    return int(min(BASE_MS * 2 ** (attempt - 1), CAP_MS))

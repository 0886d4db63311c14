"""What to ask next, and a better wording of what is about to be asked. Never an error where there is just nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
import structlog
from aiohttp import web

from channels.http import live as alive
from channels.http.bodies import body, plain
from channels.http.deerflow.models import check_name
from channels.http.routes import API, Route
from core.errors import Invalid, SikaError

log = structlog.get_logger("sika.http")

ACTOR = "suggestions"
MESSAGES, CHARACTERS = 10, 4000
"""How much of a conversation is looked at: so many messages from its end, and so much of each."""
GRACE_SECONDS = 5.0
"""What an answer may take beyond the model's time."""


class Said(msgspec.Struct):
    role: Annotated[str, msgspec.Meta(max_length=40)]
    content: str


class SuggestBody(msgspec.Struct):
    messages: list[Said]
    n: Annotated[int, msgspec.Meta(ge=1, le=5)] = 3
    model_name: str | None = None


class Suggestions(msgspec.Struct):
    suggestions: list[str]


class Settings(msgspec.Struct):
    enabled: bool
    max_suggestions: int


class PolishBody(msgspec.Struct):
    """`thread_id` is accepted; the text is polished by itself."""

    text: Annotated[str, msgspec.Meta(min_length=1)]
    locale: Annotated[str, msgspec.Meta(max_length=40, pattern=r"^[A-Za-z0-9_-]*$")] | None = None
    thread_id: str | None = None


class Polished(msgspec.Struct):
    rewritten_text: str
    changed: bool


async def suggest(request: web.Request) -> web.Response:
    """Short questions that may come next in a conversation; none if the model has none, or takes too long."""
    wanted = await body(request, SuggestBody)
    await alive.owned(request)
    config = alive.of(request).services.config()
    check_name(config, wanted.model_name)
    settings = config.suggestions
    if not settings.enabled or not wanted.messages:
        return plain(Suggestions([]))
    last = [{"role": said.role, "content": said.content[:CHARACTERS]} for said in wanted.messages[-MESSAGES:]]
    n = min(wanted.n, settings.max_suggestions)
    found = await _ask(request, {"op": "suggest", "messages": last, "n": n, "model": wanted.model_name}, list[str])
    return plain(Suggestions(found or []))


async def settings(request: web.Request) -> web.Response:
    """Whether there are suggestions, and how many at most."""
    found = alive.of(request).services.config().suggestions
    return plain(Settings(found.enabled, found.max_suggestions))


async def polish(request: web.Request) -> web.Response:
    """A clearer wording of a text; the text itself if the model has none, or takes too long, or if `input_polish` is
    off. At most `input_polish.max_chars` characters.
    """
    wanted, settings = await body(request, PolishBody), alive.of(request).services.config().input_polish
    if len(wanted.text) > settings.max_chars:
        raise Invalid(f"text: at most {settings.max_chars} characters (input_polish.max_chars), got {len(wanted.text)}")
    if not settings.enabled:
        return plain(Polished(wanted.text, False))
    found = await _ask(request, {"op": "polish", "text": wanted.text, "locale": wanted.locale or None}, str)
    text = found or wanted.text
    return plain(Polished(text, text != wanted.text))


async def _ask(request: web.Request, question: Mapping[str, Any], kind: Any) -> Any:
    services = alive.of(request).services
    try:
        async with asyncio.timeout(services.config().suggestions.timeout_seconds + GRACE_SECONDS):
            return msgspec.convert(await services.call(ACTOR, question), kind)
    except (SikaError, TimeoutError, msgspec.ValidationError) as error:
        log.info("no suggestion", op=question["op"], reason=str(error) or "took too long")
        return None


_ASK: Any = {"scope": "runs:create", "mounts": API}
ROUTES = (
    Route(
        "POST", "/threads/{thread_id}/suggestions", suggest, {200: Suggestions}, SuggestBody, errors=(400, 404), **_ASK
    ),
    Route("GET", "/suggestions/config", settings, {200: Settings}, mounts=API),
    Route("POST", "/input-polish", polish, {200: Polished}, PolishBody, **_ASK),
)

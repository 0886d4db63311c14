"""Suggested next questions, and better wordings of a message. No suggestion is no error."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
import structlog

from channels.http.deerflow.models import check_name
from channels.http.endpoints.call import Call, OwnedThread
from channels.http.endpoints.endpoint import Routes
from channels.http.server.routes import API
from core.errors import Invalid, SikaError
from core.thread.values import asks_person

log = structlog.get_logger("sika.http")

ACTOR = "suggestions"
MESSAGES, CHARACTERS = 10, 4000
"""Limits of the conversation that the model reads: messages from its end, and characters of each."""
GRACE_SECONDS = 5.0
"""Time for an answer beyond the model's own."""


class ConversationLine(msgspec.Struct):
    role: Annotated[str, msgspec.Meta(max_length=40)]
    content: str


class SuggestBody(msgspec.Struct):
    messages: list[ConversationLine]
    n: Annotated[int, msgspec.Meta(ge=1, le=5)] = 3
    model_name: str | None = None


class Suggestions(msgspec.Struct):
    suggestions: list[str]


class Settings(msgspec.Struct):
    enabled: bool
    max_suggestions: int


class PolishBody(msgspec.Struct):
    text: Annotated[str, msgspec.Meta(min_length=1)]
    locale: Annotated[str, msgspec.Meta(max_length=40, pattern=r"^[A-Za-z0-9_-]*$")] | None = None
    thread_id: Annotated[str | None, msgspec.Meta(description="Without effect: the text is polished by itself.")] = None
    model_name: str | None = None


class Polished(msgspec.Struct):
    rewritten_text: str
    changed: bool


ROUTES = Routes(mounts=API)


@ROUTES("POST", "/threads/{thread_id}/suggestions", "runs:create", errors=(400,))
async def suggest(call: Call, thread: OwnedThread, body: SuggestBody) -> Suggestions:
    """Short questions that may come next in a conversation; none if the model has none, or takes too long, and none
    after an error or a question of the agent.
    """
    check_name(call.config, body.model_name)
    settings = call.config.suggestions
    waits = asks_person(thread.state.messages) or thread.state.status in ("error", "interrupted")
    if not settings.enabled or not body.messages or waits:
        return Suggestions([])
    last = [{"role": message.role, "content": message.content[:CHARACTERS]} for message in body.messages[-MESSAGES:]]
    n = min(body.n, settings.max_suggestions)
    question = {"op": "suggest", "thread": thread.id, "messages": last, "n": n, "model": body.model_name}
    suggestions = await _ask(call, question, list[str])
    return Suggestions(suggestions or [])


@ROUTES("GET", "/suggestions/config")
async def settings(call: Call) -> Settings:
    """Tells whether there are suggestions, and how many at most."""
    section = call.config.suggestions
    return Settings(section.enabled, section.max_suggestions)


@ROUTES("POST", "/input-polish", "runs:create", errors=(400,))
async def polish(call: Call, body: PolishBody) -> Polished:
    """A clearer wording of a text; the text itself if the model has none, or takes too long, or if `input_polish` is
    off. At most `input_polish.max_chars` characters.
    """
    check_name(call.config, body.model_name)
    settings = call.config.input_polish
    if len(body.text) > settings.max_chars:
        raise Invalid(f"text: at most {settings.max_chars} characters (input_polish.max_chars), got {len(body.text)}")
    if not settings.enabled:
        return Polished(body.text, False)
    question = {"op": "polish", "text": body.text, "locale": body.locale or None, "model": body.model_name}
    reworded = await _ask(call, question, str)
    text = reworded or body.text
    return Polished(text, text != body.text)


async def _ask(call: Call, question: Mapping[str, Any], kind: Any) -> Any:
    try:
        async with asyncio.timeout(call.config.suggestions.timeout_seconds + GRACE_SECONDS):
            return msgspec.convert(await call.services.call(ACTOR, question), kind)
    except (SikaError, TimeoutError, msgspec.ValidationError) as error:
        log.info("no suggestion", op=question["op"], reason=str(error) or "took too long")
        return None

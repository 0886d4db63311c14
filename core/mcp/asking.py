"""What servers ask during a call (revision 2025-11-25): read, and answered as the protocol writes it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import msgspec

from core import forms
from core.config.mcp import Sampling
from core.errors import Invalid
from core.tools import Completion, Prompt, Question, Response

MOST_TEXT = 4000
"""Limit of the text of a question, in characters."""
MOST_URL = 2000
FORM_BYTES = 64 << 10
MOST_CHARACTERS = 200_000
"""Limit of the texts of a sampling request."""


# ── elicitation ──────────────────────────────────────────────────────────────────────────────────────────────────────


def question(server: str, number: int, params: Mapping[str, Any], seconds: float) -> Question:
    """Returns the question to the person. `number`: which one of the call. Raises `Invalid` for what is none."""
    message = params.get("message")
    if not isinstance(message, str) or not message.strip():
        raise Invalid("message: a text is expected")
    message = message[:MOST_TEXT]
    step: dict[str, Any] = {"server": server, "request": number}
    if params.get("mode") == "url":
        step["url"] = _address(params.get("url"))
        host = urlsplit(step["url"]).hostname
        text = f"The MCP server {server} asks you to open a page of {host} yourself: {message}"
        return Question(text, step, None, seconds)
    form = params.get("requestedSchema")
    if not isinstance(form, Mapping) or len(msgspec.json.encode(form)) > FORM_BYTES:
        raise Invalid(f"requestedSchema: an object of at most {FORM_BYTES} bytes is expected")
    filled = forms.fields(form)
    return Question(f"The MCP server {server} asks: {message}", step, form if filled else None, seconds)


def _address(url: Any) -> str:
    """Returns an address that people may be shown. Raises `Invalid`."""
    try:
        parts = urlsplit(url) if isinstance(url, str) and len(url) <= MOST_URL and url.isprintable() else None
        if parts and parts.scheme in ("https", "http") and parts.hostname and not (parts.username or parts.password):
            return str(url)
    except ValueError:
        pass
    raise Invalid(f"url: an http address of at most {MOST_URL} characters is expected")


def elicited(question: Question, response: Response) -> dict[str, Any]:
    """Returns the answer to the server."""
    if response.accepted is None:
        return {"action": "cancel"}
    if not response.accepted:
        return {"action": "decline"}
    return {"action": "accept"} if "url" in question.step else {"action": "accept", "content": dict(response.content)}


# ── sampling ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def sample(params: Mapping[str, Any], limits: Sampling) -> Prompt:
    """Returns what the model is to be asked. Wishes for a model and its temperature have no effect.

    Raises `Invalid` for what is refused.
    """
    if params.get("tools") or params.get("toolChoice"):
        raise Invalid("tools: are refused in sampling")
    if params.get("includeContext") not in (None, "none"):
        raise Invalid("includeContext: the conversation is not passed on")
    messages = [(str(one.get("role")), _text_of(one.get("content"))) for one in params.get("messages") or ()]
    system = str(params.get("systemPrompt") or "")
    if not messages or any(role not in ("user", "assistant") for role, _ in messages):
        raise Invalid("messages: of the roles user and assistant are expected")
    if len(system) + sum(len(text) for _, text in messages) > MOST_CHARACTERS:
        raise Invalid(f"messages: have more than {MOST_CHARACTERS} characters")
    requested = params.get("maxTokens")
    tokens = min(requested, limits.max_tokens) if isinstance(requested, int) and requested > 0 else limits.max_tokens
    stop = [str(word)[:200] for word in (params.get("stopSequences") or ())[:8]]
    return Prompt(messages, system, tokens, stop)


def _text_of(content: Any) -> str:
    parts = content if isinstance(content, list) else [content]
    if not all(isinstance(part, Mapping) and part.get("type") == "text" for part in parts):
        raise Invalid("messages: only text is taken")
    return "\n".join(str(part.get("text") or "") for part in parts)


def permission(server: str, number: int, prompt: Prompt, seconds: float) -> Question:
    """Returns the question whether a server may have the model answer."""
    step: dict[str, Any] = {"server": server, "request": number, "max_tokens": prompt.max_tokens}
    if prompt.system:
        step["system"] = prompt.system[:MOST_TEXT]
    step["messages"] = [f"{role}: {text[:MOST_TEXT]}" for role, text in prompt.messages[-5:]]
    text = f"The MCP server {server} wants the model to answer this, at the expense of this run."
    return Question(text, step, None, seconds)


def sampled(completion: Completion) -> dict[str, Any]:
    """Returns the answer to the server."""
    content = {"type": "text", "text": completion.text}
    reason = "maxTokens" if completion.reason in ("length", "max_tokens") else "endTurn"
    return {"role": "assistant", "content": content, "model": completion.model, "stopReason": reason}

"""Turns a model's answer into the event that records it; its calls are safe to execute."""

from __future__ import annotations

import json
import time
from collections.abc import Collection
from functools import partial
from typing import Any

import langchain_core.messages.ai
from langchain_core.messages import AIMessage

from actors.agent.messages.convert import dump
from actors.agent.model.assembly import Assembly
from core.config.redaction import redactor
from core.events import Json, ModelCompleted
from core.runs.previews import Previewer, call_text

SECRET = (
    "the arguments of this call had a secret of the server among them, which was removed; nothing was done. Use the "
    "environment variable or the file that holds it."
)


# LangChain's parser repairs JSON by trying every shorter text: broken arguments of 50 kB stop the whole process for a
# minute. `Calls` takes no repaired arguments.
langchain_core.messages.ai.parse_partial_json = partial(json.loads, strict=False)  # type: ignore[attr-defined]


def completed(
    answer: Assembly,
    identity: str,
    key: str,
    started: float,
    previewer: Previewer | None,
    *,
    tools: Collection[str] = (),
    stopped: bool = False,
) -> ModelCompleted:
    """Returns the event of an answer. Of one that was `stopped`, the calls are left out."""
    merged = answer.message()
    merged.additional_kwargs.pop("tool_calls", None)
    message = dump(merged)
    message["id"] = identity
    for name in ("tool_calls", "invalid_tool_calls"):
        message.pop(name, None)
    calls, texts = answer.calls.finished(identity, tools)
    if stopped:
        message["response_metadata"] = {**message.get("response_metadata", {}), "finish_reason": "cancelled"}
        calls = []
    if calls:
        message["tool_calls"] = calls
    raw = {call["id"]: text for call in calls if (text := texts[call["id"]]) not in ("", call_text(call["args"]))}
    return ModelCompleted(
        message=message,
        request=key,
        duration_ms=int((time.monotonic() - started) * 1000),
        order=previewer.order if previewer else [],
        call_texts=raw,
    )


def redacted(event: ModelCompleted) -> ModelCompleted:
    """Redacts an answer. A call with a secret in its arguments gets an `error` and is not made.

    A shell would expand `***` to names of files.
    """
    clean = redactor.struct(event)
    if clean is not event:
        for call, before in zip(clean.message.get("tool_calls", ()), event.message.get("tool_calls", ()), strict=True):
            if call["args"] != before["args"]:
                call["error"] = SECRET
    return clean


def without_calls(message: AIMessage, note: str) -> AIMessage:
    """Returns the message as a final answer: without tool calls of any form, with a note for the person at its end."""
    extra = {
        key: value for key, value in message.additional_kwargs.items() if key not in ("tool_calls", "function_call")
    }
    about = dict(message.response_metadata)
    if about.get("finish_reason") in ("tool_calls", "function_call"):
        about["finish_reason"] = "stop"
    change: Json = {"content": with_note(message.content, note), "additional_kwargs": extra, "response_metadata": about}
    return message.model_copy(update={**change, "tool_calls": [], "invalid_tool_calls": []})


def with_note(content: Any, note: str) -> Any:
    """Returns the content with a note at its end: text stays text, a list gets a block."""
    if isinstance(content, list):
        return [*content, {"type": "text", "text": note}]
    return f"{content}\n\n{note}" if content else note

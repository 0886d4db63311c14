"""Answers of providers as data (`tests/adapters/models/answers`), what a run makes of them, and a server of them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import openai
import yaml
from aiohttp import web

from actors.agent.model.answer import completed
from actors.agent.model.assembly import Assembly
from actors.agent.model.failures import classify
from actors.agent.model.refusals import text_of_error
from adapters.models.openai_compatible import errors_of_the_sdk
from adapters.models.reader import Empty, Reader
from tests.support.applications import running

FOLDER = Path(__file__).parents[1] / "adapters" / "models" / "answers"
REQUEST = httpx2.Request("POST", "https://provider.example/v1/chat/completions")
AFTER = "AFTER: "
"""What the server's answer to a tool's result begins with."""


def load(name: str) -> dict[str, dict[str, Any]]:
    """Returns the cases of a file, by name."""
    cases: dict[str, dict[str, Any]] = yaml.safe_load((FOLDER / f"{name}.yaml").read_text())
    return cases


def body_of(case: Mapping[str, Any]) -> bytes:
    return str(case.get("stream") or case.get("body") or "").encode()


async def outcome(blocks: Sequence[bytes], tools: Sequence[str] = ("bash", "read")) -> dict[str, Any]:
    """Returns what a run makes of a body that comes in these blocks: `text`, `reasoning`, `calls`, `tokens`; or `error`
    and its class, `reason`. A call that is not made is its error.
    """
    reader, answer = Reader(), Assembly(None)
    try:
        with errors_of_the_sdk(httpx2.Response(200, request=REQUEST)):
            for block in blocks:
                for piece in reader.feed(block):
                    await answer.add(piece)
            for piece in reader.end():
                await answer.add(piece)
        await answer.finish()
    except Empty:
        return {"error": "empty", "reason": "transient"}
    except Exception as error:
        return {"error": text_of_error(error), "reason": classify(error)[0], "class": type(error).__name__}
    message = completed(answer, "lc_run--0", "key", 0, None, tools=tools).message
    return told(message)


def told(message: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the parts of a recorded answer that are not empty."""
    usage = message.get("usage_metadata") or {}
    parts = {
        "text": message["content"],
        "reasoning": message.get("additional_kwargs", {}).get("reasoning_content"),
        "calls": [
            [call["name"], call["args"]] if "error" not in call else call["error"]
            for call in message.get("tool_calls", ())
        ],
        "tokens": [usage["input_tokens"], usage["output_tokens"]] if usage else None,
    }
    return {name: part for name, part in parts.items() if part}


@asynccontextmanager
async def serving(cases: Callable[[str], Mapping[str, Any]]) -> AsyncIterator[tuple[str, Counter[str]]]:
    """Serves the case that a request's model names, and `AFTER` with the results once there are some. Yields the base
    URL, and how often each was asked for.
    """
    asked: Counter[str] = Counter()

    async def answer(request: web.Request) -> web.StreamResponse:
        body = json.loads(await request.read())
        name = str(body["model"])
        last = max(place for place, message in enumerate(body["messages"]) if message["role"] == "user")
        results = [str(message["content"]) for message in body["messages"][last:] if message["role"] == "tool"]
        if results:
            return web.Response(body=_stream(AFTER + " | ".join(results)), content_type="text/event-stream")
        asked[name] += 1
        case = cases(name)
        if asked[name] > case.get("times", 1 << 30):
            return web.Response(body=_stream("MARK-42"), content_type="text/event-stream")
        kind = "text/event-stream" if "stream" in case else "application/json"
        headers = {"Content-Type": kind, **case.get("headers", {})}
        return web.Response(status=case.get("status", 200), headers=headers, body=body_of(case))

    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    async with running(app) as url:
        yield f"{url}/v1", asked


def _stream(text: str) -> bytes:
    deltas: list[dict[str, Any]] = [{"delta": {"content": text}}, {"delta": {}, "finish_reason": "stop"}]
    events = [f"data: {json.dumps({'choices': [choice]})}\n\n" for choice in deltas]
    return "".join([*events, "data: [DONE]\n\n"]).encode()


def refused(case: Mapping[str, Any]) -> openai.APIStatusError:
    """Returns the error that the SDK makes of a case with a status."""
    response = httpx2.Response(case["status"], content=body_of(case), headers=case.get("headers"), request=REQUEST)
    return openai.AsyncOpenAI(api_key="k")._make_status_error_from_response(response)

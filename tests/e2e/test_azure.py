"""Azure's own addresses: a deployment in the path, the version in the query, the key in `api-key`. By LangChain's class
for Azure and by a `base_url`, each through a whole server.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.e2e.servers import Browser, Frame, Server, browser, run_of, serving, texts
from tests.support.applications import running

pytestmark = [pytest.mark.anyio, pytest.mark.long(keep=2)]

DEPLOYMENT, VERSION, KEY = "my-deployment", "2026-10-01", "key-of-azure-4711"
NAME = re.compile(r"\[\[(\w+)\]\]")
FILTERED = {"hate": {"filtered": False, "severity": "safe"}, "violence": {"filtered": True, "severity": "medium"}}
POLICY = (
    "The response was filtered due to the prompt triggering Azure OpenAI's content management policy. Please modify "
    "your prompt and retry."
)
LIMIT = (
    "Requests to the ChatCompletions_Create Operation under Azure OpenAI API version 2026-10-01 have exceeded token "
    "rate limit of your current OpenAI S0 pricing tier. Please retry after 60 seconds."
)
LENGTH = "This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens."


def chunks(*deltas: Mapping[str, Any], finish: str = "stop") -> bytes:
    """A stream of Azure: its first event has no choices, each choice its filter, the last event the usage."""
    about = {"created": 1, "id": "chatcmpl-1", "model": "gpt-4o-2024-08-06", "object": "chat.completion.chunk"}
    safe = {"hate": {"filtered": False, "severity": "safe"}}
    first = {"choices": [], "created": 0, "id": "", "model": "", "object": ""}
    events: list[Any] = [{**first, "prompt_filter_results": [{"prompt_index": 0, "content_filter_results": safe}]}]
    for delta, end in [*((delta, None) for delta in deltas), ({}, finish)]:
        choice = {"content_filter_results": safe, "delta": delta, "finish_reason": end, "index": 0, "logprobs": None}
        events.append({**about, "choices": [choice]})
    usage = {"completion_tokens": 4, "prompt_tokens": 9, "total_tokens": 13}
    lines = [f"data: {json.dumps(event)}\n\n" for event in [*events, {**about, "choices": [], "usage": usage}]]
    return "".join([*lines, "data: [DONE]\n\n"]).encode()


def called(arguments: str, **more: Any) -> dict[str, Any]:
    return {"tool_calls": [{"index": 0, "function": {"arguments": arguments, **more}}]}


CALL = {"content": None, "tool_calls": [{"index": 0, "id": "call_1", "type": "function",
                                         "function": {"name": "bash", "arguments": ""}}]}  # fmt: skip
STREAMS = {
    "text": chunks({"content": "", "role": "assistant"}, {"content": "MARK"}, {"content": "-42"}),
    "call": chunks(CALL, called('{"description": "x", '), called('"command": "echo 4$((1+1))"}'), finish="tool_calls"),
    "cut": chunks({"content": "Half of"}, finish="content_filter"),
}
ERRORS: dict[str, tuple[int, dict[str, str], dict[str, Any]]] = {
    "policy": (400, {}, {"message": POLICY, "type": None, "param": "prompt", "code": "content_filter", "status": 400,
                         "innererror": {"code": "ResponsibleAIPolicyViolation", "content_filter_result": FILTERED}}),
    "limit": (429, {"retry-after-ms": "20", "retry-after": "60"}, {"code": "429", "message": LIMIT}),
    "key": (401, {}, {"code": "401", "message": "Access denied due to invalid subscription key."}),
    "absent": (404, {}, {"code": "DeploymentNotFound", "message": "The API deployment does not exist."}),
    "long": (400, {}, {"message": LENGTH, "type": "invalid_request_error", "code": "context_length_exceeded"}),
}  # fmt: skip
ONCE = ("limit",)


class Azure:
    """Serves the case that the last message names. Keeps what was wrong with requests, and how often each was asked."""

    def __init__(self) -> None:
        self.wrong: list[Any] = []
        self.asked: list[str] = []

    async def answer(self, request: web.Request) -> web.Response:
        body = json.loads(await request.read())
        if request.headers.get("api-key") != KEY or dict(request.query) != {"api-version": VERSION}:
            self.wrong.append((dict(request.query), request.headers.get("api-key")))
        [name] = set(NAME.findall(json.dumps(body["messages"]))) or {"text"}
        after = any(message["role"] == "tool" for message in body["messages"])
        self.asked.append(name)
        if name in ERRORS and not (name in ONCE and self.asked.count(name) > 1):
            status, headers, error = ERRORS[name]
            return web.json_response({"error": error}, status=status, headers=headers)
        stream = STREAMS["text"] if after else STREAMS.get(name, STREAMS["text"])
        return web.Response(body=stream, content_type="text/event-stream")


@asynccontextmanager
async def listening(azure: Azure) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_post(f"/openai/deployments/{DEPLOYMENT}/chat/completions", azure.answer)
    async with running(app) as url:
        yield url


def configuration(url: str, how: str) -> dict[str, Any]:
    ways: dict[str, dict[str, Any]] = {
        "by_class": {
            "use": "langchain_openai:AzureChatOpenAI",
            "azure_endpoint": url,
            "azure_deployment": DEPLOYMENT,
            "api_version": VERSION,
            "api_key": KEY,
        },
        "by_address": {
            "base_url": f"{url}/openai/deployments/{DEPLOYMENT}",
            "default_query": {"api-version": VERSION},
            "default_headers": {"api-key": KEY},
            "api_key": KEY,
        },
    }
    return {
        "models": [{"name": "azure", "model": "gpt-4o", **ways[how]}],
        "summarization": {"enabled": False},
        "sandbox": {"allow_host_bash": True, "provider": "host"},
        "title": {"enabled": False},
        "memory": {"enabled": False},
    }


async def asked(client: Browser, server: Server, name: str) -> tuple[str, str, list[Any], list[Frame]]:
    """Returns how a run ended, its last text, its failed calls, and its frames."""
    frames: list[Frame] = []
    thread = await client.thread(server)
    await client.start(server, thread, f"[[{name}]]", "azure", frames)
    events = await client.log(server, thread)
    [*_, last] = await client.messages(server, thread)
    failures = [event for event in events if event["type"] == "model.failed"]
    return await client.status(server, thread, run_of(frames)), last["content"], failures, frames


@pytest.mark.parametrize("how", ["by_class", "by_address"])
async def test_runs_on_azure(tmp_path: Path, how: str) -> None:
    azure, config = Azure(), tmp_path / "config.yaml"
    async with listening(azure) as url, browser() as client:
        config.write_text(json.dumps(configuration(url, how)))
        async with serving(tmp_path / "home", config) as server:
            runs = {name: await asked(client, server, name) for name in [*STREAMS, *ERRORS]}
            assert KEY not in server.said()
    assert azure.wrong == []
    ends = {name: (status, [(failure.get("reason", "generic"), failure.get("wait_ms")) for failure in failures])
            for name, (status, _, failures, _) in runs.items()}  # fmt: skip
    assert ends == {
        "text": ("success", []),
        "call": ("success", []),
        "cut": ("success", []),
        "limit": ("success", [("transient", 20)]),
        "policy": ("error", [("generic", None)]),
        "key": ("error", [("auth", None)]),
        "absent": ("error", [("generic", None)]),
        "long": ("error", [("context", None)]),
    }
    assert runs["text"][1] == runs["limit"][1] == runs["call"][1] == "MARK-42"
    pieces = [frame.data[0]["content"] for frame in runs["text"][3] if frame.event == "messages"]
    assert [piece for piece in pieces if piece in ("MARK", "-42", "MARK-42")]
    assert "MARK-42" in texts(runs["text"][3]).values()
    assert "42" in json.dumps([frame.data for frame in runs["call"][3] if frame.event == "updates"])
    assert runs["cut"][1].startswith("Half of")
    assert "filter" in runs["cut"][1]
    for name in ("policy", "key", "absent", "long"):
        _, _, [failure], frames = runs[name]
        assert ERRORS[name][2]["message"] in failure["text"]
        assert KEY not in json.dumps([frame.data for frame in frames])
    assert [azure.asked.count(name) for name in ("policy", "limit", "key")] == [1, 2, 1]

"""Anthropic's, Google's and Amazon's own protocols, by LangChain's classes, as whole runs on a server of its own.

The classes come with the extras `anthropic`, `google` and `bedrock`, whose packages are other than those of the tests:
the server runs in the environment of `requirements-providers.lock`. Skipped where `.ci/run`, or these lines, have not
made it:

    python -m venv --without-pip .venv/providers
    .venv/bin/uv pip install --python .venv/providers/bin/python --require-hashes -r requirements-providers.lock
"""

from __future__ import annotations

import asyncio
import json
import re
import struct
import zlib
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web

from core.thread.messages import text_of
from tests.e2e.servers import Browser, browser
from tests.support import certificates
from tests.support.applications import running
from tests.support.workers import wait_for

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
PYTHON = ROOT / ".venv" / "providers" / "bin" / "python"
START_SECONDS = 120.0
MAIN = "import sys; from channels.cli import main; sys.exit(main())"
ONCE = ".once"
"""The end of the name of a case that is answered so the first time, and then with the case `text`."""
NAME = re.compile(r"\[\[([\w.-]+)\]\]")
"""The name of a case in a message."""

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(not PYTHON.exists(), reason="requirements-providers.lock is not installed"),
]

Case = Mapping[str, Any]
PROVIDERS: dict[str, dict[str, Any]] = {
    "anthropic": {"use": "langchain_anthropic:ChatAnthropic", "api_key": "key-of-anthropic"},
    "google": {"use": "langchain_google_genai:ChatGoogleGenerativeAI", "api_key": "key-of-google"},
    "bedrock": {
        "use": "langchain_aws:ChatBedrockConverse",
        "region_name": "eu-central-1",
        "disable_streaming": False,
        "aws_access_key_id": "key-of-bedrock",
        "aws_secret_access_key": "secret-of-bedrock",
    },
}
CASES: dict[str, dict[str, Case]] = {name: yaml.safe_load((FOLDER / f"{name}.yaml").read_text()) for name in PROVIDERS}
NAMES = [f"{provider}-{case}" for provider, cases in CASES.items() for case in cases]
RETRIED = [
    f"{provider}-{case}{ONCE}"
    for provider, cases in CASES.items()
    for case, answer in cases.items()
    if answer.get("reason") in ("transient", "busy")
]


def case_of(name: str) -> Case:
    provider, _, case = name.removesuffix(ONCE).partition("-")
    return CASES[provider][case]


class Providers:
    """Serves the case that a request's message names, in the provider's protocol. Keeps the bodies of requests."""

    def __init__(self) -> None:
        self.requests: dict[str, list[Any]] = defaultdict(list)

    def routes(self) -> Iterator[web.RouteDef]:
        yield web.post("/v1/messages", self._anthropic)
        yield web.post("/model/{model}/converse-stream", self._bedrock)
        yield web.post("/{version}/models/{model}:{way}", self._google)

    async def _anthropic(self, request: web.Request) -> web.Response:
        body = json.loads(await request.read())
        assert "key-of-anthropic" in request.headers.get("authorization", request.headers.get("x-api-key", ""))
        after = "tool_result" in json.dumps(body["messages"][-1])
        return self._answer("anthropic", body, after, whole=not body.get("stream"))

    async def _google(self, request: web.Request) -> web.Response:
        body = json.loads(await request.read())
        assert request.headers["x-goog-api-key"] == "key-of-google"
        after = "functionResponse" in json.dumps(body["contents"][-1])
        return self._answer("google", body, after, whole=request.match_info["way"] == "generateContent")

    async def _bedrock(self, request: web.Request) -> web.Response:
        body = json.loads(await request.read())
        assert "key-of-bedrock" in request.headers["authorization"]
        after = "toolResult" in json.dumps(body["messages"][-1])
        return self._answer("bedrock", body, after)

    def _answer(self, provider: str, body: Any, after: bool, *, whole: bool = False) -> web.Response:
        [name] = set(NAME.findall(json.dumps(body))) or {f"{provider}-text"}
        self.requests[name].append(body)
        again = name.endswith(ONCE) and len(self.requests[name]) > 1
        case = CASES[provider]["text"] if after or again else case_of(name)
        if whole:
            return web.Response(body=case["whole"].encode(), content_type="application/json")
        if "events" in case:
            frames = b"".join(frame(*event) for event in case["events"])
            return web.Response(body=frames, content_type="application/vnd.amazon.eventstream")
        if "stream" in case:
            stream = f"{case['stream']}\n".replace("\n", "\r\n" if provider == "google" else "\n")
            return web.Response(body=stream.encode(), content_type="text/event-stream")
        kind = "text/html" if case["body"].startswith("<") else "application/json"
        return web.Response(
            status=case["status"], body=case["body"].encode(), content_type=kind, headers=case.get("headers")
        )


def frame(kind: str, payload: Any) -> bytes:
    """Returns an event in Amazon's framing: lengths, checksums and typed headers."""
    how = "exception" if kind.endswith("Exception") else "event"
    names = {f":{how}-type": kind, ":content-type": "application/json", ":message-type": how}
    headers = b"".join(
        struct.pack(f">B{len(name)}sBH{len(value)}s", len(name), name.encode(), 7, len(value), value.encode())
        for name, value in names.items()
    )
    body = json.dumps(payload).encode()
    prelude = struct.pack(">II", 16 + len(headers) + len(body), len(headers))
    message = prelude + struct.pack(">I", zlib.crc32(prelude)) + headers + body
    return message + struct.pack(">I", zlib.crc32(message))


@asynccontextmanager
async def listening(providers: Providers) -> AsyncIterator[str]:
    app = web.Application()
    app.add_routes(providers.routes())
    async with running(app) as url:
        yield url


def configuration(url: str) -> dict[str, Any]:
    models = [{"name": name, "model": f"{name}.m", "base_url": url, **entry} for name, entry in PROVIDERS.items()]
    return {
        "models": models,
        "runs": {"max_model_attempts": 2},
        "circuit_breaker": {"failure_threshold": 1000},
        "sandbox": {"provider": "host"},
        "title": {"enabled": False},
        "memory": {"enabled": False},
    }


class Sika:
    """A server's address, as `Browser` takes it."""

    def __init__(self, url: str) -> None:
        self.url = url


@asynccontextmanager
async def serving(folder: Path, url: str) -> AsyncIterator[Sika]:
    """Starts Sika in the environment of the providers."""
    config = folder / "config.yaml"
    config.write_text(yaml.safe_dump(configuration(url)))
    command = ("-c", MAIN, "serve", "--home", str(folder / "home"), "--config", str(config), "--port", "0")
    environment = certificates.environment()
    with (folder / "sika.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            str(PYTHON), *command, cwd=ROOT, env=environment, stdout=asyncio.subprocess.PIPE, stderr=log
        )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(START_SECONDS):
            while b"http" not in (line := await process.stdout.readline()):
                assert line, (folder / "sika.log").read_text()[-3000:]
        yield Sika(next(word for word in line.decode().split() if word.startswith("http")))
    finally:
        process.terminate()
        await process.wait()


async def run(client: Browser, server: Any, name: str) -> dict[str, Any]:
    """Returns what became of a run: its `status`, its `answers`, and the `error` and `reason` of its last failure."""
    thread = await client.thread(server)
    run_id = await client.run(server, thread, f"[[{name}]]", name.partition("-")[0])

    async def ended() -> bool:
        return await client.status(server, thread, run_id) not in ("pending", "running")

    await wait_for(ended)
    events = await client.log(server, thread)
    answers = [event["message"] for event in events if event["type"] == "model.completed"]
    failures = [event for event in events if event["type"] == "model.failed"]
    result: dict[str, Any] = {"status": await client.status(server, thread, run_id), "answers": answers}
    return result | (
        {"error": failures[-1]["text"], "reason": failures[-1].get("reason", "generic")} if failures else {}
    )


@pytest.mark.long
async def test_every_answer_is_one_or_says_what_the_provider_said(tmp_path: Path) -> None:
    providers = Providers()
    async with listening(providers) as url, serving(tmp_path, url) as server, browser() as client:
        names = [*NAMES, *RETRIED]
        results = dict(zip(names, await asyncio.gather(*(run(client, server, name) for name in names)), strict=True))
    problems = [
        f"{name}: {text}" for name in names for text in problems_of(name, results[name], providers.requests[name])
    ]
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("provider", ["anthropic", "google"])
async def test_a_first_configuration_is_tried_and_written(provider: str, tmp_path: Path) -> None:
    async with listening(Providers()) as url:
        command = ("-c", MAIN, "init", "--provider", provider, "--base-url", url, "--key-stdin")
        pipe = asyncio.subprocess.PIPE
        environment = {**certificates.environment(), "PYTHONPATH": str(ROOT)}
        process = await asyncio.create_subprocess_exec(
            str(PYTHON),
            *command,
            cwd=tmp_path,
            env=environment,
            stdin=pipe,
            stdout=pipe,
            stderr=asyncio.subprocess.STDOUT,
        )
        shown, _ = await process.communicate(f"key-of-{provider}\n".encode())
    assert process.returncode == 0, shown.decode()
    [model] = yaml.safe_load((tmp_path / "config.yaml").read_text())["models"]
    assert (model["use"], model["base_url"]) == (PROVIDERS[provider]["use"], url)
    assert f"key-of-{provider}" in (tmp_path / ".env").read_text()


def problems_of(name: str, result: Mapping[str, Any], requests: list[Any]) -> Iterator[str]:
    """Yields what of a run is not as the case says."""
    case = case_of(name)
    if "error" in case:
        if case["error"] not in result["error"] or case["reason"] != result["reason"]:
            yield f"expected {case['reason']}: {case['error']}, got {result['reason']}: {result['error']}"
        if name.endswith(ONCE):
            yield from answer_problems(CASES[name.partition("-")[0]]["text"], result)
        elif (result["status"], result["answers"]) != ("error", []):
            yield f"ended with {result['status']} and {result['answers']}"
        attempts = 2 if case["reason"] in ("transient", "busy") else 1
        if len(requests) != attempts:
            yield f"{len(requests)} requests instead of {attempts}"
        return
    yield from answer_problems(case, result)
    again = json.dumps(requests[1]) if len(requests) > 1 else ""
    for key, value in case.get("sent_again", {}).items():
        if json.dumps({key: value})[1:-1] not in again:
            yield f"{key} is not sent again: {again}"


def answer_problems(case: Case, result: Mapping[str, Any]) -> Iterator[str]:
    answers = result["answers"]
    first: Case = answers[0] if answers else {"content": "", "additional_kwargs": {}}
    usage = first.get("usage_metadata") or {}
    parts = {
        "calls": [[call["name"], call["args"]] for call in first.get("tool_calls", ())],
        "reasoning": first["additional_kwargs"].get("reasoning_content"),
        "tokens": [usage.get("input_tokens"), usage.get("output_tokens")],
    }
    for part, value in parts.items():
        if part in case and value != case[part]:
            yield f"{part}: expected {case[part]}, got {value}"
    if case.get("text", "") not in text_of(first["content"]):
        yield f"text: expected {case['text']!r}, got {first['content']!r}"
    if result["status"] != "success":
        yield f"ended with {result['status']}"

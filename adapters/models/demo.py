"""The built-in demo model: no network, no thought, but it streams and really calls tools.

It is used when no model is configured, so that a fresh installation can be tried at once. It has fixed phrases
(`HELP`), each with a procedure: a generator that yields tool calls, is sent their results, and returns the answer. The
next step results from replaying the procedure over the results in the message history: the model has no state and goes
on correctly after a restart. Streaming, tool binding and `plan` are deterministic.
"""

from __future__ import annotations

import asyncio
import json
import re
import textwrap
import time
from collections.abc import AsyncIterator, Callable, Collection, Generator, Iterator, Sequence
from typing import Any, NamedTuple

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage, ToolMessage
from langchain_core.messages.ai import UsageMetadata
from langchain_core.messages.tool import ToolCallChunk, tool_call, tool_call_chunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable
from langchain_core.utils.function_calling import convert_to_openai_tool

WORKSPACE = "/mnt/user-data/workspace"
REPORT = "/mnt/user-data/outputs/report.md"
PLANETS = "/mnt/user-data/outputs/planets.csv"
"""Equatorial diameters in km (NASA, Planetary Fact Sheet)."""
CHART = "/mnt/user-data/outputs/planets.svg"
LABEL = (
    "\n\n---\n*This is Sika's built-in demo model: it only knows a few phrases. "
    "To use a real model, add one under `models:` in config.yaml.*"
)
BROKEN_LABEL = (
    "\n\n---\n*This is Sika's built-in demo model, because config.yaml cannot be read as it is: "
    "`sika doctor` and the server's log say where.*"
)
HELP = """Hello! I can show you how Sika works, offline. Try one of these:

- list the files
- run: uname -a
- write Hello to hello.txt
- read hello.txt
- draw a chart of the planets
- make a table of the planets
- research otters
- analyse data.csv"""


class Call(NamedTuple):
    """A tool call of a procedure, and a text for the user meanwhile."""

    says: str
    tool: str
    args: dict[str, Any]


Procedure = Generator[Call, str, str]
"""Generator that yields calls, is sent their results, and returns the answer."""

Tools = Collection[str]
"""Names of the bound tools."""


class ToolFailed(Exception):
    """The failure of a call, raised in the procedure. One that does not catch it ends there; the text is the answer."""

    def __init__(self, tool: str, error: str) -> None:
        super().__init__(f"The tool `{tool}` failed, so I stopped there:\n\n{_fenced(error)}")
        self.error = error


class DemoChatModel(BaseChatModel):
    """A chat model that needs no key. `delay` is the pause before each streamed word, in seconds; `label` stands below
    each answer.
    """

    delay: float = 0.01
    label: str = LABEL

    @property
    def _llm_type(self) -> str:
        return "sika-demo"

    def bind_tools(
        self, tools: Sequence[Any], *, tool_choice: str | None = None, **kwargs: Any
    ) -> Runnable[LanguageModelInput, AIMessage]:
        """Binds tools to the model. It decides itself when to call them: `tool_choice` is accepted and ignored."""
        return self.bind(tools=[convert_to_openai_tool(tool) for tool in tools], **kwargs)

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=plan(messages, _bound(kwargs), self.label))])

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        for chunk in _chunks(plan(messages, _bound(kwargs), self.label)):
            time.sleep(self.delay)
            if run_manager:
                run_manager.on_llm_new_token(chunk.text, chunk=chunk)
            yield chunk

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        for chunk in _chunks(plan(messages, _bound(kwargs), self.label)):
            await asyncio.sleep(self.delay)
            if run_manager:
                await run_manager.on_llm_new_token(chunk.text, chunk=chunk)
            yield chunk


def plan(messages: Sequence[BaseMessage], tools: Tools, label: str = LABEL) -> AIMessage:
    """Returns the next message of the model: the next step of the user's procedure, or the answer."""
    question, messages_since = _question(messages)
    try:
        step = _replay(_procedure(question, tools), _results(messages_since))
    except ToolFailed as failure:
        step = str(failure)
    if isinstance(step, str) and (paths := _reminded(messages_since)):
        step = Call("", "present_files", {"filepaths": paths})
    if isinstance(step, Call) and step.tool not in tools:
        step = f"For this I need the tool `{step.tool}`, which is not available here."
    if isinstance(step, Call):
        calls = [tool_call(name=step.tool, args=step.args, id=_call_id(messages))]
        return AIMessage(step.says, tool_calls=calls, usage_metadata=_usage(messages, step.says, step.args))
    answer = step + label
    return AIMessage(answer, usage_metadata=_usage(messages, answer, {}))


def _replay(procedure: Procedure, results: list[tuple[str, str, bool]]) -> Call | str:
    """Runs a procedure over the results so far. Returns the first call without a result, or the answer."""
    rest = list(results)
    try:
        step = next(procedure)
        while rest:
            name, text, failed = rest.pop(0)
            step = procedure.throw(ToolFailed(name, text)) if failed else procedure.send(text)
    except StopIteration as end:
        return "Here it is." if rest else str(end.value)  # what came later was asked for by a reminder
    return step


# -- history -----------------------------------------------------------------------------------------------------------


def _question(messages: Sequence[BaseMessage]) -> tuple[str, Sequence[BaseMessage]]:
    """Returns the user's last text (without the server's reminders and upload lists), and the messages after it."""
    for position in range(len(messages) - 1, -1, -1):
        message = messages[position]
        if isinstance(message, HumanMessage) and not message.additional_kwargs.get("hide_from_ui"):
            text = re.sub(r"<(uploaded_files|system-reminder)>.*?</\1>", "", message.text, flags=re.DOTALL).strip()
            if text:
                return text, messages[position + 1 :]
    return "", []


def _reminded(messages: Sequence[BaseMessage]) -> list[str]:
    """Returns the files that a reminder of the server lists, if it is the last message: they were not shown."""
    note = messages[-1] if messages else None
    text = note.text if isinstance(note, HumanMessage) else ""
    return re.findall(r"^- (/mnt/user-data/outputs/.+)$", text, flags=re.MULTILINE)


def _results(messages: Sequence[BaseMessage]) -> list[tuple[str, str, bool]]:
    """Returns tool name, result and failure for each of the model's calls that was answered."""
    answers = {message.tool_call_id: message for message in messages if isinstance(message, ToolMessage)}
    calls = [call for message in messages if isinstance(message, AIMessage) for call in message.tool_calls]
    pairs = [(call["name"], answers[call["id"]]) for call in calls if call["id"] in answers]
    return [(name, answer.text, _failed(answer)) for name, answer in pairs]


def _failed(answer: ToolMessage) -> bool:
    return answer.status == "error" or re.match(r"Error\b", answer.text) is not None


def _call_id(messages: Sequence[BaseMessage]) -> str:
    """Returns an id from the count of the model's messages, higher than those in sight (old ones may be removed)."""
    spoken = [message for message in messages if isinstance(message, AIMessage)]
    ids = [call["id"] or "" for message in spoken for call in message.tool_calls]
    used = [int(match[1]) for call in ids if (match := re.fullmatch(r"demo_call_(\d+)", call))]
    return f"demo_call_{max(len(spoken), *(number + 1 for number in used), 0)}"


def _usage(messages: Sequence[BaseMessage], text: str, args: dict[str, Any]) -> UsageMetadata:
    """Returns the usage, with words for tokens."""
    input = sum(len(message.text.split()) for message in messages)
    output = len(text.split()) + sum(len(str(value).split()) for value in args.values())
    return UsageMetadata(input_tokens=input, output_tokens=output, total_tokens=input + output)


# -- phrases -----------------------------------------------------------------------------------------------------------


def _procedure(question: str, tools: Tools) -> Procedure:
    """Returns the procedure of the first phrase in the text."""
    matches = [(match, procedure) for pattern, procedure in _PHRASES if (match := pattern.search(question))]
    if not matches:
        return _greet()
    match, procedure = min(matches, key=lambda pair: pair[0].start())
    return procedure(match, tools)


def _greet() -> Procedure:
    yield from ()
    return HELP


def _list(match: re.Match[str], tools: Tools) -> Procedure:
    path = _place(match["path"] or WORKSPACE)
    listing = yield Call("I will look.", "ls", {"description": "List the files", "path": path})
    return f"In `{path}`:\n\n{_fenced(listing)}"


def _run(match: re.Match[str], tools: Tools) -> Procedure:
    command = match["quoted"] or match["plain"].strip()
    output = yield Call("I will run it.", "bash", {"description": "Run the user's command", "command": command})
    return f"`{command}` printed:\n\n{_fenced(output)}"


def _write(match: re.Match[str], tools: Tools) -> Procedure:
    path, text = _place(match["path"]), match["text"].strip().strip("\"'`“”")
    yield from _saved("I will write it.", "Write what the user gave", path, text)
    return f"I wrote {len(text.split())} word(s) to `{path}`."


def _read(match: re.Match[str], tools: Tools) -> Procedure:
    path = _place(match["path"])
    text = yield Call("I will read it.", "read_file", {"description": "Read the file", "path": path})
    return f"`{path}` contains:\n\n{_fenced(text)}"


def _research(match: re.Match[str], tools: Tools) -> Procedure:
    topic = match["topic"].strip().rstrip(".!?")
    steps = [f"Frame the question: {topic}", "Write the report", "Summarise for the user"]
    if "write_todos" in tools:
        yield _todos("I will make a plan first.", steps, done=0)
        yield _todos("The question is clear.", steps, done=1)
    yield from _saved("Now I write the report.", f"Write the report on {topic}", REPORT, _essay(topic))
    if "write_todos" in tools:
        yield _todos("The report is written.", steps, done=3)
    if "present_files" in tools:
        yield Call("Here it is.", "present_files", {"filepaths": [REPORT]})
    return (
        f"I finished a report on {topic}: `{REPORT}`. I have no sources offline, so it only shows the way of working."
    )


def _analyse(match: re.Match[str], tools: Tools) -> Procedure:
    path, script = match["path"].strip("\"'`"), f"{WORKSPACE}/analyse.py"
    command = f"python3 {script}"
    yield from _saved("I will write a script for this.", "Write the analysis script", script, _script(path))
    figures = yield Call("Now I run it.", "bash", {"description": f"Analyse {path}", "command": command})
    if re.search(r"^Exit Code: ", figures, flags=re.MULTILINE):
        raise ToolFailed("bash", figures)
    report = f"# Analysis of {path}\n\n{figures.strip()}\n"
    yield from _saved("I put the numbers into a report.", "Write the report", REPORT, report)
    if "present_files" in tools:
        yield Call("Here it is.", "present_files", {"filepaths": [REPORT]})
    return f"{figures.strip()}\n\nThe same is in `{REPORT}`."


def _chart(match: re.Match[str], tools: Tools) -> Procedure:
    diameters = yield from _planets()
    drawing = _bars("Diameters of the planets, km", diameters)
    yield from _saved("Now I draw them.", "Draw the chart", CHART, drawing)
    if "present_files" in tools:
        yield Call("Here they are.", "present_files", {"filepaths": [CHART, PLANETS]})
    widest = max(diameters, key=lambda row: row[1])[0]
    return f"![Diameters of the planets]({CHART})\n\n{widest} is the widest. The chart is `{CHART}`."


def _table(match: re.Match[str], tools: Tools) -> Procedure:
    diameters = yield from _planets()
    if "present_files" in tools:
        yield Call("Here it is.", "present_files", {"filepaths": [PLANETS]})
    earth = dict(diameters)["Earth"]
    rows = "\n".join(f"| {name} | {km:,.0f} | {km / earth:.2f} |" for name, km in diameters)
    return f"| planet | diameter, km | Earth = 1 |\n|---|---:|---:|\n{rows}\n\nThe numbers are in `{PLANETS}`."


def _planets() -> Generator[Call, str, list[tuple[str, float]]]:
    """Writes the numbers to a file, and returns what the file then has."""
    yield from _saved("I note the numbers.", "Write down the diameters", PLANETS, _DIAMETERS)
    text = yield Call("I read them again.", "read_file", {"description": "Read the diameters", "path": PLANETS})
    rows = re.findall(r"([A-Z][a-z]+),(\d+)\b", text)
    if not rows:
        raise ToolFailed("read_file", text)
    return [(name, float(km)) for name, km in rows]


_PHRASES: list[tuple[re.Pattern[str], Callable[[re.Match[str], Tools], Procedure]]] = [
    (re.compile(pattern, re.IGNORECASE | re.DOTALL), procedure)
    for pattern, procedure in [
        (r"\brun(?::\s*|\s+(?=`))(?:`(?P<quoted>[^`]+)`|(?P<plain>.+))", _run),
        (r"\b(?:draw|chart|plot)\b[^\n]*\bplanets\b", _chart),
        (r"\btable\b[^\n]*\bplanets\b", _table),
        (r"\bresearch:?\s+(?P<topic>[^\n]+)", _research),
        (r"\banaly[sz]e\s+(?:the\s+)?(?:file\s+)?(?P<path>[^\n]+?\.csv\b[\"'`]?)", _analyse),
        (r"\bwrite\s+(?P<text>.+)\s+to\s+(?:the\s+)?(?:file\s+)?(?P<path>\S+)", _write),
        (r"\bread\s+(?:the\s+)?(?:file\s+)?(?P<path>\S+)", _read),
        (r"\blist\s+(?:all\s+)?(?:the\s+|my\s+)?files(?:\s+in\s+(?P<path>\S+))?", _list),
    ]
]


# -- the pieces of procedures ------------------------------------------------------------------------------------------


def _write_call(says: str, description: str, path: str, content: str) -> Call:
    return Call(says, "write_file", {"description": description, "path": path, "content": content})


def _saved(says: str, description: str, path: str, content: str) -> Procedure:
    """Writes a file. One that is there already, as after "Try again", is read first, as the tool asks."""
    try:
        return (yield _write_call(says, description, path, content))
    except ToolFailed as failure:
        if "read_file" not in failure.error:
            raise
    yield Call("It is there already. I read it first.", "read_file", {"description": "Read the file", "path": path})
    return (yield _write_call("Now I write it anew.", description, path, content))


def _todos(says: str, steps: list[str], *, done: int) -> Call:
    status = ["completed"] * done + ["in_progress"] + ["pending"] * len(steps)
    return Call(
        says, "write_todos", {"todos": [{"content": c, "status": s} for c, s in zip(steps, status, strict=False)]}
    )


def _place(path: str) -> str:
    """Returns the absolute path; relative paths start in the workspace."""
    path = path.strip("\"'`“”").rstrip(".,;!?")
    return path if path.startswith("/") else f"{WORKSPACE}/{path}"


def _fenced(text: str) -> str:
    fence = "````" if "```" in text else "```"
    return f"{fence}\n{text.rstrip()}\n{fence}"


def _essay(topic: str) -> str:
    return (
        f"# {topic[:1].upper()}{topic[1:]}\n\n## Question\n\nWhat should one know about {topic}?\n\n"
        "## Method\n\nThe demo model works offline; a real model would search, read and compare sources here.\n\n"
        f"## Next steps\n\n1. Configure a model in config.yaml.\n2. Ask again: research {topic}\n"
    )


_DIAMETERS = """planet,km
Mercury,4879
Venus,12104
Earth,12756
Mars,6792
Jupiter,142984
Saturn,120536
Uranus,51118
Neptune,49528
"""


def _bars(title: str, rows: Sequence[tuple[str, float]]) -> str:
    """Returns a chart of bars as SVG: a row for each name."""
    longest, height = max(value for _, value in rows), 30 * len(rows) + 50
    bars = [
        f'<text x="90" y="{y}" text-anchor="end">{name}</text>'
        f'<rect x="100" y="{y - 15}" width="{400 * value / longest:.1f}" height="20" rx="3" fill="#2f7d6b"/>'
        f'<text x="{108 + 400 * value / longest:.1f}" y="{y}">{value:,.0f}</text>'
        for y, (name, value) in zip(range(65, height, 30), rows, strict=False)
    ]
    lines = "\n".join(bars)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 600 {height}" font-family="sans-serif" font-size="14">\n'
        f'<rect width="600" height="{height}" fill="#fff"/>\n'
        f'<text x="20" y="28" font-size="17">{title}</text>\n{lines}\n</svg>\n'
    )


def _script(path: str) -> str:
    """Returns a program for the sandbox: statistics of the numeric columns of a CSV file, as a Markdown table."""
    return _ANALYSIS.replace("PATH", json.dumps(path))


_ANALYSIS = textwrap.dedent('''\
    """Statistics of the numeric columns of a CSV file."""

    import csv
    import pathlib
    import statistics
    import sys

    path = pathlib.Path(PATH)
    if not path.is_absolute():
        folders = [pathlib.Path("/mnt/user-data") / name for name in ("uploads", "workspace", "outputs")]
        path = next((folder / path for folder in folders if (folder / path).exists()), folders[0] / path)
    if not path.exists():
        sys.exit(f"there is no file {path}")
    with path.open(newline="", encoding="utf-8-sig") as file:
        rows = list(csv.DictReader(file))


    def number(text):
        try:
            return float(text)
        except (TypeError, ValueError):
            return None


    print(f"{len(rows)} rows\\n")
    print("| column | count | min | mean | median | max |")
    print("|---|---|---|---|---|---|")
    for column in rows[0] if rows else []:
        values = [value for row in rows if (value := number(row[column])) is not None]
        if values:
            shown = (min(values), statistics.fmean(values), statistics.median(values), max(values))
            print(f"| {column} | {len(values)} | " + " | ".join(f"{value:.6g}" for value in shown) + " |")
''')


# -- streaming ---------------------------------------------------------------------------------------------------------


def _bound(kwargs: dict[str, Any]) -> Tools:
    return {tool["function"]["name"] for tool in kwargs.get("tools") or []}


def _chunks(message: AIMessage) -> Iterator[ChatGenerationChunk]:
    """Yields the message word by word, then its tool calls, then its usage."""
    for word in re.findall(r"\S+\s*|\s+", message.text):
        yield ChatGenerationChunk(message=AIMessageChunk(content=word))
    for index, call in enumerate(message.tool_calls):
        for chunk in _call_chunks(index, call["id"], call["name"], json.dumps(call["args"])):
            yield ChatGenerationChunk(message=AIMessageChunk(content="", tool_call_chunks=[chunk]))
    last = AIMessageChunk(content="", usage_metadata=message.usage_metadata, chunk_position="last")
    yield ChatGenerationChunk(message=last)


def _call_chunks(index: int, id: str | None, name: str, args: str) -> Iterator[ToolCallChunk]:
    yield tool_call_chunk(index=index, id=id, name=name, args="")
    for word in re.findall(r"\S+\s*", args):
        yield tool_call_chunk(index=index, args=word)

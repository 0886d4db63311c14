"""The demo model: its phrases, its steps, and that it works in a real agent loop."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage, ToolMessage
from langchain_core.tools import StructuredTool

from adapters.models.configured import Configured
from adapters.models.demo import BROKEN_LABEL, LABEL, REPORT, WORKSPACE, DemoChatModel, plan
from core.config.load import ConfigSource

pytestmark = pytest.mark.anyio

ALL = ["ls", "bash", "read_file", "write_file", "write_todos", "present_files"]
Answer = Callable[[str, dict[str, Any]], str]


def ok(name: str, args: dict[str, Any]) -> str:
    return "OK"


def converse(
    asked: str, tools: list[str] = ALL, answer: Answer = ok, history: list[BaseMessage] | None = None
) -> list[BaseMessage]:
    """The whole turn, with `answer` in the place of the tools."""
    messages: list[BaseMessage] = [*(history or []), HumanMessage(asked)]
    while True:
        messages.append(reply := plan(messages, tools))
        if not reply.tool_calls:
            return messages
        for call in reply.tool_calls:
            messages.append(ToolMessage(answer(call["name"], call["args"]), tool_call_id=call["id"]))


def calls(messages: list[BaseMessage]) -> list[tuple[str, dict[str, Any]]]:
    return [(c["name"], c["args"]) for m in messages if isinstance(m, AIMessage) for c in m.tool_calls]


def final(messages: list[BaseMessage]) -> str:
    return messages[-1].text


@pytest.mark.parametrize(
    ("asked", "tool", "args"),
    [
        ("list the files", "ls", {"path": WORKSPACE}),
        ("Please list files in /mnt/skills.", "ls", {"path": "/mnt/skills"}),
        ("run: echo hi | wc -c", "bash", {"command": "echo hi | wc -c"}),
        ("Can you run `ls -l` for me?", "bash", {"command": "ls -l"}),
        ("run: cat <<E\na\nE", "bash", {"command": "cat <<E\na\nE"}),
        (
            "write 'Hello to you' to hello.txt",
            "write_file",
            {"path": f"{WORKSPACE}/hello.txt", "content": "Hello to you"},
        ),
        ("read the file /mnt/user-data/uploads/a.md.", "read_file", {"path": "/mnt/user-data/uploads/a.md"}),
        ("READ notes.txt", "read_file", {"path": f"{WORKSPACE}/notes.txt"}),
    ],
)
def test_simple_words_call_one_tool(asked: str, tool: str, args: dict[str, str]) -> None:
    messages = converse(asked, answer=lambda *_: "result-text")
    [(name, given)] = calls(messages)
    assert name == tool
    assert next(iter(given)) == "description"
    assert {key: value for key, value in given.items() if key != "description"} == args
    assert tool == "write_file" or "result-text" in final(messages)
    assert final(messages).endswith(LABEL)


@pytest.mark.parametrize(
    "asked",
    [
        "draw a chart of the planets",
        "make a table of the planets",
        "research otters",
        "write Hello to hello.txt",
        "analyse data.csv",
    ],
)
def test_files_that_are_there_are_read_and_written_anew(asked: str) -> None:
    """As a tool asks that knows the file and not the conversation, once for each file."""
    seen: set[str] = set()

    def answer(name: str, args: dict[str, Any]) -> str:
        if name == "read_file":
            seen.add(args["path"])
        if name == "write_file" and args["path"] not in seen:
            return f"Error: {args['path']} exists and was not read in this conversation; read it with read_file first."
        return planets(name, args)

    first, again = converse(asked, answer=planets), converse(asked, answer=answer)
    assert final(again) == final(first)
    refused = [args["path"] for name, args in calls(first) if name == "write_file"]
    assert len(calls(again)) == len(calls(first)) + 2 * len(set(refused))


def test_a_file_that_cannot_be_written_ends_the_answer() -> None:
    messages = converse("write Hello to hello.txt", answer=lambda *_: "Error: the disk is full")
    assert len(calls(messages)) == 1
    assert "the disk is full" in final(messages)


def planets(name: str, args: dict[str, Any]) -> str:
    return "planet,km\nEarth,12756\nMars,6792\n" if name == "read_file" else "OK"


def test_a_chart_is_drawn_of_the_numbers_that_were_read() -> None:
    messages = converse("draw a chart of the planets", answer=planets)
    assert [name for name, _ in calls(messages)] == ["write_file", "read_file", "write_file", "present_files"]
    chart = calls(messages)[2][1]["content"]
    assert ElementTree.fromstring(chart).tag.endswith("svg")
    assert (">12,756<" in chart, ">6,792<" in chart, "Venus" in chart) == (True, True, False)
    assert "![Diameters of the planets](/mnt/user-data/outputs/planets.svg)" in final(messages)
    assert "Earth is the widest" in final(messages)


def test_a_table_is_made_of_the_numbers_that_were_read() -> None:
    messages = converse("make a table of the planets", answer=planets)
    assert "| Mars | 6,792 | 0.53 |" in final(messages)
    assert "Venus" not in final(messages)
    assert "failed" in final(converse("make a table of the planets", answer=lambda *_: "nothing"))


def test_the_first_phrase_wins() -> None:
    assert calls(converse("research how to list the files"))[0][0] == "write_todos"


@pytest.mark.parametrize("asked", ["hello", "", "what can you do?"])
def test_anything_else_is_greeted(asked: str) -> None:
    messages = converse(asked)
    assert not calls(messages)
    assert "list the files" in final(messages)
    assert "config.yaml" in final(messages)


def test_research_keeps_its_plan_up_to_date() -> None:
    messages = converse("research otters")
    done = calls(messages)
    assert [name for name, _ in done] == ["write_todos", "write_todos", "write_file", "write_todos", "present_files"]
    states = [[todo["status"] for todo in args["todos"]] for name, args in done if name == "write_todos"]
    assert states == [
        ["in_progress", "pending", "pending"],
        ["completed", "in_progress", "pending"],
        ["completed", "completed", "completed"],
    ]
    assert done[2][1]["path"] == REPORT
    assert "otters" in done[2][1]["content"]
    assert REPORT in final(messages)


def test_research_without_plan_mode() -> None:
    assert [name for name, _ in calls(converse("research otters", ["write_file"]))] == ["write_file"]


def test_a_missing_tool_is_named() -> None:
    messages = converse("run: ls", ["ls"])
    assert not calls(messages)
    assert "`bash`" in final(messages)


def test_a_failure_ends_the_procedure() -> None:
    messages = converse("research otters", answer=lambda name, _: "Error: disk full" if name == "write_file" else "OK")
    assert calls(messages)[-1][0] == "write_file"
    assert "`write_file` failed" in final(messages)
    assert "disk full" in final(messages)


def test_an_error_status_is_a_failure() -> None:
    messages: list[BaseMessage] = [HumanMessage("run: ls")]
    reply = plan(messages, ALL)
    result = ToolMessage("no sandbox", tool_call_id=reply.tool_calls[0]["id"], status="error")
    assert "no sandbox" in plan([*messages, reply, result], ALL).text


def analyse(folder: Path) -> Answer:
    """Tools on a folder in the place of /mnt/user-data."""

    def answer(name: str, args: dict[str, Any]) -> str:
        if name == "write_file":
            path = Path(args["path"].replace("/mnt/user-data", str(folder)))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(args["content"].replace("/mnt/user-data", str(folder)))
        if name == "bash":
            command = args["command"].replace("/mnt/user-data", str(folder)).replace("python3", sys.executable)
            ran = subprocess.run(command.split(), capture_output=True, text=True, check=False, env=dict(os.environ))
            return ran.stdout + (f"Std Error:\n{ran.stderr}\nExit Code: {ran.returncode}" if ran.returncode else "")
        return "OK"

    return answer


def test_analysis_really_computes(tmp_path: Path) -> None:
    (tmp_path / "uploads").mkdir()
    with (tmp_path / "uploads" / "sales data.csv").open("w", newline="") as file:
        csv.writer(file).writerows(
            [["city", "price", "n"], ["Accra", "1.5", "2"], ["Kumasi", "", "4"], ["Ho", "4.5", "9"]]
        )
    messages = converse("analyse sales data.csv", answer=analyse(tmp_path))
    assert [name for name, _ in calls(messages)] == ["write_file", "bash", "write_file", "present_files"]
    for text in (final(messages), (tmp_path / "outputs" / "report.md").read_text()):
        assert "3 rows" in text
        assert "| price | 2 | 1.5 | 3 | 3 | 4.5 |" in text
        assert "| n | 3 | 2 | 5 | 4 | 9 |" in text
        assert "city" not in text


def test_analysis_of_a_missing_file_says_so(tmp_path: Path) -> None:
    messages = converse("analyze nothing.csv", answer=analyse(tmp_path))
    assert [name for name, _ in calls(messages)] == ["write_file", "bash"]
    assert "there is no file" in final(messages)


def test_call_ids_are_deterministic_and_unique() -> None:
    first = converse("research otters")
    both = converse("research birds", history=first)
    ids = [call["id"] for message in both if isinstance(message, AIMessage) for call in message.tool_calls]
    assert len(set(ids)) == len(ids) == 10
    assert converse("research birds", history=first) == both
    compacted = both[-4:]
    seen = {call["id"] for message in compacted if isinstance(message, AIMessage) for call in message.tool_calls}
    later = converse("research fish", history=compacted)[len(compacted) :]
    assert not seen & {call["id"] for message in later if isinstance(message, AIMessage) for call in message.tool_calls}


def test_inserted_messages_are_not_questions() -> None:
    hidden = HumanMessage("<system-reminder>read x.txt</system-reminder>", additional_kwargs={"hide_from_ui": True})
    asked = HumanMessage("<uploaded_files>\n- a.csv\nread y.txt</uploaded_files>\n\nlist the files")
    reply = plan([hidden, asked], ALL)
    assert reply.tool_calls[0]["name"] == "ls"
    result = ToolMessage("a.csv", tool_call_id=reply.tool_calls[0]["id"])
    assert "a.csv" in plan([hidden, asked, reply, result, hidden], ALL).text


async def test_streams_word_by_word_the_same_message() -> None:
    model = DemoChatModel(delay=0)
    chunks = [chunk async for chunk in model.astream([HumanMessage("hello")])]
    whole = await model.ainvoke([HumanMessage("hello")])
    assert len(chunks) > 30
    assert "".join(chunk.text for chunk in chunks) == whole.text == "".join(c.text for c in model.stream("hello"))
    merged = sum(chunks[1:], chunks[0])
    assert isinstance(merged, AIMessageChunk)
    assert merged.usage_metadata == whole.usage_metadata
    assert whole.usage_metadata == {
        "input_tokens": 1,
        "output_tokens": len(whole.text.split()),
        "total_tokens": 1 + len(whole.text.split()),
    }


async def test_streams_tool_calls() -> None:
    def ls(description: str, path: str) -> str:
        """List."""
        return "a.txt"

    model = DemoChatModel(delay=0).bind_tools([StructuredTool.from_function(ls)])
    chunks = [chunk async for chunk in model.astream([HumanMessage("list the files")])]
    merged: Any = sum(chunks[1:], chunks[0])
    assert merged.tool_calls == plan([HumanMessage("list the files")], ["ls"]).tool_calls
    assert len(merged.tool_call_chunks) == 1


async def test_in_a_real_agent_loop() -> None:
    def bash(description: str, command: str) -> str:
        """Run."""
        return f"ran {command}"

    agent: Any = create_agent(DemoChatModel(delay=0), tools=[bash])
    state = await agent.ainvoke({"messages": [HumanMessage("run: date")]})
    assert [message.type for message in state["messages"]] == ["human", "ai", "tool", "ai"]
    assert "ran date" in state["messages"][-1].text


def test_the_label_is_right_when_the_configuration_cannot_be_read(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("")
    models = Configured(ConfigSource(file))

    def answer() -> str:
        model = models.get("demo", thinking=False, reasoning_effort=None)
        return model.invoke("hello").text

    assert answer().endswith(LABEL)
    file.write_text("models: [{name: main, model: [}]")
    assert answer().endswith(BROKEN_LABEL)
    assert "add one under" not in answer()

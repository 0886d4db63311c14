"""What a person sees of a turn, frame by frame."""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from channels.client.events import StreamEvent, Translator
from channels.client.sse import Frame
from channels.terminal.chat.files import host_path
from channels.terminal.chat.render import PROGRESS_LINES, Transcript
from channels.terminal.console.screen import Screen

HUMAN = {"type": "human", "id": "h", "content": "hi"}
Frames = list[tuple[str, Any]]


def shown(frames: Frames) -> str:
    """What is written, by lines, where there is no terminal."""
    out = io.StringIO()
    screen, translator = Screen(out, io.StringIO()), Translator()
    transcript = Transcript(screen)
    for name, data in frames:
        if (name, data) == AGAIN:
            transcript.reconnected()
        for event in translator.take(Frame(name, data)):
            transcript.feed(event)
    screen.settle()
    return out.getvalue()


def state(*messages: Any, **values: Any) -> tuple[str, Any]:
    return "values", {"messages": [HUMAN, *messages], **values}


def delta(text: str, identity: str = "m", **fields: Any) -> tuple[str, Any]:
    return "messages", [
        {"type": "AIMessageChunk", "id": identity, "content": text, **fields},
        {"langgraph_node": "model"},
    ]


def call(args: dict[str, Any], *, identity: str = "c", name: str = "bash") -> tuple[str, Any]:
    calls = [{"id": identity, "name": name, "args": args}]
    return "updates", {"model": {"messages": [{"type": "ai", "id": "m", "content": "", "tool_calls": calls}]}}


def result(content: str, identity: str = "c", name: str = "bash", **fields: Any) -> tuple[str, Any]:
    message = {
        "type": "tool",
        "id": f"t-{identity}",
        "tool_call_id": identity,
        "name": name,
        "content": content,
        **fields,
    }
    return "messages", [message, {}]


def progress(text: str, identity: str = "c", name: str = "bash") -> tuple[str, Any]:
    return "custom", {"type": "tool_progress", "tool_call_id": identity, "name": name, "text": text}


AGAIN = ("reconnected", None)
STAGE = ("custom", {"type": "tool_progress", "tool_call_id": "c", "name": "bash", "text": "1 of 2\n", "stage": True})
BASH = call({"description": "count", "command": "seq 2"})
TODOS = [{"content": "one", "status": "completed"}, {"content": "two", "status": "in_progress"}, {"content": "three"}]

FIELDS = [
    {"name": "size", "label": "Size", "required": True, "options": [{"label": "S"}, {"label": "L\x1b[1m"}]},
    {"name": "name", "label": "Name"},
]

TABLE: list[tuple[str, Frames, str]] = [
    ("text", [state(), delta("Hel"), delta("lo")], "Hello\n"),
    ("nothing", [("metadata", {"run_id": "r"}), state(), ("end", None)], ""),
    ("blocks", [state(), delta([{"type": "text", "text": "Hi"}])], "Hi\n"),  # type: ignore[arg-type]
    ("old messages", [state({"type": "ai", "id": "old", "content": "before"}), delta("new")], "new\n"),
    ("missed text", [state(), delta("Hel"), state({"type": "ai", "id": "m", "content": "Hello"})], "Hello\n"),
    ("only in values", [state(), state({"type": "ai", "id": "m", "content": "Hello"})], "Hello\n"),
    ("not twice", [state(), delta("Hi"), state({"type": "ai", "id": "m", "content": "Hi"})], "Hi\n"),
    ("two messages", [state(), delta("one", "a"), delta("two", "b")], "one\ntwo\n"),
    ("call", [state(), BASH], "▸ bash: count\n"),
    (
        "call in values only",
        [
            state(),
            state({"type": "ai", "id": "m", "content": "", "tool_calls": [{"id": "c", "name": "ls", "args": {}}]}),
        ],
        "▸ ls\n",
    ),
    ("call after text", [state(), delta("I look."), BASH], "I look.\n▸ bash: count\n"),
    ("result", [state(), BASH, result("1\n2")], "▸ bash: count\n    1\n    2\n"),
    (
        "long result",
        [state(), BASH, result("\n".join("abcdefgh"))],
        "▸ bash: count\n" + "".join(f"    {c}\n" for c in "abcdef") + "    … 2 more lines\n",
    ),
    ("progress", [state(), BASH, progress("1\n"), progress("2"), progress("3\n")], "▸ bash: count\n    1\n    23\n"),
    ("progress is not repeated", [state(), BASH, progress("1\n"), result("1")], "▸ bash: count\n    1\n"),
    ("a stage is for the status line", [state(), BASH, STAGE, result("1")], "▸ bash: count\n    1\n"),
    ("half a line of progress", [state(), BASH, progress("50 %"), result("50 %")], "▸ bash: count\n    50 %\n"),
    (
        "failure after progress",
        [state(), BASH, progress("1\n"), result("Error: no", status="error")],
        "▸ bash: count\n    1\n    Error: no\n",
    ),
    (
        "progress from its beginning, after a break",
        [state(), BASH, progress("1\n2\n"), AGAIN, progress("1\n"), progress("2\n3\n"), progress("4\n")],
        "▸ bash: count\n    1\n    2\n    3\n    4\n",
    ),
    (
        "other progress, after a break",
        [state(), BASH, progress("line 1\n"), AGAIN, progress("line"), progress(" 2\n")],
        "▸ bash: count\n    line 1\n    line 2\n",
    ),
    (
        "paths",
        [state(), call({"filepaths": ["/mnt/a"]}, name="present_files")],
        "▸ present_files: /mnt/a\n",
    ),
    ("progress of an unknown call", [state(), progress("x\n")], "▸ bash\n    x\n"),
    ("todos", [state(), state(todos=TODOS)], "  ☑ one\n  ◐ two\n  ☐ three\n"),
    ("todos as they were", [state(todos=TODOS), state(todos=TODOS)], ""),
    (
        "todos without their tool",
        [state(), call({"todos": []}, name="write_todos"), result("Updated", name="write_todos")],
        "",
    ),
    (
        "question",
        [
            state(),
            call({"question": "?"}, name="ask_clarification"),
            result("A?\nB?", name="ask_clarification"),
            state(result("A?\nB?", name="ask_clarification")[1][0]),
        ],
        "A?\nB?\n",
    ),
    (
        "long question",
        [state(), state(result("\n".join("abcdefghij"), name="ask_clarification")[1][0])],
        "".join(f"{c}\n" for c in "abcdefghij"),
    ),
    (
        "question as a form",
        [
            state(),
            state(result("Which?", name="ask_clarification", artifact={"human_input": {"fields": FIELDS}})[1][0]),
        ],
        "Which?\n  - Size (one of): S | L\n  - Name (text, optional)\n",
    ),
    ("artifact", [state(), state(artifacts=["/mnt/x"])], "▸ artifact: /mnt/x\n"),
    ("artifact of before", [state(artifacts=["/mnt/x"]), state(artifacts=["/mnt/x"])], ""),
    (
        "retry",
        [("custom", {"type": "llm_retry", "attempt": 1, "max_attempts": 3, "wait_ms": 1500, "reason": "busy"})],
        "  The model did not answer: try 1 of 3, busy, again in 1.5 s\n",
    ),
    (
        "an event of a package",
        [("custom", {"type": "event", "event": "bell.rung", "name": "Bell rung", "text": "3 times \x1b[2Jby\nme"})],
        "▸ Bell rung: 3 times by me\n",
    ),
    (
        "subagents",
        [
            call({"subagent_type": "bash", "description": "study"}, identity="t", name="task"),
            call({"subagent_type": "general-purpose", "description": "look"}, identity="u", name="task"),
            ("custom", {"type": "task_started", "task_id": "t", "description": "study"}),
            ("custom", {"type": "task_running", "task_id": "t", "message": {"content": "I read"}}),
            ("custom", {"type": "task_failed", "task_id": "t", "error": "no"}),
            result("Task failed. Error: no", "t", "task", status="error"),
            result("Task Succeeded. Result: a\nb", "u", "task"),
        ],
        "▸ bash: study: Task failed. Error: no\n▸ general-purpose: look: done\n",
    ),
    ("unknown", [("updates", {"x": 1}), ("custom", {"type": "?"}), ("messages", [])], ""),
    ("escapes in text", [state(), delta("\x1b[2Jx\x1b]0;t\x07")], "x\n"),
    ("escapes in a call", [state(), call({"command": "\x1b[2Jls"}, name="b\x1b[1m")], "▸ b: ls\n"),
    ("escapes in progress", [state(), BASH, progress("a\rb\x1b[1A\n")], "▸ bash: count\n    ab\n"),
]


@pytest.mark.parametrize(("frames", "text"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_frames_as_text(frames: Frames, text: str) -> None:
    assert shown(frames) == text


def test_reading_the_same_frames_twice_gives_the_same() -> None:
    for _, frames, _ in TABLE:
        assert shown(frames) == shown(frames)


def test_progress_without_end_is_cut() -> None:
    lines = shown([state(), BASH, *(progress(f"{n}\n") for n in range(500))]).splitlines()
    assert len(lines) <= PROGRESS_LINES + 2
    assert lines[-1].strip() == "…"


CARD = {"human_input": {"options": [{"id": "option-1", "label": "red", "value": "red"}]}}
QUESTION = {**result("Red?", name="ask_clarification", artifact=CARD)[1][0]}


class Shown(NamedTuple):
    """A transcript, and what it wrote."""

    transcript: Transcript
    out: io.StringIO

    def feed(self, **values: Any) -> str:
        before = len(self.out.getvalue())
        self.transcript.feed(StreamEvent("values", {"messages": [], "artifacts": [], **values}))
        return self.out.getvalue()[before:]


def transcript(locate: Callable[[str], str] = str) -> Shown:
    out = io.StringIO()
    return Shown(Transcript(Screen(out, io.StringIO()), locate), out)


def test_what_is_asked_in_words() -> None:
    shown = transcript()
    shown.feed()
    assert (shown.transcript.asks, shown.transcript.options) == (False, [])
    shown.feed(messages=[QUESTION])
    assert (shown.transcript.asks, shown.transcript.options) == (True, ["red"])


@pytest.mark.parametrize(
    ("messages", "text"),
    [
        ([HUMAN, QUESTION], "Red?\n"),
        ([HUMAN, QUESTION, HUMAN], ""),
        ([HUMAN, {**QUESTION, "status": "error"}], ""),
        ([HUMAN, {**QUESTION, "name": "bash"}], ""),
        ([], ""),
    ],
    ids=["last", "answered", "failed", "another tool", "nothing"],
)
def test_a_question_that_still_waits(messages: list[Any], text: str) -> None:
    shown = transcript()
    shown.transcript.reopen({"messages": messages})
    assert shown.out.getvalue() == text
    assert shown.transcript.asks == bool(text)


def test_the_newest_state_says_what_a_run_is_paused_at() -> None:
    shown = transcript()
    shown.feed(interrupts=[{"id": "i", "value": 1}, {"id": "j", "value": None}])
    assert [tuple(question) for question in shown.transcript.questions] == [("i", 1), ("j", None)]
    shown.feed()
    assert shown.transcript.questions == []


def test_an_artifact_is_shown_where_it_lies(tmp_path: Path) -> None:
    file = tmp_path / "users" / "me" / "threads" / "t" / "user-data" / "outputs" / "a.md"
    file.parent.mkdir(parents=True)
    file.touch()
    shown = transcript(partial(host_path, tmp_path, "t"))
    shown.feed()
    assert shown.feed(artifacts=["/mnt/user-data/outputs/a.md"]) == f"▸ artifact: {file}\n"
    for path in ("/mnt/user-data/outputs/gone.md", "/mnt/skills/a.md"):
        assert host_path(tmp_path, "t", path) == path


def test_the_status_says_what_a_subagent_does(monkeypatch: pytest.MonkeyPatch) -> None:
    status: list[str] = []
    monkeypatch.setattr(Screen, "update", lambda _self, _task, text: status.append(text))
    message = {"content": "", "tool_calls": [{"name": "ls"}, {"name": "bash"}]}
    shown(
        [
            call({"subagent_type": "bash", "description": "study"}, identity="t", name="task"),
            ("custom", {"type": "task_started", "task_id": "t", "description": "study"}),
            ("custom", {"type": "task_running", "task_id": "t", "message": {"content": "I\nread"}}),
            ("custom", {"type": "task_running", "task_id": "t", "message": message}),
        ]
    )
    assert status == ["bash: study", "bash: study: I read", "bash: study: ls, bash"]
    status.clear()
    shown(
        [
            call({"subagent_type": "bash", "description": "count"}, identity="t", name="tasks"),
            ("custom", {"type": "task_running", "task_id": "t", "message": {"content": "412/1000 done, 3 failed"}}),
        ]
    )
    assert status == ["bash: count: 412/1000 done, 3 failed"]


def test_a_stage_is_shown_behind_the_subject_of_its_call() -> None:
    screen, translator = Screen(io.StringIO(), io.StringIO()), Translator()
    transcript = Transcript(screen)
    for name, data in [state(), BASH, STAGE]:
        for event in translator.take(Frame(name, data)):
            transcript.feed(event)
    assert screen._tasks["c"][0] == "bash: count · 1 of 2"

"""A line for every event."""

from __future__ import annotations

import msgspec
import pytest

from channels.terminal.log.story import Story
from channels.terminal.text import Style
from core.chat.account import AccountConfigured, AccountReset
from core.events import (
    ArtifactReplaced,
    Event,
    Interrupt,
    ModelCompleted,
    ModelFailed,
    Record,
    RunCancelRequested,
    RunFailed,
    RunPaused,
    RunRequested,
    RunRolledBack,
    RunStarted,
    StatePatched,
    SubagentCompleted,
    SubagentProgressed,
    SubagentStarted,
    ThreadAnnotated,
    ThreadCreated,
    ThreadErased,
    ThreadForked,
    ToolCompleted,
    ToolRequested,
    encode,
    written,
)
from core.identity.accounts import AccountAppointed, KeyRevoked
from core.mcp.servers import McpConfigured, McpForgotten
from core.models.added import AddedModel, ModelsConfigured
from core.runtime.applied import ConfigurationApplied
from core.runtime.letters import LetterDiscarded, LetterRedriven
from core.wording import text_of_event

TOOL = {"type": "tool", "name": "bash", "content": "a\nb"}
APPROVAL = {"type": "approval", "approval_id": "a", "action_requests": [{"name": "bash", "args": {"command": "rm x"}}]}
AI = {
    "type": "ai",
    "content": "I look",
    "tool_calls": [{"id": "c", "name": "bash", "args": {"command": "ls"}}],
    "usage_metadata": {"input_tokens": 10, "output_tokens": 2},
}
USED = {"input_tokens": 10, "output_tokens": 2, "total_tokens": 12}


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (ThreadCreated(user="me", metadata={"source": "x"}), "for me source"),
        (ThreadAnnotated(metadata={"a": 1}), '{"a":1}'),
        (ThreadForked(source="t", source_seq=4, patches=[{}, {}]), "from thread t at 4, 2 steps"),
        (ThreadErased(by="me"), "by me"),
        (McpConfigured(servers={"s": None}, by="root"), "s, by root"),
        (McpForgotten(), "all servers"),
        (AccountConfigured(account="slack", values={"bot_token": "v1"}, by="root"), "slack: bot_token, by root"),
        (AccountReset(account="slack"), "slack"),
        (AccountAppointed(user="u", role="admin", by="root"), "u: admin, by root"),
        (KeyRevoked(key="k"), "k"),
        (
            ModelsConfigured(models=[AddedModel(name="m", model="n", provider="custom")], roles={}, by="root"),
            "m, by root",
        ),
        (ModelsConfigured(models=[], roles={}), "none beside the file"),
        (ArtifactReplaced(path="/a/b", size=3, sha256="1", before="0"), "/a/b, 3 bytes"),
        (
            SubagentStarted(call_id="c", subagent="s", name="bash", description="look", prompt="Look!"),
            "bash for c: look “Look!”",
        ),
        (SubagentProgressed(call_id="c", index=2, message=AI), "answer 2 “I look” → bash(ls)"),
        (
            SubagentCompleted(call_id="c", status="completed", result="x", stop_reason="turn_capped", usage=USED),
            "completed (turn_capped) [10+2 tokens] “x”",
        ),
        (SubagentCompleted(call_id="c", status="failed", error="no"), "failed “no”"),
        (
            SubagentCompleted(call_id="c", status="failed", error="no", retried=True, pause_seconds=30),
            "failed, to be tried again, the batch pauses 30 s “no”",
        ),
        (StatePatched(values={"title": "x"}, as_node="n", base=3), "title as n on checkpoint 3"),
        (RunRequested(input={"messages": [{"type": "human", "content": "hi"}]}), "“hi”"),
        (
            RunRequested(multitask="enqueue", base=7, not_before="2026"),
            "go on, enqueue, from checkpoint 7, not before 2026",
        ),
        (RunStarted(attempt=1, worker="w", lease=1), "by w"),
        (RunStarted(attempt=2, worker="w", lease=1, model="m"), "attempt 2 by w, model m"),
        (RunCancelRequested(action="rollback"), "stop and undo"),
        (
            RunPaused(next=["tools"], interrupts=[Interrupt("i", APPROVAL), Interrupt("j", "Which?")]),
            "before tools; asks for approval of bash rm x; asks “Which?”",
        ),
        (RunPaused(next=["model"], interrupts=[Interrupt("i", {"n": 1})]), 'before model; asks {"n":1}'),
        (RunFailed(error="E", text="bad"), "bad"),
        (LetterRedriven(letter=3, wakes="lead", about="thread/t", by="ada"), "3 of lead on thread/t, by ada"),
        (LetterDiscarded(letter=3, wakes="lead", about="thread/t", by="ada"), "3 of lead on thread/t, by ada"),
        (ConfigurationApplied(file="config.yaml", changed={"a": "1", "b": None}, by="p"), "config.yaml: a, b, by p"),
        (RunRolledBack(), "undone"),
        (ModelCompleted(message=AI, duration_ms=1500), "[1.5 s, 10+2 tokens] “I look” → bash(ls)"),
        (
            ModelFailed(error="E", text="bad", attempt=1, max_attempts=3, reason="busy", wait_ms=200),
            "try 1 of 3, busy, again in 200 ms: bad",
        ),
        (
            ModelFailed(error="E", text="bad", attempt=3, max_attempts=3, wait_ms=0, model="m"),
            "m: try 3 of 3, generic, then another model: bad",
        ),
        (ModelFailed(error="E", text="bad", attempt=3, max_attempts=3), "try 3 of 3, generic, given up: bad"),
        (ToolRequested(call_id="c", name="bash", effect="pure", args={"command": "ls"}), "bash [pure] ls"),
        (
            ToolCompleted(call_id="c", message=TOOL, update={"todos": []}, duration_ms=5),
            "bash [5 ms, sets todos] “a b”",
        ),
        (
            ToolCompleted(call_id="c", message={**TOOL, "status": "error"}, unknown=True),
            "bash [error, outcome unknown, 0 ms] “a b”",
        ),
    ],
)
def test_what_happened_in_words(event: Event, line: str) -> None:
    assert text_of_event(event) == line


def record(seq: int, event: Event, run: str | None = None, actor: str = "lead") -> Record:
    at = "2026-11-20T23:10:05.123456+00:00"
    envelope = written(event, id=f"e{seq}", kind="thread", aggregate_id="t", actor=actor, at=at, run=run)
    return Record(seq, encode(event, envelope))


def test_lines_have_a_heading_per_run_and_intents_know_their_arguments() -> None:
    story = Story()
    events = [
        record(1, ThreadCreated(user="me"), actor="http"),
        record(2, RunRequested(), "r", "http"),
        record(3, ModelCompleted(message=AI), "r"),
        record(4, ToolRequested(call_id="c", name="bash", effect="once"), "r"),
    ]
    assert [line for event in events for line in story.lines(event)] == [
        "     1  23:10:05.123  http      thread.created       for me",
        "── run r ──",
        "     2  23:10:05.123  http      run.requested        go on",
        "     3  23:10:05.123  lead      model.completed      [0 ms, 10+2 tokens] “I look” → bash(ls)",
        "     4  23:10:05.123  lead      tool.requested       bash [once] ls",
    ]


def test_lines_fit_the_width_and_cannot_command_the_terminal() -> None:
    nasty = record(5, RunFailed(error="E", text="\x1b[2J" + "long " * 100), "r\x1b[1m", "le\x1bad")
    for line in Story(width=80).lines(nasty):
        assert len(line) <= 80
        assert "\x1b" not in line
    assert Story(Style(True)).lines(nasty)[-1].startswith("\x1b[31m")


def test_events_of_plugins_are_told_by_their_fields() -> None:
    raw = msgspec.json.decode(record(1, ThreadCreated(user="me")).raw)
    unknown = Record(9, msgspec.json.encode({**raw, "type": "moon.risen", "user": 17, "phase": "full"}))
    assert Story().lines(unknown)[0].endswith('moon.risen           {"user":17,"phase":"full"}')

    class LanternLit(Event, frozen=True):
        """A test's own event."""

        colour: str

    assert text_of_event(LanternLit(colour="red")) == '{"colour":"red"}'

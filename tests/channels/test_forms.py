"""The form of an MCP server's question, as each channel shows it and takes its answer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from actors.chat import questions as chat
from channels.acp import mapping
from channels.http.protocols import agui
from channels.terminal.chat.questions import Question, decision, question_lines
from core.events import ApprovalRequested, ApprovalResolved, RunPaused
from core.thread import approvals
from core.thread.state import ThreadState

pytestmark = pytest.mark.anyio
FORM = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 18}},
    "required": ["name"],
}
REQUEST = ApprovalRequested(
    approval="a",
    call_id="c",
    tool="s_ask",
    args={"server": "s", "request": 1},
    digest="d",
    text="The MCP server s asks: Who?",
    allowed=["edit", "reject"],
    form=FORM,
)
INTERRUPT = approvals.question(REQUEST)
VALUE = INTERRUPT.value


@pytest.mark.parametrize(
    ("lines", "body"),
    [
        (["Ada", "36"], {"decision": "edit", "args": {"name": "Ada", "age": 36}}),
        (["", "Ada", "old", "3", ""], {"decision": "edit", "args": {"name": "Ada"}}),
        (["Ada", "decline"], {"decision": "reject"}),
        (["Ada", None], None),
    ],
)
async def test_the_terminal_asks_field_by_field(lines: list[str | None], body: Any) -> None:
    left: Iterator[str | None] = iter(lines)
    notices = list[str]()

    async def read(_: str) -> str | None:
        return next(left)

    question = Question("a", VALUE)
    assert await decision(question, read, notices.append) == body
    assert len(notices) == (3 if lines[0] == "" else 0)
    title, shown = question_lines(question)
    assert "s_ask waits for your answer" in title
    assert "    - age (integer, optional)" in shown


def test_a_chat_takes_a_text() -> None:
    state = ThreadState(paused=RunPaused(next=["tools"], interrupts=[INTERRUPT]))
    [question] = chat.pending(state)
    assert "The MCP server s asks: Who?" in question.text
    assert "- name (text)" in question.text
    assert [button.label for button in question.buttons] == ["Decline"]
    declined = question.option("decline")
    assert declined is not None
    assert approvals.read({"decision": declined.id}, REQUEST).decision == "reject"
    for content in ("1", "no", "name: Ada"):
        assert question.option(content) is None
    resolved = ApprovalResolved(approval="a", call_id="c", decision="edit", by="ada")
    assert chat.outcome(resolved, form=True) == "➡️ Answered by ada"


def test_an_editor_is_asked_for_a_text() -> None:
    [question] = mapping.questions({"interrupts": [{"id": "a", "value": {**VALUE, "error": "age: no"}}]})
    assert question.options == ()
    assert "The last answer did not count: age: no" in question.text
    assert "- age (integer, optional)" in question.text


def test_ag_ui_has_the_schema() -> None:
    shown = agui._interrupt(INTERRUPT)
    assert (shown["message"], shown["responseSchema"]) == (REQUEST.text, FORM)


@pytest.mark.parametrize(
    "answer",
    [
        {"action": "accept", "content": {"name": "Ada"}},
        {"decisions": [{"type": "edit", "edited_action": {"name": "s_ask", "args": {"name": "Ada"}}}]},
        {"decision": "edit", "args": {"name": "Ada"}},
        {"type": "response", "args": "name: Ada"},
        {"name": "Ada"},
        "name = Ada",
    ],
)
def test_answers_over_http(answer: Any) -> None:
    assert approvals.read(answer, REQUEST) == approvals.Verdict("edit", {"name": "Ada"})

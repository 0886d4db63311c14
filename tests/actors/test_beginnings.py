"""Whatever begins work for a person asks whether they still may: a table of all that can, made of the source and tried.

There are two doors. Who requests a run goes through the intake, which asks. Whose run begins by an event (a goal, a
subagent's log, an actor of others) goes through the preparation of each attempt, which asks, too.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from core.errors import Refused
from core.events import Event, Json, Resume, RunOrigin, RunRequested, ThreadCreated
from core.identity.accounts import ACCOUNTS, AccountCreated, AccountDisabled
from core.thread.approvals import EXPIRE
from core.thread.threads import Decision
from tests.support.model_server import Turn
from tests.support.workers import site

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[2]
USER = "ada"
INPUT: Json = {"messages": [{"type": "human", "id": "m", "content": "hi"}]}
INTAKE, ATTEMPT, CALLER = "intake", "attempt", "the run that calls"
OPERATOR, REQUEST = "operator", "request"
BEGINNINGS = {
    "core/user/launch.py": INTAKE,  # schedules, crons, and triggers of both
    "actors/chat/runs.py": INTAKE,  # bots: messages, answers, /retry, /bootstrap and other commands
    "actors/approvals.py": INTAKE,  # approvals that expire
    "actors/goals.py": ATTEMPT,  # goals, by an event in the thread
    "actors/subagents/delegation.py": CALLER,  # subagents and batches: the caller's attempt asks, and each of theirs
    "actors/debugging/work/runner.py": OPERATOR,  # `sika eval run`, on a system of its own
    "channels/http/accounts/access.py": INTAKE,  # all requests
    "channels/http/protocols/langgraph/runs.py": INTAKE,  # those of LangGraph's clients, by way of `access`
    "core/replay/whatif/journal.py": REQUEST,  # what-ifs: a journal in memory, for as long as a request
}
"""Modules that have runs begin, and who asks whether the person still may."""


def beginnings() -> Iterator[str]:
    """Yields the modules of the product that request a run, or append the fact of one."""
    for package in ("core", "actors", "channels", "adapters"):
        for path in (ROOT / package).rglob("*.py"):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            if any(map(_begins, ast.walk(tree))):
                yield path.relative_to(ROOT).as_posix()


def _begins(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    if isinstance(node.func, ast.Attribute) and node.func.attr == "request_run":
        return True
    appends = isinstance(node.func, ast.Attribute) and node.func.attr in ("decide", "append")
    named = [part.id for argument in node.args for part in ast.walk(argument) if isinstance(part, ast.Name)]
    return appends and "RunRequested" in named


def test_the_table_has_all_that_begins_work() -> None:
    continued = {"actors/goals.py"}  # its decision makes the fact in a function
    assert set(beginnings()) | continued == BEGINNINGS.keys()
    assert "-> RunRequested:" in (ROOT / "actors/goals.py").read_text(encoding="utf-8")


SHAPES: dict[str, RunRequested] = {
    "a message": RunRequested(input=INPUT),
    "a message to a bot": RunRequested(
        input=INPUT, wanted=RunOrigin("chat", "c", "e"), context={"channel_user_id": "U"}
    ),
    "a schedule": RunRequested(input=INPUT, wanted=RunOrigin("schedules", USER, "f")),
    "a goal": RunRequested(input=INPUT, wanted=RunOrigin("thread", "t", "e")),
    "an answer": RunRequested(resume=Resume(value=True)),
    "an approval that expired": RunRequested(resume=Resume(value=EXPIRE)),
    "a batch": RunRequested(input={"prompts": ["one", "two"]}, batch_table="/mnt/user-data/workspace/t.csv"),
    "a run with a webhook": RunRequested(input=INPUT, webhook="https://example.org/hook"),
    "a run that goes on": RunRequested(),
}


def always(event: Event) -> Decision:
    return lambda _: [event]


async def test_no_shape_of_a_run_is_let_in_for_a_disabled_account(tmp_path: Path) -> None:
    """Through the intake it is refused; a fact that is there is given up before a model is called."""
    surprises = list[str]()
    async with site(tmp_path, {"m": [Turn(text="never")]}) as (client, models):
        system = client.system
        created = AccountCreated(user=USER, email="ada@example.org")
        await system.log.append(ACCOUNTS, [created, AccountDisabled(user=USER)], expected=0, actor="test")
        for number, (what, request) in enumerate(SHAPES.items()):
            name = f"t{number}"
            await system.threads.decide(name, always(ThreadCreated(user=USER)), actor="test")
            for user in (USER, None):  # also without one: a bot, a goal, an actor of others
                try:
                    await system.intake.request_run(name, f"{name}-requested", request, user=user)
                    surprises.append(f"{what} was let in for {user}")
                except Refused:
                    pass
            await system.threads.decide(name, always(request), actor="test", run=name)
        for number, what in enumerate(SHAPES):
            run = await client.ended(f"t{number}", f"t{number}")
            if run.error is None or "disabled" not in run.error.text:
                surprises.append(f"{what}: {run.status}")
    assert surprises == []
    assert models.requests == []

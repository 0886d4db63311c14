"""Runs that stop to be continued: at breakpoints, and at questions of tools."""

from __future__ import annotations

from typing import Any

from tests.conformance.python.errors import ENTRIES, entered
from tests.conformance.python.lab import AGENT, Lab, case, contents, table

QUESTION = {"question": "proceed?"}


async def state(lab: Lab, thread: str) -> Any:
    return await lab.client.threads.get_state(thread)


async def go_on(lab: Lab, thread: str, **more: Any) -> Any:
    """Continue with no input: the model is that of the run before."""
    return await lab.client.runs.wait(thread, AGENT, input=None, **{"context": {"model_name": "works"}, **more})


@table(
    ("before", "*", ["model"], 1),
    ("before", ["model"], ["model"], 1),
    ("before", ["tools"], ["tools"], 2),
    ("after", ["model"], ["tools"], 2),
    ("after", ["tools"], ["model"], 4),
)
async def breakpoints(lab: Lab, when: str, nodes: Any, following: list[str], said: int) -> None:
    """Without a question: what comes next is told, and nothing is asked."""
    thread = await lab.thread()
    values: Any = await lab.client.runs.wait(thread, AGENT, **{f"interrupt_{when}": nodes}, **lab.asked("works"))
    assert len(contents(values)) == said
    found = await state(lab, thread)
    assert set(found["next"]) == set(following)
    assert [task["interrupts"] for task in found["tasks"]] == [[]] * len(found["tasks"])
    assert found["interrupts"] == []
    stopped: Any = await lab.client.threads.get(thread)
    assert (stopped["status"], stopped["interrupts"]) == ("interrupted", {})
    [run] = await lab.client.runs.list(thread)
    assert run["status"] == "success"
    values = await go_on(lab, thread)
    assert contents(values)[-1] == "Both are taken."
    assert len(contents(values)) == 5
    assert (await lab.client.threads.get(thread))["status"] == "idle"


@case
async def step_by_step(lab: Lab) -> None:
    """`*` before each node, until nothing is left."""
    thread = await lab.thread()
    await lab.client.runs.wait(thread, AGENT, interrupt_before="*", **lab.asked("works"))
    seen = [(await state(lab, thread))["next"]]
    while seen[-1]:
        await go_on(lab, thread, interrupt_before="*")
        seen.append((await state(lab, thread))["next"])
        assert len(seen) < 8
    assert [sorted(set(one)) for one in seen] == [["model"], ["tools"], ["model"], []]


@table(*((entry,) for entry in ENTRIES))
async def breakpoints_by_every_way_in(lab: Lab, entry: str) -> None:
    thread = await lab.thread()
    await entered(lab, entry, thread, interrupt_before=["tools"], **lab.asked("works"))
    [run] = await lab.client.runs.list(thread)
    assert await lab.ended(thread, run["run_id"]) == "success"
    assert set((await state(lab, thread))["next"]) == {"tools"}


async def asked(lab: Lab, model: str = "asks") -> tuple[str, Any]:
    """A thread that waits for an answer, and what the run that asked ended with."""
    thread = await lab.thread()
    return thread, await lab.client.runs.wait(thread, AGENT, **lab.asked(model))


@case
async def a_question(lab: Lab) -> None:
    """It is in the values, the state's tasks, the state, and the thread."""
    thread, values = await asked(lab)
    [interrupt] = values["__interrupt__"]
    assert interrupt["value"] == QUESTION
    found = await state(lab, thread)
    assert [(one["id"], one["value"]) for one in found["interrupts"]] == [(interrupt["id"], QUESTION)]
    [task] = [task for task in found["tasks"] if task["interrupts"]]
    assert [(one["id"], one["value"]) for one in task["interrupts"]] == [(interrupt["id"], QUESTION)]
    assert task["name"] in found["next"]
    thread_found: Any = await lab.client.threads.get(thread)
    assert thread_found["status"] == "interrupted"
    [[one]] = thread_found["interrupts"].values()
    assert (one["id"], one["value"]) == (interrupt["id"], QUESTION)
    [history, *_] = await lab.client.threads.get_history(thread, limit=1)
    assert history["tasks"][-1]["interrupts"] == task["interrupts"]
    [run] = await lab.client.runs.list(thread)
    assert run["status"] == "success"
    assert "__interrupt__" not in found["values"]
    hits = await lab.client.threads.search(ids=[thread], status="interrupted")
    assert [hit["thread_id"] for hit in hits] == [thread]


@table(("value",), ("map",))
async def an_answer(lab: Lab, how: str) -> None:
    thread, values = await asked(lab)
    resume: Any = "go" if how == "value" else {values["__interrupt__"][0]["id"]: "go"}
    after: Any = await lab.client.runs.wait(thread, AGENT, command={"resume": resume}, context={"model_name": "asks"})
    assert contents(after, lab.mark) == ["Hi", "May I?", "They said: go", "Understood."]
    found = await state(lab, thread)
    assert (found["next"], found["interrupts"]) == ([], [])
    answered: Any = await lab.client.threads.get(thread)
    assert (answered["status"], answered["interrupts"]) == ("idle", {})


@table(*((entry,) for entry in ENTRIES))
async def an_answer_by_every_way_in(lab: Lab, entry: str) -> None:
    thread, _ = await asked(lab)
    await entered(lab, entry, thread, command={"resume": {"a": [1]}}, context={"model_name": "asks"})
    [run, _] = await lab.client.runs.list(thread)
    assert await lab.ended(thread, run["run_id"]) == "success"
    assert (await lab.texts(thread))[2:] == ["They said: {'a': [1]}", "Understood."]


@case
async def two_questions(lab: Lab) -> None:
    thread, values = await asked(lab, "asks-two")
    questions = {one["value"]["question"]: one["id"] for one in values["__interrupt__"]}
    assert set(questions) == {"first?", "second?"}
    assert len(set(questions.values())) == 2
    resume: Any = {questions["first?"]: "one", questions["second?"]: "two"}
    after: Any = await lab.client.runs.wait(
        thread, AGENT, command={"resume": resume}, context={"model_name": "asks-two"}
    )
    assert sorted(contents(after)[2:4]) == ["They said: one", "They said: two"]
    assert contents(after)[-1] == "Both understood."


@case
async def one_of_two_questions(lab: Lab) -> None:
    """The other is asked still, under the same id."""
    thread, values = await asked(lab, "asks-two")
    first, second = values["__interrupt__"]
    between: Any = await lab.client.runs.wait(
        thread, AGENT, command={"resume": {first["id"]: "one"}}, context={"model_name": "asks-two"}
    )
    assert [one["id"] for one in between["__interrupt__"]] == [second["id"]]
    after: Any = await lab.client.runs.wait(
        thread, AGENT, command={"resume": {second["id"]: "two"}}, context={"model_name": "asks-two"}
    )
    assert contents(after)[-1] == "Both understood."


@table(("values",), ("updates",), ("messages-tuple",), ("custom",))
async def a_question_in_the_stream(lab: Lab, mode: Any) -> None:
    """Through `updates`, or through `values` even where that was not asked for."""
    thread = await lab.thread()
    parts = [part async for part in lab.client.runs.stream(thread, AGENT, stream_mode=mode, **lab.asked("asks"))]
    told = [part for part in parts if isinstance(part.data, dict) and "__interrupt__" in part.data]
    assert [part.event for part in told] == ["updates" if mode == "updates" else "values"]
    [one] = told[0].data["__interrupt__"]
    assert one["value"] == QUESTION
    assert one["id"]
    answered = [
        part.event
        async for part in lab.client.runs.stream(
            thread, AGENT, stream_mode=mode, command={"resume": "go"}, context={"model_name": "asks"}
        )
    ]
    assert answered[0] == "metadata"
    assert answered[-1] == "end"


@case
async def another_question_instead_of_an_answer(lab: Lab) -> None:
    """Plain input on an interrupted thread is a new turn, and never an answer."""
    thread, _ = await asked(lab)
    after: Any = await lab.client.runs.wait(thread, AGENT, **lab.asked(text="Something else"))
    assert contents(after, lab.mark)[-2:] == ["Something else", "Hello to you, too."]
    assert "They said: Something else" not in contents(after, lab.mark)
    found: Any = await lab.client.threads.get(thread)
    assert (found["status"], found["interrupts"]) == ("idle", {})


@case
async def a_cancelled_thread_has_nothing_to_resume(lab: Lab) -> None:
    thread = await lab.thread()
    run = (await lab.client.runs.create(thread, AGENT, **lab.asked("gated")))["run_id"]
    await lab.reached()
    await lab.client.runs.cancel(thread, run, wait=True)
    assert (await lab.client.threads.get(thread))["interrupts"] == {}
    assert (await state(lab, thread))["interrupts"] == []
    after: Any = await lab.client.runs.wait(thread, AGENT, **lab.asked(text="Again"))
    assert contents(after, lab.mark)[-2:] == ["Again", "Hello to you, too."]

"""Scripted threads: what happens on them in its order, facts and previews, and what subagents' own logs have.

They hold everything that a stream can show: text and arguments in pieces (doubled, lost, ahead of facts), reasoning,
tools with output and errors, subagents and a batch, questions and answers, retries and answers that were given up, all
ends of a run, and what others write to a thread meanwhile.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from core.events import (
    ContextCompacted,
    Event,
    Interrupt,
    Json,
    Message,
    MessageAdded,
    ModelCompleted,
    ModelFailed,
    Record,
    Resume,
    RunCancelled,
    RunCancelRequested,
    RunCompleted,
    RunFailed,
    RunPaused,
    RunRequested,
    RunRolledBack,
    RunSteered,
    RunSuspended,
    StatePatched,
    SubagentCompleted,
    SubagentProgressed,
    SubagentStarted,
    ThreadErased,
    ThreadTitled,
    ToolCompleted,
    ToolRequested,
)
from core.runs.previews import Progress, RunPreview, line_of
from tests.channels.http.story import RUN, Story, ai, answer, call, human, pieces, requested, started
from tests.golden.stories import load

Item = Record | RunPreview
USED = {"input_tokens": 5, "output_tokens": 2, "total_tokens": 7}
LONG = "Where the river bends, an old heron waits; it has all the time there is. " * 2


class Script(Story):
    """A thread. `items`: its facts, and the previews between them. `logs`: of its subagents."""

    def __init__(self) -> None:
        self.items: list[Item] = []
        self.logs: dict[str, list[Message]] = {}
        super().__init__()

    def add(self, *events: Event, run: str | None = RUN) -> None:
        for event in events:
            super().add(event, run=run)
            self.items.append(self.records[-1])

    def preview(
        self,
        answer: ModelCompleted | Message,
        *,
        size: int = 5,
        upto: int = 10_000,
        lost: Collection[int] = (),
        twice: Collection[int] = (),
        run: str = RUN,
        ahead: int = 0,
        after: int | None = None,
    ) -> None:
        """Pieces of an answer, at most `upto` characters. `ahead`: facts that come later and that the writer knew."""
        whole = answer if isinstance(answer, ModelCompleted) else ModelCompleted(message=answer)
        known = self.records[-1].seq + 3 * ahead if after is None else after
        for number, piece in enumerate(pieces(whole, size, known)):
            if piece.offset < upto and number not in lost:
                self.items += [RunPreview(run, piece)] * (2 if number in twice else 1)

    def output(self, call_id: str, name: str, text: str, *, stage: bool = False, run: str = RUN) -> None:
        """What a tool says while it works."""
        self.items.append(RunPreview(run, Progress(call_id=call_id, name=name, text=text, stage=stage)))


def ask(text: str, number: int, **more: object) -> RunRequested:
    return requested(human(f"h{number}", text), **more)


def tools() -> Script:
    """Reasoning, text and two calls in pieces; output and errors of tools; what others write in the middle of it."""
    script = Script()
    calls = (call("c1", "ls", path="/"), call("c2", "cat", path="ä"))
    reasoning = {"reasoning_content": "hm hm"}
    first = ai("m1", "I will look.", *calls, additional_kwargs=reasoning, usage_metadata=USED)
    whole = ModelCompleted(message=first, call_texts={"c2": '{ "path": "ä" }'})
    script.add(ask("What is there?", 1, feedback_keys=["score"], metadata={"tag": "a"}))
    script.preview(whole, upto=5, ahead=1)
    script.add(started())
    script.preview(whole, twice=[0, 3], lost=[5], after=script.records[-1].seq)
    script.add(whole)
    script.add(ToolRequested(call_id="c1", name="ls", effect="pure"))
    script.output("c1", "ls", "a\n")
    script.add(ToolRequested(call_id="c2", name="cat", effect="pure", args={"path": "b"}))
    script.output("c2", "cat", "reading", stage=True)
    script.output("c1", "ls", "b\n")
    script.output("nobody", "ls", "c\n")
    script.add(ToolCompleted(call_id="c2", message=answer("c2", "cat", "no such file", status="error"), exit_code=1))
    script.add(ThreadTitled(title="Looking"), run=None)
    todos = [{"content": "look", "status": "completed"}, {"content": "tell", "status": "in_progress"}]
    script.add(
        ToolCompleted(call_id="c1", message=answer("c1", "ls", "a b"), update={"artifacts": ["/a"], "todos": todos})
    )
    second = ai("m2", "There are a and b\u2028 and 😀 in it.", usage_metadata=USED)
    script.preview(second, upto=8)
    script.add(StatePatched(values={"title": "Others", "messages": [human("h9", "By the way")]}), run=None)
    script.preview(second, upto=20, after=script.records[-2].seq)
    script.add(MessageAdded(messages=[human("h8", "A note")]))
    script.add(ContextCompacted(summary=human("s1", "Earlier: a look"), kept=["m1", "tool-c1", "tool-c2"]), run=None)
    script.add(ModelCompleted(message=second), RunCompleted())
    third = ai("m3", "", additional_kwargs={"reasoning_content": LONG})
    script.add(ask("And?", 2), run="run-2")
    script.add(started(), run="run-2")
    script.preview(third, size=7, run="run-2", lost=[3])
    script.add(ModelCompleted(message=third), RunCompleted(), run="run-2")
    return script


def orders() -> Script:
    """A model that goes back and forth between text and calls, one of which was dropped; a call that is not valid."""
    script = Script()
    calls = call("c1", "ls", path="/a/long/path/to/see/what/becomes/of/it"), {**call("c2", "cat"), "error": "not JSON"}
    message = ai("m1", "One. Two. " + LONG, *calls)
    size = len(line_of(message, {})[1].text)
    order = [("text", 0, 5), ("call", 0, 20), ("call", 2, 7), ("text", 0, 60), ("call", 0, size - 20)]
    whole = ModelCompleted(message=message, order=order, call_texts={"c2": '{"path": '})
    script.add(ask("Look.", 1), started())
    script.preview(whole, size=16)
    script.add(whole, ToolRequested(call_id="c1", name="ls", effect="pure"))
    script.add(ToolCompleted(call_id="c2", message=answer("c2", "cat", "not JSON", status="error")))
    script.add(
        ToolCompleted(
            call_id="c1", message={**answer("c1", "ls", ""), "content": [{"type": "text", "text": "nothing"}]}
        )
    )
    last = ai("m2", "") | {"content": [{"type": "text", "text": "Nothing"}, {"type": "text", "text": " there."}]}
    script.preview(last, size=3, lost=[1])
    script.add(ModelCompleted(message=last), RunCompleted())
    return script


def ends() -> Script:
    """Answers that were given up, workers that died, and each way in which a run can end."""
    script = Script()
    retry = ModelFailed(error="RateLimit", text="busy", attempt=1, max_attempts=3, reason="busy", wait_ms=1500)
    script.add(ask("Go on", 1), started())
    begun = script.records[-1].seq
    script.preview(ai("m1", "This is given up"), upto=12)
    script.add(retry)
    script.preview(ai("m1", "This is given up"), after=begun)
    script.preview(ai("m1b", "And this is cut off"), upto=10)
    script.add(started(2))
    script.preview(ai("m1c", "Never finished"), upto=10)
    second = ai("m1d", "In its place.", call("c1", "ls", path="/"))
    script.add(ModelCompleted(message=second), ToolRequested(call_id="c1", name="ls", effect="pure"))
    script.add(RunSuspended(reason="the sandbox does not answer"), started(3))
    script.add(ToolCompleted(call_id="c1", message=answer("c1", "ls", "a")))
    script.preview(ai("m2", "It is a pity"), upto=6)
    script.add(ask("Queued", 2, multitask="enqueue"), run="run-2")
    script.add(RunFailed(error="TooLong", text="It took too long.", message=ai("error-1", "It took too long.")))
    script.add(started(), run="run-2")
    script.preview(ai("m3", "Half an answer"), upto=6, run="run-2")
    script.add(ModelFailed(error="Auth", text="no key", attempt=1, max_attempts=1), run="run-2")
    script.add(RunFailed(error="Auth", text="no key"), run="run-2")
    script.add(ask("Stop", 3), started(), run="run-3")
    script.preview(ai("m4", "It goes on and on"), upto=9, run="run-3")
    script.add(RunCancelRequested(), RunCancelled(), run="run-3")
    script.add(ask("Undo", 4), started(), run="run-4")
    fifth = ai("m5", "Undone", call("c1", "ls", path="/"))
    script.add(ModelCompleted(message=fifth), ToolRequested(call_id="c1", name="ls", effect="once"), run="run-4")
    script.add(ToolCompleted(call_id="c1", message=answer("c1", "ls", "b"), unknown=True), run="run-4")
    script.preview(ai("m6", "Not for long"), upto=7, run="run-4")
    script.add(RunRolledBack(), run="run-4")
    script.add(ask("Nothing", 5), RunCancelled(), run="run-5")
    script.add(ask("Forget it", 6), started(), run="run-6")
    script.preview(ai("m7", "A last word"), upto=6, run="run-6")
    script.add(ThreadErased(by="u"), run=None)
    return script


def _begun(identity: str, prefix: str = "run", **more: object) -> SubagentStarted:
    about = {"name": "bash", "description": f"do {identity}", "prompt": "Do!", "model": "m", **more}
    return SubagentStarted(call_id=identity, subagent=f"{prefix}-{identity}", **about)  # type: ignore[arg-type]


def _said(identity: str, index: int, text: str, *calls: Json) -> SubagentProgressed:
    message = ai(f"{identity}-{index}", text, *calls, usage_metadata=USED)
    return SubagentProgressed(call_id=identity, index=index, message=message)


def subagents() -> Script:
    """Two subagents at once, of which one fails; a batch; and a run that does not ask for their streams."""
    script = Script()
    tasks = call("c1", "task", prompt="Do!"), call("c2", "task", prompt="Do!"), call("b1", "tasks", prompts=["x", "y"])
    first = ai("m1", "I delegate.", *tasks)
    look, found, lost = (
        _said("c1", 1, "I look around.", call("x1", "ls", path="/")),
        _said("c1", 2, "There it is."),
        _said("c2", 1, "I wonder, and wonder."),
    )
    script.logs["run-c1"] = [
        human("human-run-c1", "Do!"),
        look.message,
        answer("x1", "ls", "a"),
        human("h2", "Hurry!"),
        found.message,
    ]
    script.logs["run-c2"] = [human("human-run-c2", "Do!"), lost.message]
    script.add(ask("All, please.", 1, subgraphs=True), started())
    script.preview(first, size=9)
    script.add(ModelCompleted(message=first))
    script.add(ToolRequested(call_id="c1", name="task", effect="idempotent"))
    script.add(ToolRequested(call_id="c2", name="task", effect="idempotent"), _begun("c1"), _begun("c2"))
    script.preview(look.message, run="run-c1", after=1, twice=[1], lost=[4])
    script.preview(lost.message, run="run-c2", after=1, upto=12)
    script.output("x1", "ls", "a\n", run="run-c1")
    script.preview(found.message, run="run-c1", after=2, upto=5)
    script.add(look)
    script.preview(found.message, run="run-c1", after=2, upto=9)
    script.add(ToolRequested(call_id="b1", name="tasks", effect="idempotent"))
    script.add(_begun("b1", name="batch", prompt=""), _said("b1", 50, "1 of 2"), lost)
    script.add(SubagentCompleted(call_id="c2", status="failed", error="no luck", usage=USED))
    script.add(ToolCompleted(call_id="c2", message=answer("c2", "task", "Task failed. Error: no luck", status="error")))
    script.add(StatePatched(values={"title": "Meanwhile"}), run=None)
    script.add(found, SubagentCompleted(call_id="c1", status="completed", result="There it is.", model="n", usage=USED))
    script.add(ToolCompleted(call_id="c1", message=answer("c1", "task", "Task Succeeded. Result: There it is.")))
    script.add(_said("b1", 100, "2 of 2"), SubagentCompleted(call_id="b1", status="completed", result="2 of 2"))
    script.add(ToolCompleted(call_id="b1", message=answer("b1", "tasks", "2 of 2")))
    script.add(ModelCompleted(message=ai("m2", "Done.")), RunCompleted())
    again = ai("m3", "", call("c1", "task", prompt="Do!"))
    script.add(ask("Again.", 2), started(), ModelCompleted(message=again), run="run-2")
    script.add(ToolRequested(call_id="c1", name="task", effect="idempotent"), _begun("c1", "again"), run="run-2")
    script.preview(ai("again-1", "Once more"), run="again-c1", after=1)
    script.add(
        SubagentProgressed(call_id="c1", index=1, message=ai("again-1", "Once more")),
        SubagentCompleted(call_id="c1", status="cancelled"),
        RunCancelled(),
        run="run-2",
    )
    return script


def questions() -> Script:
    """Approvals, a form, a breakpoint, a clarification and a call for the application, a run after each."""
    script = Script()
    first = ai("m1", "May I?", call("c1", "bash", command="rm a"), call("c2", "book", hotel="Ritz"))
    approval = {
        "type": "approval",
        "approval_id": "a1",
        "action_requests": [{"name": "bash", "args": {"command": "rm a"}, "description": "Run it?"}],
        "review_configs": [{"action_name": "bash", "allowed_decisions": ["approve", "reject"]}],
    }
    form = {"type": "object", "properties": {"nights": {"type": "integer"}}, "required": ["nights"]}
    script.add(ask("Tidy up", 1), started())
    script.preview(first, size=6)
    script.add(ModelCompleted(message=first), ToolRequested(call_id="c1", name="bash", effect="once"))
    interrupts = [
        Interrupt("i1", approval, "c1"),
        Interrupt("i2", {"form": form, "question": "How many nights?"}, "c2"),
        Interrupt("i3", "Which one?", "c2"),
    ]
    script.add(RunPaused(next=["tools"], interrupts=interrupts))
    script.add(
        RunRequested(resume=Resume({"i1": {"decisions": [{"type": "approve"}]}, "i2": {"nights": 2}})), run="run-2"
    )
    script.add(started(), run="run-2")
    script.add(RunSteered(message=human("h2", "Quickly")), run="run-2")
    script.add(ToolCompleted(call_id="c1", message=answer("c1", "bash", "done")), run="run-2")
    script.add(ToolCompleted(call_id="c2", message=answer("c2", "book", "booked")), run="run-2")
    script.add(MessageAdded(messages=[human("h2", "Quickly")]), run="run-2")
    script.add(RunPaused(next=["model"]), run="run-2")
    script.add(RunRequested(input=None), started(), run="run-3")
    script.preview(ai("m2", "Half of it"), upto=5, run="run-3")
    script.add(RunPaused(next=["model"]), run="run-3")
    third = ai("m3", "", call("c3", "ask_clarification", question="Which colour?"))
    card = {"human_input": {"question": "Which colour?", "options": [{"label": "Blue", "value": "blue"}]}}
    clarification = {**answer("c3", "ask_clarification", "Which colour?", artifact=card), "id": "clarification:c3"}
    script.add(RunRequested(input=None), started(), ModelCompleted(message=third), run="run-4")
    script.add(ToolRequested(call_id="c3", name="ask_clarification", effect="pure"), run="run-4")
    script.add(ToolCompleted(call_id="c3", message=clarification), RunCompleted(), run="run-4")
    fourth = ai("m4", "See your map.", call("c4", "show_map", place="here"))
    script.add(ask("Blue", 3), started(), ModelCompleted(message=fourth), run="run-5")
    wanted = Interrupt("i4", {"client_tool": "show_map", "args": {"place": "here"}}, "c4")
    script.add(RunPaused(next=["tools"], interrupts=[wanted]), run="run-5")
    return script


def recorded(name: str) -> Script:
    """A log of a real run, with pieces of its answers."""
    script = Script()
    script.items, script.records = [], load(name)
    for previous, record in zip([None, *script.records], script.records, strict=False):
        if previous is not None and isinstance(record.event, ModelCompleted):
            script.preview(record.event, size=9, run=record.run or "", after=previous.seq)
        script.items.append(record)
    return script


SCRIPTS = {"tools": tools, "orders": orders, "ends": ends, "subagents": subagents, "questions": questions}
RECORDED: Sequence[str] = ("commands", "delegates", "pauses", "policies", "research")

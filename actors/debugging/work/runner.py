"""Runs the tasks of the work evaluation, each in a thread of its own, on a server in a data directory of its own.

So nothing of the person's threads, memory, bots or NATS is touched. The facts about the evaluation go to their log.
"""

from __future__ import annotations

import fnmatch
import hashlib
import inspect
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

import anyio
import anyio.to_thread
import msgspec
import yaml

from actors.debugging.checking import ANSWER_CHARACTERS
from actors.debugging.evaluations import EvaluationJournal, infrastructure
from actors.debugging.work import code, data, shell, talk
from actors.debugging.work.prompt import valid_part
from actors.debugging.work.task import TASKS, CommandResult, Result, Task, Turn
from actors.wiring import compose
from core.config.load import find
from core.config.redaction import redactor
from core.errors import Invalid, SikaError
from core.events import Json, ModelCompleted, Record, RunRequested, ToolCompleted, ToolRequested, thread
from core.files.paths import make_home
from core.ids import uuid7
from core.memory.facts import Memories
from core.replay.evaluation.checks import COMPLETED
from core.replay.evaluation.facts import Checked, EvaluationCompleted, EvaluationSampled, Verdict
from core.replay.evaluation.gates import conditions
from core.replay.evaluation.results import Evaluation, failures, folded
from core.replay.evaluation.suite import NOW, Budget, Case, Cell, Gate, Suite
from core.thread.fold import fold
from core.thread.messages import text_of
from core.thread.state import ThreadState
from core.thread.usage import price, tokens_of_thread

if TYPE_CHECKING:
    from actors.wiring.options import Options
    from core.log.store import EventLog
    from core.runtime.system import System

WORK = "work"
"""Name of the suite."""
DEMO = "demo"
"""The model that answers where none is configured."""
CHECK_SECONDS = 120.0
MEMORY_SECONDS = 180.0
"""Time for the memory to read a thread."""
ACTOR = "evaluations"
PROMPTS = "actors.debugging.work.prompt"
DROPPED = frozenset(
    [
        *("nats", "http", "auth", "channels", "channel_connections", "approvals", "webhooks", "tracing"),
        *("mcp", "mcp_servers", "acp_agents", "actors", "title"),
    ]
)
"""Sections of the configuration that do not count here: they would act outside, wait for people, or cost more."""
MODULES = (code, data, shell, talk)


class Choice(NamedTuple):
    """The choices of the command line. Empty: all tasks, the default model, today's prompt."""

    models: Sequence[str] = ()
    prompts: Sequence[Path] = ()
    tasks: Sequence[str] = ()
    """Names or patterns of tasks, or their kinds."""
    without: Sequence[str] = ()
    """Parts of the prompt, each of which is left out of one of the compared prompts."""
    samples: int = 1
    seconds: float = 1800.0
    """Deadline of a task."""
    at_once: int = 2
    fail_if: str = ""


class Variant(NamedTuple):
    """A prompt: the present one, a file's, or the present one without a part."""

    file: Path | None = None
    part: str | None = None

    @property
    def text(self) -> str | None:
        """What tells it from others; None for the present one."""
        return self.file.read_text() if self.file else self.part

    @property
    def middlewares(self) -> Mapping[str, Any]:
        """Returns the section of the configuration that puts it in force."""
        if self.file:
            entry = {"use": f"{PROMPTS}:SystemPrompt", "config": {"path": str(self.file.resolve())}}
        elif self.part:
            entry = {"use": f"{PROMPTS}:Without", "config": {"part": self.part}}
        else:
            return {}
        return {"middlewares": [entry]}


class Work:
    """Runs tasks under the configuration of `options`, and writes facts about them to `log`."""

    def __init__(self, options: Options, log: EventLog, choice: Choice) -> None:
        self._options, self._log, self._choice = options, log, choice
        self._config = options.source().current()
        self._tasks = chosen_tasks(choice.tasks)
        parts = {f"without {part}": Variant(part=valid_part(part)) for part in choice.without}
        self._prompts = {NOW: Variant(), **{path.name: Variant(path) for path in choice.prompts}, **parts}

    async def run(self, progress: Callable[[EvaluationSampled], None]) -> Evaluation:
        """Runs the tasks. Raises `Invalid` for what the choice names wrongly, before the first model call."""
        suite = self._suite()
        journal, writing = EvaluationJournal(self._log, suite), anyio.Lock()
        await journal.begin()

        async def done(event: EvaluationSampled) -> None:
            async with writing:
                await journal.append(event)
                progress(event)

        for name, variant in self._prompts.items():
            async with self._server(variant) as system:
                await self._cells(system, name, done)
        reasons = failures(journal.samples, suite.gate.baseline, suite.fail_if)
        missing = any(sample.outcome == "error" for sample in journal.samples)
        outcome: Verdict = "failed" if reasons else "incomplete" if missing else "passed"
        await journal.append(EvaluationCompleted(outcome=outcome, reasons=reasons))
        return folded(journal.aggregate.id, journal.records)

    def _suite(self) -> Suite:
        configured = [model.name for model in self._config.models]
        models = list(self._choice.models) or configured[:1] or [DEMO]
        if unknown := [name for name in models if name not in configured and (configured or name != DEMO)]:
            raise Invalid(f"model {unknown[0]!r}: there are: {', '.join(configured) or DEMO}")
        for path in self._choice.prompts:
            if not path.is_file():
                raise Invalid(f"prompt {path}: no such file")
        cells = [Cell(model, prompt) for prompt in self._prompts for model in models]
        texts = {name: variant.text for name, variant in self._prompts.items()}
        source = "".join(inspect.getsource(module) for module in MODULES)
        return Suite(
            path=Path(WORK),
            sha256=hashlib.sha256(source.encode()).hexdigest(),
            cases=[Case(task.name) for task in self._tasks],
            cells=cells,
            prompts=texts,
            checks=[],
            samples=self._choice.samples,
            budget=Budget(),
            gate=Gate(baseline=str(cells[0]) if len(cells) > 1 else "", fail_if=self._choice.fail_if),
            fail_if=conditions(self._choice.fail_if),
        )

    async def _cells(self, system: System, prompt: str, done: Callable[[EvaluationSampled], Any]) -> None:
        limiter = anyio.CapacityLimiter(self._choice.at_once)

        async def one(task: Task, model: str, number: int) -> None:
            async with limiter:
                await done(await self._sample(system, task, Cell(model, prompt), number))

        async with anyio.create_task_group() as tasks:
            for number in range(1, self._choice.samples + 1):
                for cell in self._suite().cells:
                    for task in self._tasks if cell.prompt == prompt else ():
                        tasks.start_soon(one, task, cell.model, number)

    # ── the server ──────────────────────────────────────────────────────────────────────────────────────────────────

    @asynccontextmanager
    async def _server(self, prompt: Variant) -> AsyncIterator[System]:
        """Yields a system beside a server in a data directory that ends with it."""
        with tempfile.TemporaryDirectory(prefix="sika-work-", ignore_cleanup_errors=True) as directory:
            home = Path(directory)
            await anyio.to_thread.run_sync(make_home, home)
            config = home / "config.yaml"
            config.write_text(yaml.safe_dump(_sections(find(self._options.config), prompt)))
            options = compose.Options(home=home, config=config, host="127.0.0.1", port=0, actors=None)
            async with compose.serve(options), compose.attach(options) as system:
                yield system

    # ── one sample ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def _sample(self, system: System, task: Task, cell: Cell, number: int) -> EvaluationSampled:
        event = EvaluationSampled(
            case=task.name, thread=task.name, model=cell.model, prompt=cell.prompt, sample=number, outcome="error"
        )
        person = f"{task.name}-{uuid7()}"
        conversation = _Conversation(system, person, cell.model, bool(self._config.models))
        try:
            begun = monotonic()
            with anyio.move_on_after(self._choice.seconds) as scope:
                await conversation.work(task)
            event = self._measured(event, conversation, int((monotonic() - begun) * 1000))
            if scope.cancelled_caught:
                return _with_check(event, f"not done in {self._choice.seconds:g} s")
            if problem := infrastructure(conversation.records()):
                return msgspec.structs.replace(event, error=redactor.text(problem)[:ANSWER_CHARACTERS])
            if event.end != COMPLETED:
                return _with_check(event, f"the run ended with {event.end}")
            return _with_check(event, await _problem(task, await conversation.result()))
        except (SikaError, OSError) as error:
            text = redactor.text(f"{type(error).__name__}: {error}")
            return msgspec.structs.replace(event, error=text[:ANSWER_CHARACTERS])

    def _measured(self, event: EvaluationSampled, conversation: _Conversation, milliseconds: int) -> EvaluationSampled:
        records = conversation.records()
        ends = [record.type for record in records if record.type in ENDS]
        used = [tokens_of_thread(state) for state in conversation.states()]
        prices = {model.name: model.pricing for model in self._config.models if model.pricing is not None}
        costs = [price(tokens, prices) for tokens in used]
        known = [cost.total for cost in costs if cost.total is not None]
        return msgspec.structs.replace(
            event,
            end=ends[-1] if ends else "",
            answer=redactor.text(conversation.answers[-1] if conversation.answers else "")[:ANSWER_CHARACTERS],
            tokens=sum(tokens.total for by_model in used for tokens in by_model.values()),
            cost=sum(known) if known else None,
            currency=next((cost.currency for cost in costs if cost.currency), None),
            milliseconds=milliseconds,
            steps=sum(isinstance(record.event, ModelCompleted) for record in records),
            refusals=sum(_is_refusal(record) for record in records),
        )


ENDS = (COMPLETED, "run.failed", "run.cancelled", "run.paused")


class _Conversation:
    """The threads of a task, as a person sees them."""

    def __init__(self, system: System, person: str, model: str, memory: bool) -> None:
        self._system, self._person, self._model, self._memory = system, person, model, memory
        self._threads: dict[str, list[Record]] = {}
        self._thread, self._calls = "", 0
        self.answers: list[str] = []

    def records(self) -> list[Record]:
        return [record for records in self._threads.values() for record in records]

    def states(self) -> list[ThreadState]:
        return [fold(records) for records in self._threads.values()]

    async def work(self, task: Task) -> None:
        """Has the agent do the task, up to the end of the last run."""
        await self._begin()
        await self._prepare(task)
        for turn in task.turns:
            if turn.new_thread:
                await self._remembered()
                await self._begin()
            await self._ask(turn)

    async def result(self) -> Result:
        """Returns what the checker looks at."""
        events = [record.event for record in self.records()]
        calls = [(event.name, event.args or {}) for event in events if isinstance(event, ToolRequested)]
        memory = await Memories(self._system.log, actor=ACTOR).of(self._person)
        return Result(self.answers, calls, [fact.content for fact in memory.facts.values()], self.execute)

    async def execute(self, command: str) -> CommandResult:
        """Runs a command in the sandbox of the thread."""
        answer = await self._sandbox("exec", command=command, detailed=True)
        return CommandResult(str(answer["text"]), int(answer["exit_code"] if answer["exit_code"] is not None else -1))

    async def _begin(self) -> None:
        self._thread = uuid7()
        self._threads[self._thread] = []
        await self._system.intake.create_thread(self._thread, user=self._person, actor=ACTOR)

    async def _prepare(self, task: Task) -> None:
        for path, text in task.files.items():
            await self._sandbox("write", path=f"/mnt/user-data/workspace/{path}", content=text)
        if task.setup:
            shown = await self.execute(task.setup)
            if shown.exit_code != 0:
                raise Invalid(f"task {task.name}: it cannot be prepared: {shown.text[:300]}")

    async def _ask(self, turn: Turn) -> None:
        run, name = uuid7(), {"name": turn.person} if turn.person else {}
        message = {"type": "human", "id": uuid7(), "content": turn.text, **name}
        context: Json = {"unattended": True}
        if self._model != DEMO:
            context["model_name"] = self._model
        request = RunRequested(input={"messages": [message]}, context=context)
        await self._system.intake.request_run(self._thread, run, request, actor=ACTOR)
        records, answer = self._threads[self._thread], ""
        async for record in self._system.log.follow(thread(self._thread), after=records[-1].seq if records else 0):
            records.append(record)
            if isinstance(record.event, ModelCompleted) and record.run == run:
                answer = text_of(record.event.message.get("content", ""))
            if record.type in ENDS and record.run == run:
                self.answers.append(answer)
                return

    async def _remembered(self) -> None:
        """Waits until the memory has read the thread. The demo model has none."""
        memories, last = Memories(self._system.log, actor=ACTOR), self._threads[self._thread][-1].seq
        ends = [record.seq for record in self._threads[self._thread] if record.type == COMPLETED]
        with anyio.move_on_after(MEMORY_SECONDS if self._memory else 0):
            while (await memories.of(self._person)).upto(self._thread) < (ends[-1] if ends else last):  # noqa: ASYNC110
                await anyio.sleep(0.5)

    async def _sandbox(self, op: str, **fields: Any) -> Any:
        self._calls += 1
        about = {"user": self._person, "thread": self._thread, "run": ACTOR, "call_id": f"check-{self._calls}"}
        return await self._system.call("sandbox", {"op": op, **about, **fields})


def chosen_tasks(names: Sequence[str]) -> list[Task]:
    """Returns the tasks with these names, patterns or kinds; all without any. Raises `Invalid` for an unknown one."""
    for name in names:
        if not any(_fits(task, name) for task in TASKS.values()):
            kinds = dict.fromkeys(task.kind for task in TASKS.values())
            raise Invalid(f"task {name!r}: there are the kinds {', '.join(kinds)}, and {', '.join(TASKS)}")
    return [task for task in TASKS.values() if not names or any(_fits(task, name) for name in names)]


def _fits(task: Task, name: str) -> bool:
    return task.kind == name or fnmatch.fnmatchcase(task.name, name)


def _sections(path: Path | None, prompt: Variant) -> Mapping[str, Any]:
    """Returns the configuration of the server: what counts of the person's, and a memory that reads soon."""
    text: Any = yaml.safe_load(path.read_text()) if path is not None else {}
    sections = {name: value for name, value in (text or {}).items() if name not in DROPPED}
    sections["memory"] = {**(sections.get("memory") or {}), "debounce_seconds": 1}
    sections["title"] = {"enabled": False}
    return {**sections, **prompt.middlewares}


def _is_refusal(record: Record) -> bool:
    return isinstance(record.event, ToolCompleted) and record.event.message.get("status") == "error"


async def _problem(task: Task, result: Result) -> str:
    """Returns the reason for which a checker fails a result; empty if it passes."""
    try:
        with anyio.fail_after(CHECK_SECONDS):
            await task.check(result)
    except AssertionError as error:
        return str(error) or "an assertion failed"
    except TimeoutError:
        return f"the check took more than {CHECK_SECONDS:g} s"
    except SikaError:
        raise
    except Exception as error:  # of a check that reads what a model wrote
        return f"{type(error).__name__}: {error}"
    return ""


def _with_check(event: EvaluationSampled, problem: str) -> EvaluationSampled:
    reason = redactor.text(problem)[:ANSWER_CHARACTERS]
    check = Checked(event.case, "failed" if problem else "passed", reason)
    return msgspec.structs.replace(event, outcome=check.outcome, checks=[check])

"""Rows of the run journal: what the facts of a thread are to clients, and which of them a page has.

A row's `seq` is the log sequence of its fact times `PLACES`, plus its place in the fact; that of a message is its
number (`core.thread.numbers`). So a cursor cuts exactly between any two rows, also inside a fact.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from channels.http.runs.messages import full
from channels.http.streams.tasks import delegation
from core.events import (
    Aggregate,
    Decision,
    Envelope,
    Json,
    Message,
    MessageAdded,
    ModelCompleted,
    ModelFailed,
    Record,
    RunCancelled,
    RunCompleted,
    RunFailed,
    RunPaused,
    RunRequested,
    RunStarted,
    StatePatched,
    SubagentCompleted,
    SubagentProgressed,
    SubagentStarted,
    ThreadForked,
    ThreadPruned,
    ToolCompleted,
    thread,
)
from core.ids import checkpoint_id
from core.log.reader import Read
from core.thread import usage
from core.thread.messages import timed
from core.thread.numbers import PLACES, numbered
from core.thread.state import Commit, Run, ThreadState
from core.thread.values import REMOVE_ALL, with_prepared

LAST = 2**53 - 1
"""The greatest integer that is exact in every client."""
CALLER = "lead_agent"

TYPES = {"human": "llm.human.input", "ai": "llm.ai.response", "tool": "llm.tool.result"}
ENVELOPE = frozenset(Envelope.__struct_encode_fields__)


class Row(msgspec.Struct):
    """One event of a thread. For `category` `message` the content is the whole message; `run_id` is null for what was
    not written by a run.
    """

    thread_id: str
    run_id: str | None
    event_type: str
    category: Literal["message", "trace", "outputs", "error", "middleware"]
    content: Any
    metadata: dict[str, Any]
    seq: int
    created_at: str


class Cursor(NamedTuple):
    """Which rows: the first `limit` after `after`, else the last `limit` (before `before`)."""

    limit: int
    before: int | None = None
    after: int | None = None


class Steps(NamedTuple):
    """The steps of a listing: those in `span` that `has` selects."""

    span: range
    has: Callable[[int, Commit], bool]


def of_run(state: ThreadState, run: Run) -> Steps:
    """Returns the steps of a run."""
    return Steps(usage.span_of(state, run), lambda _, commit: commit.run == run.id)


def of_all(state: ThreadState) -> Steps:
    """Returns the steps of everything that was not rolled back, on all branches."""
    undone = state.undone
    return Steps(range(len(state.commits)), lambda _, commit: commit.run not in undone)


def of_branch(state: ThreadState, tip: int | None = None) -> Steps:
    """Returns the steps that led to the thread as it stands (or to a commit), also those whose messages were summarised
    since.
    """
    chain = set(state.chain(state.head if tip is None else tip))
    return Steps(range(len(state.commits)), lambda index, _: index in chain)


def removed(state: ThreadState, steps: Steps) -> dict[str, int]:
    """Returns the messages that somebody took away or brought again in these steps, such as a question that was asked
    in other words: by id (`REMOVE_ALL` for all that there were), the sequence of the fact. What a summary took away is
    not among them.
    """
    gone: dict[str, int] = {}
    for index in steps.span:
        commit = state.commits[index]
        if commit.source != "loop" and steps.has(index, commit) and not usage.is_summary(commit.patch):
            gone |= dict.fromkeys(_named(commit.patch.get("messages")), commit.seq)
    return gone


def left(rows: Sequence[Row], gone: Mapping[str, int]) -> list[Row]:
    """Returns the rows that nobody took away, one by one or all that there were. `gone`: see `removed`."""
    all_gone = gone.get(REMOVE_ALL, 0)
    return [row for row in rows if row.seq >= PLACES * max(all_gone, gone.get(str(row.content.get("id")), 0))]


def _named(entries: object) -> list[str]:
    return [str(entry.get("id")) for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []


class Branches(NamedTuple):
    """The versions of a message: the checkpoints that lead to them, oldest first, and which of them is shown."""

    shown: int
    checkpoint_ids: list[str]


def branches_of(state: ThreadState, tip: int) -> dict[int, Branches]:
    """Returns the versions of messages of a branch, by the sequence of the step, where there are several: a question in
    other words has them at the question, another answer to it at the answer.
    """
    chain = set(state.chain(tip))
    if len(chain) == len(state.commits):
        return {}
    undone, children = state.undone, dict[int, list[int]]()
    for index, commit in enumerate(state.commits):
        if commit.run not in undone:
            children.setdefault(commit.parent, []).append(index)
    versions: dict[int, Branches] = {}
    for parent, siblings in children.items():
        shown = next((index for index in siblings if index in chain), None)
        if shown is None or len(siblings) == 1:
            continue
        questions: dict[str, list[int]] = {}
        for index in siblings:
            questions.setdefault(_question_of(state, index), []).append(index)
        own = questions[_question_of(state, shown)]
        if len(questions) > 1:
            newest = [shown if answers is own else answers[-1] for answers in questions.values()]
            step = shown if _question_in(state, shown) else parent
            versions[state.commits[step].seq] = _versions(state, newest, shown)
        if len(own) > 1 and (answer := _answer_from(state, chain, shown)) is not None:
            versions[state.commits[answer].seq] = _versions(state, own, shown)
    return versions


def _versions(state: ThreadState, indices: list[int], shown: int) -> Branches:
    return Branches(indices.index(shown), [checkpoint_id(state.commits[index].seq) for index in indices])


def _question_in(state: ThreadState, index: int) -> str:
    """Returns the id of the question that a step adds, empty if it adds none."""
    people = (one for one in usage.messages_of(state.commits[index].patch) if one["type"] == "human")
    return str(next(people, {}).get("id", ""))


def _question_of(state: ThreadState, index: int) -> str:
    """Returns the id of the question that a step belongs to."""
    return next((identity for at in state.chain(index) if (identity := _question_in(state, at))), "")


def _answer_from(state: ThreadState, chain: set[int], index: int) -> int | None:
    """Returns the last answer of the run that a step belongs to."""
    run = state.commits[index].run
    steps = (at for at in chain if at >= index and state.commits[at].run == run)
    return max((at for at in steps if usage.answer_in(state.commits[at])), default=None)


def newest_through(state: ThreadState, index: int) -> int:
    """Returns the newest commit of the branches that lead through a commit."""
    undone, through, newest = state.undone, {index}, index
    for later in range(index + 1, len(state.commits)):
        commit = state.commits[later]
        if commit.parent in through and commit.run not in undone:
            through.add(later)
            newest = later
    return newest


async def page(
    read: Read, aggregate: Aggregate, state: ThreadState, steps: Steps, cursor: Cursor
) -> tuple[list[Row], bool]:
    """Message rows of the steps, ascending, and whether there are more in the cursor's direction. Only the part
    of the log where they are is read.
    """
    seqs = _where(state, steps, cursor)
    if not seqs:
        return [], False
    low, high = -1 if cursor.after is None else cursor.after, LAST if cursor.before is None else cursor.before
    shown: list[Row] = []
    chosen = frozenset(seqs)
    async for record in read(aggregate, after=seqs[0] - 1, upto=seqs[-1]):
        if record.seq in chosen:
            shown += [row for row in rows(record, state) if row.category == "message" and low < row.seq < high]
    more = len(shown) > cursor.limit
    return (shown[: cursor.limit] if cursor.after is not None else shown[-cursor.limit :]), more


async def events(read: Read, thread_id: str, state: ThreadState, run: Run, kinds: set[str], limit: int) -> list[Row]:
    """The first rows of a run, of some types (none: of all), from the moment it was asked for until it ended."""
    shown: list[Row] = []
    async for record in read(thread(thread_id), after=run.requested_seq - 1, upto=run.ended_seq):
        if record.run == run.id:
            shown += [row for row in rows(record, state) if not kinds or row.event_type in kinds]
        if len(shown) >= limit:
            break
    return shown[:limit]


def rows(record: Record, state: ThreadState) -> list[Row]:
    """Returns the rows of one fact. A pure function of the fact, and of the state at any time after it."""
    event = record.event
    match event:
        case RunRequested():
            return []  # its input counts from the moment the run starts
        case RunStarted():
            run = state.runs.get(record.run or "")
            name = run.request.assistant if run else CALLER
            start = _row(record, 0, "run.start", "trace", name, {"attempt": event.attempt, "model": event.model})
            input = run.request.input if run and run.started_seq == record.seq else None
            brought = usage.messages_of(with_prepared(input or {}, event.prepared))
            return [start, *_messages(record, brought, begin=1)]
        case ModelCompleted(message=message):
            answer = timed(message, state.runs.get(record.run or ""))
            shown = _messages(record, [answer], _of_call(record, event, state))
            return [*shown, *_decisions(record, event.decisions)]
        case ToolCompleted(message=message):
            about: Json = {"caller": CALLER, "latency_ms": event.duration_ms}
            about |= {} if event.exit_code is None else {"exit_code": event.exit_code}
            about |= _as_edited(event.call_id, state)
            shown = _messages(record, [message], about)
            return [*shown, *_decisions(record, event.decisions)]
        case MessageAdded(messages=messages):
            return _messages(record, usage.messages_of({"messages": messages}))
        case StatePatched(values=values) | ThreadPruned(values=values):
            return _messages(record, usage.messages_of(values))
        case ThreadForked(patches=patches):
            return _messages(record, [message for patch in patches for message in usage.messages_of(patch)])
        case ModelFailed():
            about = {name: getattr(event, name) for name in ("error", "reason", "attempt", "max_attempts", "wait_ms")}
            return [_row(record, 0, "llm.error", "trace", event.text, about)]
        case RunFailed(message=apology):
            error = _row(record, 0, "run.error", "error", event.text, {"error": event.error})
            answers = [timed(apology, state.runs.get(record.run or ""))] if apology else []
            return [error, *_messages(record, answers, {"caller": CALLER}, begin=1)]
        case RunCompleted():
            return [_row(record, 0, "run.end", "outputs", {"status": "success"})]
        case RunPaused():
            return [_row(record, 0, "run.end", "outputs", {"status": "interrupted", "next": event.next})]
        case RunCancelled():
            return [_row(record, 0, "run.end", "outputs", {"status": "interrupted"})]
        case SubagentStarted() | SubagentProgressed() | SubagentCompleted():
            return [_of_subagent(record, event, state)]
    return [_row(record, 0, record.type, "trace", _fields(record))]


def _as_edited(call: str, state: ThreadState) -> Json:
    """Returns the arguments with which a call was made, if a person changed them before."""
    for approval in state.approvals.values():
        if approval.request.call_id == call and approval.resolved is not None and approval.resolved.args is not None:
            return {"edited_args": approval.resolved.args} if approval.request.form is None else {}
    return {}


def _of_subagent(
    record: Record, event: SubagentStarted | SubagentProgressed | SubagentCompleted, state: ThreadState
) -> Row:
    run = state.runs.get(record.run or "")
    known = delegation(run, event.call_id) if run else None
    about = {"caller": f"subagent:{known[1].name}" if known else "subagent", "task_id": event.call_id}
    content = full(event.message) if isinstance(event, SubagentProgressed) else _fields(record)
    return _row(record, 0, record.type, "trace", content, about)


def _fields(record: Record) -> Json:
    return {name: value for name, value in msgspec.json.decode(record.raw).items() if name not in ENVELOPE}


def last_answer(state: ThreadState, run: Run) -> int:
    """Returns the sequence of the last model answer of a run, 0 if there is none."""
    return max((commit.seq for commit in usage.steps_of(state, run) if usage.answer_in(commit)), default=0)


def _where(state: ThreadState, steps: Steps, cursor: Cursor) -> list[int]:
    """Sequences of the facts that a page's rows (and one more) are in, ascending. The fact that the cursor cuts counts
    for nothing: none of its rows may be left.
    """
    first = 0 if cursor.after is None else cursor.after // PLACES
    last = LAST if cursor.before is None else cursor.before // PLACES
    seqs: list[int] = []
    left = cursor.limit + 1
    begin, end = _span(state.commits, first, last)
    indices = range(max(begin, steps.span.start), min(end, steps.span.stop))
    for index in indices if cursor.after is not None else reversed(indices):
        commit = state.commits[index]
        again = bool(seqs) and seqs[-1] == commit.seq  # a fork's steps are one fact
        if left <= 0 and not again:
            break
        if steps.has(index, commit) and (count := len(usage.messages_in(commit))):
            if not again:
                seqs.append(commit.seq)
            left -= 0 if commit.seq in (first, last) else count
    return sorted(seqs)


def _span(commits: Sequence[Commit], first: int, last: int) -> tuple[int, int]:
    return bisect_left(commits, first, key=_seq), bisect_right(commits, last, key=_seq)


def _seq(commit: Commit) -> int:
    return commit.seq


def _of_call(record: Record, event: ModelCompleted, state: ThreadState) -> Json:
    run = state.runs.get(record.run or "")
    begin, end = _span(state.commits, (run.started_seq if run else None) or record.seq, record.seq)
    earlier = sum(commit.run == record.run and commit.node == "model" for commit in state.commits[begin:end])
    return {
        "caller": CALLER,
        "usage": event.message.get("usage_metadata") or {},
        "latency_ms": event.duration_ms,
        "llm_call_index": max(earlier, 1),
        "model": usage.model_of(event.message, run),
    }


def _decisions(record: Record, decisions: Sequence[Decision]) -> list[Row]:
    """Returns rows for what policies did about the one message of the fact."""
    return [
        _row(
            record,
            place,
            f"middleware:{decision.policy}"[:32],
            "middleware",
            {"name": decision.policy, "action": decision.action, "changes": decision.text},
        )
        for place, decision in enumerate(decisions[: PLACES - 1], 1)
    ]


def _messages(record: Record, messages: Sequence[Message], about: Json | None = None, *, begin: int = 0) -> list[Row]:
    return [
        _row(record, number % PLACES, TYPES.get(m["type"], f"llm.{m['type']}.input"), "message", full(m), about)
        for number, m in numbered(record.seq, messages, begin)
    ]


def _row(
    record: Record,
    place: int,
    event_type: str,
    category: Literal["message", "trace", "outputs", "error", "middleware"],
    content: Any,
    metadata: Json | None = None,
) -> Row:
    return Row(
        record.aggregate.id,
        record.run,
        event_type,
        category,
        content,
        metadata or {},
        record.seq * PLACES + place,
        record.at,
    )

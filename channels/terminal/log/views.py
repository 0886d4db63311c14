"""`sika log`: a thread's log as a story, live, its folded state, the causes of a fact, and its runs as trees."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec

from channels.terminal.log import diff as diff_text
from channels.terminal.log.numbers import Numbers
from channels.terminal.log.steps import lines as step_lines
from channels.terminal.log.story import WIDTH, Story
from channels.terminal.log.tree import tree_lines
from channels.terminal.text import Style, about, clean, one_line, todo_line
from core.events import Record
from core.phrases import quote
from core.replay import causes
from core.replay import diff as diffs
from core.replay import source as sources
from core.replay import tree as spans
from core.replay.comparing import compare
from core.replay.find import Query, picked
from core.replay.moments import moment
from core.replay.moments.places import record_at
from core.replay.money import Prices
from core.replay.named import aggregate_of
from core.replay.queries import Side, moment_of, run_of, sequence_of
from core.replay.recorded import logs_of, read_of
from core.replay.source import LogSource, Source
from core.replay.undecoded import problem_of
from core.thread.fold import fold
from core.thread.state import Run, ThreadState
from core.thread.values import next_nodes

if TYPE_CHECKING:
    from core.log.store import EventLog

Write = Callable[[str], None]


class Formatter(Protocol):
    """Formats events as lines, with their `numbers`; `rest` returns those held back."""

    numbers: Numbers

    def lines(self, record: Record) -> list[str]: ...

    def rest(self) -> list[str]: ...


async def records_of(source: Source, name: str) -> Sequence[Record]:
    """Returns the events of a log by its name (see `aggregate_of`). Raises `NotFound` if there are none."""
    return await sources.records_of(source, await aggregate_of(source, name))


async def show(
    source: Source,
    thread_id: str,
    write: Write,
    *,
    extent: Extent | None = None,
    raw: bool = False,
    story: Formatter,
    query: Query | None = None,
) -> int:
    """Writes the events of a part that meet a query as lines; returns the sequence of the log's last event."""
    records = await records_of(source, thread_id)
    story.numbers = Numbers(records)
    part = extent.of(records) if extent else records
    for record in picked(part, query) if query else part:
        _write_record(record, write, raw, story)
    for line in story.rest():
        write(line)
    return records[-1].seq


async def steps(
    source: Source,
    thread_id: str,
    write: Write,
    *,
    extent: Extent,
    style: Style | None = None,
    width: int = WIDTH,
    prices: Prices | None = None,
) -> None:
    """Writes a line for each step, and the totals."""
    records = await records_of(source, thread_id)
    for line in step_lines(extent.of(records), style or Style(), width, records, prices):
        write(line)


class Extent(NamedTuple):
    """A part of a thread: one run (`run_of`), after and until an event."""

    run: str | None = None
    after: str | None = None
    until: str | None = None

    def of(self, records: Sequence[Record]) -> list[Record]:
        """Returns the events of the part. Raises `NotFound`."""
        after = sequence_of(records, self.after) if self.after != "0" else None
        until = sequence_of(records, self.until)
        run = run_of(records, self.run) if self.run is not None else None
        return [
            record
            for record in records
            if (after is None or record.seq > after)
            and (until is None or record.seq <= until)
            and run in (None, record.run)
        ]


async def event(
    source: Source, thread_id: str, place: str, write: Write, *, raw: bool = False, style: Style | None = None
) -> None:
    """Writes one event in full: its fields, what it changes of the state, its causes and what it caused."""
    style, records = style or Style(), await records_of(source, thread_id)
    record = causes.find(records, place, records[0].aggregate)
    earlier = records[: records.index(record)]
    before, after = fold(earlier), fold([*earlier, record])
    changes = list(diffs.changes(values_of(before), values_of(after)))
    chain = await causes.why(source.read, record.aggregate, f"{causes.SEQUENCE}{record.seq}")
    effects = [other for other in records if other.head.cause == record.id]
    if raw:
        links = {"causes": [link.record.id for link in chain[:-1]], "effects": [other.id for other in effects]}
        changed = [change._asdict() for change in changes]
        write(_json({"event": msgspec.Raw(record.raw), "seq": record.seq, "changes": changed, **links}))
        return
    story = Story(style)
    story.numbers = Numbers(records)
    write(style.bold(f"{story.numbers.of(record)} {record.type}  {record.at}  seq:{record.seq}"))
    for line in field_lines(msgspec.json.decode(record.raw)):
        write(f"  {line}")
    for line in _section(style, "changes of the state", diff_text.state_lines(changes, style)):
        write(line)
    near = [story.line(link.record) for link in chain[-4:-1]]
    near += [f"  and {story.line(other)}" for other in chain[-1].beside]
    after_it = [story.line(other) for other in effects]
    for line in _section(style, "causes (log why has all)", near) + _section(style, "effects", after_it):
        write(line)


def field_lines(fields: Mapping[str, Any]) -> Iterator[str]:
    """Yields the fields of an event in full, long texts on lines of their own."""
    for name, value in fields.items():
        text = value if isinstance(value, str) else _json(value)
        lines = [clean(line) for line in text.splitlines()] or [""]
        yield from [f"{name}: {lines[0]}"] if len(lines) == 1 else [f"{name}:", *(f"  {line}" for line in lines)]


def values_of(state: ThreadState) -> Any:
    """Returns the JSON values of a state that are compared: those of the graph, and the statuses."""
    runs = {run.id: {"status": run.status, "attempt": run.attempt} for run in state.runs.values()}
    return msgspec.to_builtins({**state.values, "status": state.status, "runs": runs})


async def tail(
    log: EventLog, thread_id: str, write: Write, *, after: int = 0, raw: bool = False, story: Formatter
) -> None:
    """Calls `show`, and then writes every event as it comes, until cancelled."""
    source = LogSource(log)
    last = await show(source, thread_id, write, extent=Extent(after=str(after)), raw=raw, story=story)
    async for record in log.follow(await aggregate_of(source, thread_id), after=last):
        story.numbers.count(record.seq)
        _write_record(record, write, raw, story)


async def state(
    source: Source,
    thread_id: str,
    write: Write,
    *,
    raw: bool = False,
    style: Style | None = None,
    at: str | None = None,
    path: str | None = None,
) -> None:
    """Writes the folded state after the event `at` (`causes.find`), or after all; or its part at `path` (JMESPath)."""
    records = await records_of(source, thread_id)
    folded = moment.at(records, sequence_of(records, at))
    if path is not None:
        value = moment.part(msgspec.to_builtins(_plain(thread_id, folded)["values"]), path)
        write(value if isinstance(value, str) and not raw else _json(value))
        return
    problems = [f"{record.seq}: {problem}" for record in records if (problem := problem_of(record))]
    if raw:
        plain = _plain(thread_id, folded) | ({"undecoded": problems} if problems else {})
        write(_json(plain))
        return
    style = style or Style()
    lines = [style.red(one_line(problem, 300)) for problem in problems]
    for line in [*state_lines(thread_id, folded, style), *_section(style, "not in the state: do not decode", lines)]:
        write(line)


async def why(
    source: Source,
    thread_id: str,
    place: str,
    write: Write,
    *,
    raw: bool = False,
    style: Style | None = None,
    width: int = WIDTH,
) -> None:
    """Writes the chain of causes of an event or a call, the first cause first."""
    read, logs = read_of(source), logs_of(source)
    fact = record_at(read, await aggregate_of(source, thread_id), place)
    links = await causes.chain(logs, await fact, 0)  # envelopes: each event is read when it is written
    if raw:
        for link in links:
            others, record = [record.seq for record in link.beside], await logs.whole(link.record)
            line = {"seq": record.seq, "beside": others, "event": msgspec.Raw(record.raw)}
            write(msgspec.json.encode(line).decode())
        return
    story, style = Story(style, width), style or Style()
    for aggregate, part in groupby(links, lambda link: link.record.aggregate):
        chain = list(part)
        sequences = {record.seq for link in chain for record in (link.record, *link.beside)}
        story.numbers = await Numbers.of_log(read, aggregate, sequences)
        write(style.bold(f"{aggregate.kind} {aggregate.id}"))
        for link in chain:
            for record in link.beside:
                write(style.dim(f"  and {story.line(await logs.whole(record))}"))
            write(f"  → {story.line(await logs.whole(link.record))}")


async def tree(
    source: Source,
    thread_id: str,
    write: Write,
    *,
    raw: bool = False,
    style: Style | None = None,
    prices: Prices | None = None,
) -> None:
    """Writes the runs as trees of what took time."""
    runs = await spans.tree(read_of(source), await aggregate_of(source, thread_id), prices)
    if raw:
        write(_json(runs))
        return
    for number, run in enumerate(runs, 1):
        for line in tree_lines(run, number, style or Style()):
            write(line)


async def diff(
    source: Source,
    left: str,
    right: str,
    write: Write,
    *,
    raw: bool = False,
    whole: bool = False,
    style: Style,
    prices: Prices | None = None,
) -> bool:
    """Writes how two threads, runs (`THREAD#2`) or moments of a thread (`THREAD@17`) differ; returns whether they do.

    Two moments are compared as states, everything else step by step. Raises `Invalid` and `NotFound`.
    """
    sides, longest = (Side.of(left), Side.of(right)), None if raw else diff_text.MOST_CHARACTERS
    compared = await compare(source, *sides, prices, longest=longest)
    if compared.rows is None:
        changes = compared.changes
        lines = [_json([change._asdict() for change in changes])] if raw else diff_text.state_lines(changes, style)
    elif raw:
        rows = [{"difference": row.difference, "left": row.left, "right": row.right} for row in compared.rows]
        lines = [_json({"steps": rows, "setup": [setup._asdict() for setup in compared.setups]})]
    else:
        lefts = {row.left.seq for row in compared.rows if row.left}
        rights = {row.right.seq for row in compared.rows if row.right}
        numbers = [
            await Numbers.of_log(read_of(source), await aggregate_of(source, side.thread), sequences)
            for side, sequences in zip(sides, (lefts, rights), strict=True)
        ]
        lines = diff_text.run_lines(compared.rows, style, *numbers, whole=whole)
        lines += diff_text.setup_lines(compared.setups, style)
    for line in lines:
        write(line)
    return compared.different


def state_lines(thread_id: str, state: ThreadState, style: Style) -> list[str]:
    """Returns the lines of a folded thread."""
    values = state.values
    head = state.commits[state.head].seq if state.head >= 0 else "none"
    lines = [
        style.bold(f"thread {thread_id}") + ("  (erased)" if state.erased else ""),
        f"  user {state.user or '-'}, {state.status}, sequence {state.seq}, checkpoint {head}, next {_next(state)}",
        f"  created {state.created_at or '-'}, updated {state.updated_at}",
    ]
    if values.get("title"):
        lines.append(f"  title: {one_line(str(values['title']), 120)}")
    if state.metadata:
        lines.append(f"  metadata: {one_line(msgspec.json.encode(state.metadata).decode(), 140)}")
    lines += _section(style, "runs", [_run_line(run) for run in state.runs.values()])
    lines += _section(style, "todos", [todo_line(todo) for todo in values.get("todos") or ()])
    lines += _section(style, "artifacts", [one_line(str(path), 140) for path in values.get("artifacts") or ()])
    lines += _section(style, "messages", [_message_line(message) for message in state.messages])
    others = [name for name in values if name not in ("title", "todos", "artifacts", "messages")]
    return lines + _section(style, "other state", [_other_line(name, values[name]) for name in others])


def _section(style: Style, title: str, lines: Sequence[str]) -> list[str]:
    return [style.bold(title), *(f"  {line}" for line in lines)] if lines else []


def _run_line(run: Run) -> str:
    facts = [run.status, f"attempt {run.attempt}", run.created_at[:19].replace("T", " ")]
    facts += [f"cancel: {run.cancel}"] if run.cancel else []
    facts += [f"open calls: {', '.join(run.intents)}"] if run.intents else []
    facts += [one_line(run.error.text, 100)] if run.error else []
    return f"{run.id}  {', '.join(facts)}"


def _message_line(message: dict[str, Any]) -> str:
    calls = [f"→ {call.get('name')}({about(call.get('args') or {}, 60)})" for call in message.get("tool_calls") or ()]
    author = message.get("name") if message.get("type") == "tool" else message.get("type")
    return one_line(f"{author or '?'}: {' '.join([quote(message, 110), *calls]).strip()}", 160)


def _other_line(name: str, value: Any) -> str:
    return one_line(f"{name}: {msgspec.json.encode(value).decode()}", 160)


def _next(state: ThreadState) -> str:
    return ", ".join(next_nodes(state.messages)) or "nothing"


def _plain(thread_id: str, state: ThreadState) -> dict[str, Any]:
    return msgspec.structs.asdict(moment_of(thread_id, state))


def _json(value: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


def _write_record(record: Record, write: Write, raw: bool, story: Formatter) -> None:
    if raw:
        write(f'{{"seq":{record.seq},' + record.raw.decode().removeprefix("{"))
    else:
        for line in story.lines(record):
            write(line)

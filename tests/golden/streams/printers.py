"""What each protocol, client and screen makes of a thread, as bytes. Each function is called with a thread's script."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from actors.delivery.progress import Progress as ChatProgress
from channels.acp import mapping
from channels.client.events import MODES, StreamEvent, Translator
from channels.client.sse import Parser
from channels.http.debug.raw_log import _Log as Log
from channels.http.protocols.agui import Events
from channels.http.protocols.langgraph.follow import MODES as THREAD_MODES
from channels.http.protocols.langgraph.follow import ThreadFrames
from channels.http.protocols.langgraph.frames import LAST_SLOT, Cursor, Frames
from channels.http.protocols.langgraph.stream import delegates
from channels.http.protocols.langgraph_events.tape import Tape
from channels.http.protocols.langgraph_events.wire import Slot, WireEvent, place
from channels.http.streams import sse
from channels.terminal.chat.render import Transcript
from channels.terminal.console.screen import Screen
from core.events import Message, Record, RunRequested
from core.runs.follow import Speaker
from core.runs.moments import Finished, GivenUp, Grown, Missed, Moment, Moments, Previewed, Results
from core.runs.previews import Preview, RunPreview
from core.thread.fold import Folding, fold
from core.thread.state import ThreadState
from tests.channels.http.story import ALL, resumed
from tests.golden.streams.scripts import Item, Script


class _Frames(Protocol):
    """A translator of the thread, or of one run."""

    def audible(self) -> Iterable[Speaker]: ...

    def fact(self, record: Record) -> Sequence[sse.Encodable]: ...

    def run_preview(self, item: RunPreview) -> Sequence[sse.Encodable]: ...


def feed(translator: _Frames, item: Item, logs: Mapping[str, Sequence[Message]]) -> Sequence[sse.Encodable]:
    """What a translator makes of an item, as a server feeds it."""
    inform(translator, item, logs)
    if isinstance(item, Record):
        return translator.fact(item)
    return translator.run_preview(item) if item.run in {speaker.id for speaker in translator.audible()} else []


def inform(translator: Any, item: Item, logs: Mapping[str, Sequence[Message]]) -> None:
    if hasattr(translator, "behind") and (subagent := translator.behind(item)) is not None:
        translator.learn(subagent, logs.get(subagent, ()))


def records_of(items: Sequence[Item]) -> list[Record]:
    return [item for item in items if isinstance(item, Record)]


def runs_of(script: Script) -> list[tuple[str, int]]:
    """The runs, each with the place of its request among the items."""
    asked = ((place, item) for place, item in enumerate(script.items) if isinstance(item, Record))
    return [(item.run or "", place) for place, item in asked if isinstance(item.event, RunRequested)]


def stored(items: Sequence[Item]) -> list[Item]:
    """The facts, and after them the previews that are kept: what somebody who comes late is fed."""
    kept = [item._replace(stored=True) for item in items if isinstance(item, RunPreview)]
    return [*records_of(items), *kept]


def thread_id(script: Script) -> str:
    return script.records[0].aggregate.id


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def moments(script: Script) -> bytes:
    """What all of the protocols print."""
    folding = Folding(ThreadState())
    translator, lines = Moments(folding), []
    for item in script.items:
        if (subagent := translator.needs(item)) is not None:
            translator.learn(subagent, script.logs.get(subagent, ()))
        if isinstance(item, Record):
            folding.apply(item)
            shown = [*translator.fact(item), *translator.waiting()]
        else:
            shown = list(translator.preview(item.run, item.preview)) if isinstance(item.preview, Preview) else []
        lines += [f"{_line(moment)}\n" for moment in shown]
    return "".join(lines).encode()


def _line(moment: Moment) -> str:
    match moment:
        case Previewed(preview, begins):
            return f"heard {preview.message} {preview.offset} {begins}"
        case Missed(message):
            return f"missed {message}"
        case Results(subagent, messages, offset):
            return f"results {subagent.id} {[message['id'] for message in messages]} {offset}"
        case Grown(speaker, message, piece, end):
            return f"grown {speaker} {message} {piece.part} {piece.index} {piece.text!r} {end}"
        case GivenUp(speaker, reader):
            return f"given up {speaker} {reader.message} {reader.offset}"
        case Finished(speaker, event):
            return f"finished {speaker} {event.message['id']}"


# ── LangGraph's protocols ───────────────────────────────────────────────────────────────────────────────────────────


def run_stream(*modes: str) -> Callable[[Script], bytes]:
    """The streams of the runs in some modes, each live and from its request on."""

    def written(script: Script) -> bytes:
        lines = []
        for run_id, first in runs_of(script):
            frames = Frames(fold(records_of(script.items[:first])), thread_id(script), run_id, list(modes))
            shown = [frame for item in script.items[first:] for frame in feed(frames, item, script.logs)]
            lines += [f"── {run_id}\n".encode(), sse.encoded(shown)]
        return b"".join(lines)

    return written


def run_order(script: Script) -> bytes:
    """The frames of all modes at once, each in a line: what comes after what, and with which id."""
    lines = []
    for run_id, first in runs_of(script):
        frames = Frames(fold(records_of(script.items[:first])), thread_id(script), run_id, list(ALL))
        shown = [frame for item in script.items[first:] for frame in feed(frames, item, script.logs)]
        lines.append(f"── {run_id}\n")
        for frame in shown:
            assert isinstance(frame, sse.Frame)
            lines.append(f"{frame.id or '-'} {frame.event} {len(frame.data)} {digest(frame.encoded())}\n")
    return "".join(lines).encode()


def run_resumed(script: Script) -> bytes:
    """A digest of what comes after each frame of each run, for somebody who left at it."""
    lines = []
    for run_id, first in runs_of(script):
        before = fold(records_of(script.items[:first]))
        live = Frames(before, thread_id(script), run_id, list(ALL))
        for at, item in enumerate(script.items[first:], first + 1):
            for frame in feed(live, item, script.logs):
                cursor = Cursor.parse(getattr(frame, "id", ""))
                if cursor is None:
                    continue
                after = Frames(before, thread_id(script), run_id, list(ALL), after=cursor)
                items = [*stored(script.items[first:at]), *script.items[at:]]
                rest = sse.encoded([one for item in items for one in feed(after, item, script.logs)])
                lines.append(f"{run_id} {cursor} {len(rest)} {digest(rest)}\n")
    return "".join(lines).encode()


def run_late(script: Script) -> bytes:
    """A digest of what somebody sees who comes without having seen anything, after each item of each run."""
    lines = []
    for run_id, first in runs_of(script):
        for at in range(first + 1, len(script.items) + 1):
            state = fold(records_of(script.items[:at]))
            run = state.runs.get(run_id)
            if run is None or not run.open:
                break
            if delegates(run):  # as `late` in channels/http/protocols/langgraph/stream.py
                cursor = Cursor(state.seq, slot=LAST_SLOT)
                start = fold(records_of(script.items[:first]))
                frames = Frames(start, thread_id(script), run_id, list(ALL), after=cursor)
                items = stored(script.items[first:at])
            else:
                frames = Frames(state, thread_id(script), run_id, list(ALL))
                items = [item for item in stored(script.items[:at]) if isinstance(item, RunPreview)]
            shown = [one for item in [*items, *script.items[at:]] for one in feed(frames, item, script.logs)]
            data = sse.encoded(shown)
            lines.append(f"{run_id} {at} {len(data)} {digest(data)}\n")
    return "".join(lines).encode()


def _requesting(script: Script, *modes: str) -> list[Item]:
    """The items with runs that ask for these modes: a thread's stream shows of each run what was asked for."""
    items: list[Item] = []
    for item in script.items:
        if isinstance(item, Record) and isinstance(item.event, RunRequested):
            fields = {**msgspec.json.decode(item.raw), "stream_modes": list(modes)}
            item = Record(item.seq, msgspec.json.encode(fields))
        items.append(item)
    return items


def thread_stream(script: Script) -> bytes:
    frames = ThreadFrames(ThreadState(), thread_id(script), THREAD_MODES)
    items = _requesting(script, "values", "updates", "messages-tuple", "custom")
    return sse.encoded([frame for item in items for frame in feed(frames, item, script.logs)])


def thread_resumed(script: Script) -> bytes:
    """A digest of what comes after each frame of a thread's stream, for somebody who left at it."""
    lines = []
    items = _requesting(script, "values", "updates", "messages-tuple", "custom")
    live = ThreadFrames(ThreadState(), thread_id(script), THREAD_MODES)
    for at, item in enumerate(items, 1):
        for frame in feed(live, item, script.logs):
            if identity := getattr(frame, "id", ""):
                records = records_of(items[:at])
                after, first = resumed(records, thread_id(script), THREAD_MODES, identity)
                kept = [one for one in stored(items[:at]) if isinstance(one, RunPreview)]
                rest = [*records[first:], *kept, *items[at:]]
                data = sse.encoded([one for item in rest for one in feed(after, item, script.logs)])
                lines.append(f"{identity} {len(data)} {digest(data)}\n")
    return "".join(lines).encode()


def _everything(channel: str, namespace: tuple[str, ...]) -> bool:
    return True


def _taped(tape: Tape, item: Item, logs: Mapping[str, Sequence[Message]]) -> list[WireEvent]:
    inform(tape, item, logs)
    return tape.fact(item) if isinstance(item, Record) else tape.preview(item.run, item.preview)


def thread_events(script: Script) -> bytes:
    """The thread-centric protocol, all channels."""
    tape = Tape(ThreadState(), _everything)
    events = [event for item in script.items for event in _taped(tape, item, script.logs)]
    return b"".join(event.encoded() + b"\n" for event in events)


def thread_events_resumed(script: Script) -> bytes:
    """A digest of what comes after each numbered event, and after each item for somebody who comes late."""
    lines = []
    live = Tape(ThreadState(), _everything)
    for at, item in enumerate(script.items, 1):
        numbers = [-1] + [event.seq for event in _taped(live, item, script.logs) if event.seq is not None]
        for number in numbers:
            data = _events_after(script, at, number)
            lines.append(f"{at} {number} {len(data)} {digest(data)}\n")
    return "".join(lines).encode()


def _events_after(script: Script, at: int, number: int) -> bytes:
    """As a feed does it: the past by a tape of its own, then what is being said, then the tape that is live."""
    records, kept = records_of(script.items[:at]), [one for one in script.items[:at] if isinstance(one, RunPreview)]
    tape = Tape(fold(records), _everything)
    for preview in kept:
        _taped(tape, preview, script.logs)
    first = next((i for i, record in enumerate(records) if place(record.seq, Slot.ENDED) > number), len(records))
    past = Tape(fold(records[:first]), _everything, after=number, gone=tape.state.undone)
    events = [event for record in records[first:] for event in _taped(past, record, script.logs)]
    events += tape.unfinished()
    events += [event for item in script.items[at:] for event in _taped(tape, item, script.logs)]
    return b"".join(event.encoded() + b"\n" for event in events)


# ── other protocols ─────────────────────────────────────────────────────────────────────────────────────────────────


def agui(script: Script) -> bytes:
    lines = []
    for run_id, first in runs_of(script):
        before = fold(records_of(script.items[:first]))
        events = Events(before, thread_id(script), run_id)
        shown = [frame for item in script.items[first:] for frame in feed(events, item, script.logs)]
        lines += [f"── {run_id}\n".encode(), sse.encoded(shown)]
    return b"".join(lines)


def agui_joined(script: Script) -> bytes:
    """A digest of what somebody sees who asks again for a run that is at work, after each item of it."""
    lines = []
    for run_id, first in runs_of(script):
        before = fold(records_of(script.items[:first]))
        for at in range(first + 1, len(script.items) + 1):
            if run_id not in {run.id for run in fold(records_of(script.items[:at])).runs.open()}:
                break
            again = Events(before, thread_id(script), run_id)
            items = [*stored(script.items[first:at]), *script.items[at:]]
            data = sse.encoded([frame for item in items for frame in feed(again, item, script.logs)])
            lines.append(f"{run_id} {at} {len(data)} {digest(data)}\n")
    return "".join(lines).encode()


def log(script: Script) -> bytes:
    """The raw log with previews: what the page reads."""
    stream = Log(0, ThreadState())
    return sse.encoded([frame for item in script.items for frame in feed(stream, item, script.logs)])


# ── clients ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def events_of(script: Script) -> Iterator[tuple[str, list[StreamEvent], Translator]]:
    """What the Python client makes of each run."""
    for run_id, first in runs_of(script):
        frames = Frames(fold(records_of(script.items[:first])), thread_id(script), run_id, list(MODES))
        data = sse.encoded([frame for item in script.items[first:] for frame in feed(frames, item, script.logs)])
        translator = Translator(thread_id(script))
        yield run_id, [event for frame in Parser().feed(data) for event in translator.take(frame)], translator


def client(script: Script) -> bytes:
    lines = []
    for run_id, events, translator in events_of(script):
        lines.append(f"── {run_id}\n".encode())
        lines += [msgspec.json.encode([event.type, event.run_id, event.data]) + b"\n" for event in events]
        lines.append(msgspec.json.encode({"failure": translator.failure, "usage": translator.usage}) + b"\n")
    return b"".join(lines)


def acp(script: Script) -> bytes:
    lines = []
    turn = mapping.Turn("/home/ada/app")
    for run_id, events, _ in events_of(script):
        lines.append(f"── {run_id}\n".encode())
        updates = [update for event in events for update in turn.take(event)]
        lines += [update.model_dump_json(by_alias=True, exclude_none=True).encode() + b"\n" for update in updates]
        for question in mapping.questions(turn.values):
            shown = question.call.model_dump_json(by_alias=True, exclude_none=True)
            options = [option.model_dump(mode="json", exclude_none=True) for option in question.options]
            lines.append(f"? {question.id} {question.text!r} {shown} {options}\n".encode())
        if (choice := mapping.choices(turn.values)) is not None:
            lines.append(f"? {choice.text!r} {[option.name for option in choice.options]}\n".encode())
    lines.append(b"\xe2\x94\x80\xe2\x94\x80 unfinished, and the whole again\n")
    again = [*turn.unfinished(), *mapping.history(turn.values, "/home/ada/app")]
    lines += [update.model_dump_json(by_alias=True, exclude_none=True).encode() + b"\n" for update in again]
    return b"".join(lines)


def terminal(script: Script) -> bytes:
    """What a person sees where lines are not drawn again, and the questions that wait."""
    out = io.StringIO()
    transcript = Transcript(screen := Screen(out, io.StringIO()))
    for run_id, events, _ in events_of(script):
        screen.conclude()
        out.write(f"── {run_id}\n")
        for event in events:
            transcript.feed(event)
        screen.conclude()
        out.writelines(f"? {question.id} {question.value}\n" for question in transcript.questions)
    return out.getvalue().encode()


def chat(script: Script) -> bytes:
    """What a chat platform shows of each run after each item, where that changes."""
    lines = []
    for run_id, first in runs_of(script):
        progress = ChatProgress(run_id, fold(records_of(script.items[: first + 1])))
        shown = ("", "")
        lines.append(f"── {run_id}\n")
        for item in script.items[first + 1 :]:
            if progress.is_over():
                break
            if isinstance(item, Record) or item.run == run_id:
                progress.take([item])
            if not progress.is_over() and (now := (progress.text, progress.status)) != shown:
                shown = now
                lines.append(f"{shown}\n")
    return "".join(lines).encode()


PRINTERS: Mapping[str, Callable[[Script], bytes]] = {
    **{f"run.{mode}": run_stream(mode) for mode in (*ALL, "messages")},
    "run.order": run_order,
    "thread": thread_stream,
    "events": thread_events,
    "agui": agui,
    "log": log,
    "client": client,
    "acp": acp,
    "moments": moments,
    "terminal": terminal,
    "chat": chat,
}
"""What somebody sees who is there from the beginning."""
CUT: Mapping[str, Callable[[Script], bytes]] = {
    "run.resumed": run_resumed,
    "run.late": run_late,
    "thread.resumed": thread_resumed,
    "events.resumed": thread_events_resumed,
    "agui.joined": agui_joined,
}
"""What somebody sees who comes late, or again: digests, for each place at which that may be."""

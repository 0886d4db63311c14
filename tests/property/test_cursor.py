"""The cursor of a stream: from any frame of any run the rest is told, however often it breaks off; any other cursor,
whatever it is, does no harm.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from channels.http.protocols.langgraph.frames import Cursor, Frames
from channels.http.streams.sse import Frame
from core.events import (
    Event,
    Message,
    MessageAdded,
    ModelCompleted,
    ModelFailed,
    Record,
    RunCancelled,
    RunCompleted,
    RunFailed,
    RunPaused,
    RunRolledBack,
    RunSteered,
    StatePatched,
    ToolCompleted,
    ToolRequested,
)
from core.runs.previews import Preview
from core.thread.fold import fold
from tests.channels.http.story import (
    ALL,
    RUN,
    THREAD,
    Story,
    ai,
    answer,
    call,
    data,
    human,
    requested,
    resumed,
    started,
    streamed,
    tell,
)
from tests.conformance.site import Site, site
from tests.support.laws import EXAMPLES

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=9)
ENDS: Sequence[Event] = (
    RunCompleted(),
    RunFailed(error="E", text="broke"),
    RunCancelled(),
    RunPaused(next=["model"]),
)


# ── as a law of the translator ──────────────────────────────────────────────────────────────────────────────────────


@st.composite
def stories(draw: st.DrawFn) -> Story:
    """A run with some of everything that can happen in one."""
    story = Story(requested(human("h", draw(TEXT))), started())
    for number in range(draw(st.integers(1, 3))):
        if draw(st.booleans()):
            failed = ModelFailed(error="E", text="busy", attempt=1, max_attempts=3, reason="busy", wait_ms=1)
            story.add(failed)
        if draw(st.booleans()):
            story.add(StatePatched(values={"title": draw(TEXT)}), run=None)
        _said(draw, story, number)
        if draw(st.booleans()):
            steered: Message = human(f"s{number}", draw(TEXT))
            story.add(RunSteered(message=steered), MessageAdded(messages=[steered]))
        if draw(st.booleans()):
            story.add(started(number + 2))
    story.add(draw(st.sampled_from(ENDS)))
    return story


def _said(draw: st.DrawFn, story: Story, number: int) -> None:
    """One answer of the model, and what comes of the tools it asked for."""
    names = [f"c{number}{letter}" for letter in "ab"[: draw(st.integers(0, 2))]]
    calls = [call(name, "look", at=draw(TEXT)) for name in names]
    thought = {"additional_kwargs": {"reasoning_content": draw(TEXT)}} if draw(st.booleans()) else {}
    story.add(ModelCompleted(message=ai(f"m{number}", draw(TEXT), *calls, **thought)))
    story.add(*(ToolRequested(call_id=name, name="look", effect="pure") for name in names))
    for name in draw(st.permutations(names)):
        story.add(ToolCompleted(call_id=name, message=answer(name, "look", draw(TEXT))))


@given(
    story=stories(),
    modes=st.sets(st.sampled_from(ALL), min_size=1),
    cuts=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 5), st.lists(st.booleans(), max_size=9)), max_size=4),
)
def test_a_stream_that_breaks_off_again_and_again_is_whole(
    story: Story, modes: set[str], cuts: list[tuple[float, int, list[bool]]]
) -> None:
    """Each time it comes back with the last id, in other pieces, with other previews lost."""
    whole = tell(story, modes)
    seen: list[Frame] = []
    for where, size, keep in cuts:
        told = tell(story, modes, size=size, keep=keep, after=_last(seen))
        seen += told[: int(where * (len(told) + 1))]
    seen += tell(story, modes, after=_last(seen))
    assert _facts(seen) == _facts(whole)
    assert streamed(seen) == streamed(whole)
    ids = [frame.id for frame in seen if frame.id]
    assert len(ids) == len(set(ids))


def _last(frames: Sequence[Frame]) -> Cursor | None:
    """What a client keeps: the last id it saw."""
    return next((Cursor.parse(frame.id) for frame in reversed(frames) if frame.id), None)


def _facts(frames: Sequence[Frame]) -> list[Frame]:
    """What is told once and in order. Pieces of messages have ids of the second form, or none."""
    places = [(frame, Cursor.parse(frame.id)) for frame in frames]
    return [frame for frame, place in places if place is not None and not place.offset]


@given(st.text() | st.from_regex(r"\d{0,20}-\d{0,14}-\d{0,6}"))
def test_any_text_is_a_cursor_or_none(text: str) -> None:
    place = Cursor.parse(text)
    if place is not None:
        assert min(place.seq, place.offset, place.slot) >= 0
        assert Cursor.parse(str(place)) == place


# ── attempts, and what others write meanwhile ────────────────────────────────────────────────────────────────────────

Step = Record | Preview


class Course(NamedTuple):
    """What a reader hears, in this order; the messages that were begun, and which of them are finished."""

    steps: Sequence[Step]
    texts: Mapping[str, str]
    finished: frozenset[str]


@st.composite
def courses(draw: st.DrawFn) -> Course:
    """A run whose model is asked again and again; others write to its thread; previews are late, early and lost."""
    modes = ["values", "messages-tuple", "custom"]
    story = Story(requested(human("h", "x"), stream_modes=modes), started())
    sent: list[tuple[int, Preview]] = []
    texts: dict[str, str] = {}
    finished: set[str] = set()
    asked = draw(st.integers(1, 3))
    for number in range(asked):
        name, text = f"m{number}", draw(st.text("abc", min_size=1, max_size=6))
        begun, texts[name] = len(story.records) - 1, text
        after = story.records[-1].seq
        for meanwhile in range(draw(st.integers(0, 2))):
            if draw(st.booleans()):
                story.add(StatePatched(values={"title": f"{number}.{meanwhile}"}), run=None)
            else:
                story.add(requested(stream_modes=modes, multitask="enqueue"), run=f"r{number}-{meanwhile}")
        if draw(st.booleans()):
            story.add(ModelCompleted(message=ai(name, text)))
            finished.add(name)
        elif number + 1 < asked:
            failed = ModelFailed(error="E", text="busy", attempt=1, max_attempts=3, reason="busy", wait_ms=1)
            story.add(draw(st.sampled_from([failed, started(number + 2)])))
        moments = sorted(draw(st.lists(st.integers(begun, len(story.records) + 1), min_size=6, max_size=6)))
        for offset, (letter, moment) in enumerate(zip(text, moments, strict=False)):
            if draw(st.integers(0, 7)):
                sent.append((moment, Preview(message=name, after=after, offset=offset, text=letter)))
    story.add(draw(st.sampled_from([*ENDS, RunRolledBack()])))
    steps: list[Step] = []
    for index, record in enumerate(story.records):
        steps += [preview for moment, preview in sent if moment == index]
        steps.append(record)
    return Course(steps, texts, frozenset(finished))


def of_run(course: Course, at: int, last: str) -> list[list[Frame]]:
    """What a connection to the run's stream shows that is opened at a step; by step."""
    past, begin = _past(course, at), fold([])
    frames = Frames(begin, THREAD, RUN, ["values", "messages-tuple", "custom"], after=Cursor.parse(last))
    missed = [frame for step in past for frame in _heard(frames, step)]
    return [missed, *([*_heard(frames, step)] for step in course.steps[at:])]


def _heard(frames: Frames, step: Step) -> list[Frame]:
    return frames.fact(step) if isinstance(step, Record) else frames.preview(step)


def of_thread(course: Course, at: int, last: str) -> list[list[Frame]]:
    """The same of the thread's stream."""
    past = _past(course, at)
    records = [step for step in past if isinstance(step, Record)]
    frames, start = resumed(records, THREAD, ["run_modes", "state_update"], last)

    def hear(step: Step) -> list[Frame]:
        return frames.fact(step) if isinstance(step, Record) else frames.preview(RUN, step)

    missed = [frame for step in [*records[start:], *past[len(records) :]] for frame in hear(step)]
    return [missed, *([*hear(step)] for step in course.steps[at:])]


def _past(course: Course, at: int) -> Sequence[Step]:
    """What happened before a step, as a reader who comes then gets it: the facts, then the previews."""
    return sorted(course.steps[:at], key=lambda step: isinstance(step, Preview))


Way = Callable[[Course, int, str], list[list[Frame]]]


@pytest.mark.parametrize("way", [of_run, of_thread])
@given(course=courses(), delay=st.integers(0, 4))
@settings(max_examples=30, deadline=None)
def test_each_character_comes_once_whatever_was_given_up(way: Way, course: Course, delay: int) -> None:
    """The stream is cut after every frame, and goes on a little later."""
    whole = way(course, 0, "")
    _check(course, [frame for step in whole for frame in step])
    seen: list[Frame] = []
    for index, frames in enumerate(whole):
        for frame in frames:
            seen.append(frame)
            if frame.id:
                rest = way(course, min(index + delay, len(course.steps)), frame.id)
                _check(course, seen + [frame for step in rest for frame in step])


def _check(course: Course, frames: Sequence[Frame]) -> None:
    ids = [frame.id for frame in frames if frame.id]
    assert len(ids) == len(set(ids))
    said = {name: message["text"] for name, message in streamed(frames).items()}
    for name, text in course.texts.items():
        if name in course.finished:
            assert said.get(name, "") == text
        else:
            assert text.startswith(said.get(name, ""))
    assert _screen(frames) <= {"h", *course.finished}


def _screen(frames: Sequence[Frame]) -> set[str]:
    """The messages that a client shows in the end: `values` replace what it has. No text may come after its end."""
    shown: set[str] = set()
    for frame in frames:
        if frame.event == "values":
            shown = {message["id"] for message in data(frame).get("messages", [])}
        elif frame.event == "messages":
            shown.add(data(frame)[0]["id"])
    return shown


def test_an_id_of_an_older_server_is_good_for_the_next_message() -> None:
    story = Story(requested(human("h", "x")), started(), ModelCompleted(message=ai("m", "Hello")), RunCompleted())
    for offset in range(6):
        told = tell(story, ["messages-tuple"], size=1, after=Cursor.parse(f"16-{offset}-0"))
        said = "".join(data(frame)[0]["content"] for frame in told if frame.event == "messages")
        assert said == "Hello"[offset:]


# ── over HTTP ───────────────────────────────────────────────────────────────────────────────────────────────────────


class Run(NamedTuple):
    """A run that has ended, and its stream."""

    host: str
    path: str
    ids: Sequence[str]
    whole: Sequence[Mapping[str, Any]]

    def __repr__(self) -> str:
        return f"Run({self.path})"  # the whole stream is more than hypothesis shows


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with site(tmp_path_factory.mktemp("cursor")) as started:
        yield started


@pytest.fixture(scope="module")
def runs(server: Site) -> tuple[Run, Run]:
    """Two runs of one thread."""
    host = urlsplit(server.urls[0]).netloc
    thread = json.loads(_asked(host, "POST", "/api/threads", {})[1])["thread_id"]
    return _run(host, thread, "works"), _run(host, thread, "thinks")


def _run(host: str, thread: str, model: str) -> Run:
    body = {
        "assistant_id": "lead_agent",
        "input": {"messages": [{"role": "user", "content": "Hi"}]},
        "context": {"model_name": model},
        "stream_mode": ["values", "updates", "messages-tuple", "tasks"],
    }
    status, raw = _asked(host, "POST", f"/api/threads/{thread}/runs/stream", body)
    assert status == 200
    whole = _frames(raw)
    path = f"/api/threads/{thread}/runs/{whole[0]['data']['run_id']}/stream"
    assert _text(_resumed(Run(host, path, (), ()), b"-1")) == _text(whole)
    return Run(host, path, [frame["id"] for frame in whole if "id" in frame], whole)


def _asked(
    host: str, method: str, path: str, body: Any = None, headers: Mapping[str, Any] | None = None
) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(host, timeout=20)
    try:
        raw = None if body is None else json.dumps(body)
        connection.request(method, path, raw, {**(headers or {}), "Connection": "close"})
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def _resumed(run: Run, cursor: bytes) -> list[Mapping[str, Any]]:
    """The stream after a cursor; it ends, and it is a stream. There is none (204) only from the last frame on."""
    status, raw = _asked(run.host, "GET", run.path, headers={"Accept": "text/event-stream", "Last-Event-ID": cursor})
    if status == 204:
        place, end = Cursor.parse(cursor.decode("latin-1")), Cursor.parse(run.ids[-1])
        assert place is not None
        assert end is not None
        assert (place.seq, raw) == (end.seq, b"")
        assert place.slot >= end.slot
        return []
    assert status == 200, raw
    return _frames(raw)


def _frames(raw: bytes) -> list[Mapping[str, Any]]:
    found: list[Mapping[str, Any]] = []
    for block in raw.decode().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.split("\n") if line and not line.startswith(":"))
        if fields:
            found.append({**fields, "data": json.loads(fields["data"])})
    return found


def _text(frames: Sequence[Mapping[str, Any]]) -> Mapping[str, str]:
    found: dict[str, str] = {}
    for frame in frames:
        if frame["event"] == "messages":
            message, _ = frame["data"]
            found[message["id"]] = found.get(message["id"], "") + message["content"]
    return found


def _told(frames: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [frame for frame in frames if frame["event"] != "messages"]


FIELD = st.binary(max_size=60).map(lambda raw: bytes(byte for byte in raw if byte in b"\t" or 32 <= byte != 127))
"""What HTTP lets through as the value of a header."""
NUMBERS = st.integers(-(10**20), 10**20) | st.sampled_from([0, 1, 2**31, 2**53, 2**63 - 1, 2**63, 2**64])
ODD = st.one_of(
    FIELD,
    st.tuples(NUMBERS, NUMBERS, NUMBERS).map(lambda parts: "-".join(map(str, parts)).encode()),
    st.sampled_from(
        [b"-1", b"0", b"", b" ", b"null", b"undefined", b"[object Object]", b"9" * 4000, b"1795198184224-0"]
    ),
    st.uuids().map(lambda identity: str(identity).encode()),
)
over_http = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=2 * EXAMPLES)


@given(cursor=ODD)
@example(cursor=b"-1")
@example(cursor=b"")
@over_http
def test_an_odd_cursor_gets_the_whole_stream(runs: tuple[Run, Run], cursor: bytes) -> None:
    """Or, where it happens to be a place of this log, what is after that; always to the end, and never an error."""
    first, _ = runs
    told = _resumed(first, cursor)
    place = Cursor.parse(cursor.decode("latin-1"))
    if place is None:
        assert _told(told) == _told(first.whole)
    if told:
        assert told[-1]["event"] == "end"


@given(number=st.integers(0, 10**6))
@over_http
def test_a_cursor_of_another_run_gets_the_whole_stream(runs: tuple[Run, Run], number: int) -> None:
    first, second = runs
    for mine, other in ((first, second), (second, first)):
        told = _resumed(mine, other.ids[number % len(other.ids)].encode())
        assert _told(told) == _told(mine.whole)
        assert _text(told) == _text(mine.whole)


@given(data=st.data())
@over_http
def test_a_cursor_of_the_run_gets_the_rest(runs: tuple[Run, Run], data: st.DataObject) -> None:
    """In any number of parts."""
    for run in runs:
        seen: list[Mapping[str, Any]] = []
        told = list(run.whole)
        for _ in range(data.draw(st.integers(1, 3))):
            seen += told[: data.draw(st.integers(1, len(told)))] if told else []
            last = next(frame["id"] for frame in reversed(seen) if "id" in frame)
            told = _resumed(run, last.encode())
        seen += told
        assert _told(seen) == _told(run.whole)
        assert _text(seen) == _text(run.whole)


@given(data=st.data())
@over_http
def test_a_cursor_that_nearly_is_one_of_the_run(runs: tuple[Run, Run], data: st.DataObject) -> None:
    """A frame of it lost or doubled is not told; a place beyond its end is the end."""
    first, _ = runs
    parts = data.draw(st.sampled_from(first.ids)).split("-")
    place = data.draw(st.integers(0, 2))
    parts[place] = str(max(0, int(parts[place]) + data.draw(st.integers(-3, 3))))
    told = _resumed(first, "-".join(parts).encode())
    whole = [(frame["event"], frame["data"]) for frame in _told(first.whole)]
    if told:
        rest = [(frame["event"], frame["data"]) for frame in _told(told)]
        assert rest == whole[len(whole) - len(rest) :]


Change = Callable[[str], str]


@pytest.mark.parametrize("change", [str.upper, lambda text: f" {text} ", lambda text: f"{text}\t"])
def test_white_space_around_a_cursor_is_nothing(runs: tuple[Run, Run], change: Change) -> None:
    first, _ = runs
    middle = first.ids[len(first.ids) // 2]
    assert _resumed(first, change(middle).encode()) == _resumed(first, middle.encode())


def test_ids_are_named_by_the_log(runs: tuple[Run, Run]) -> None:
    """Increasing and unique, over both runs of the thread."""
    places = [Cursor.parse(identity) for run in runs for identity in run.ids]
    assert all(place is not None for place in places)
    assert places == sorted(set(places), key=lambda place: place or Cursor(0))

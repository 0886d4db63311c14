"""An event of a package says the same wherever people meet it: in its own words, or by its type and its fields."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from actors.delivery.progress import Progress
from channels.client.events import Translator
from channels.client.sse import Frame
from channels.http.debug import debugging, raw_log
from channels.http.protocols.langgraph.frames import Frames
from channels.terminal.chat.render import Transcript
from channels.terminal.console.screen import Screen
from channels.terminal.log.steps import rows
from channels.terminal.log.story import Story
from core.events import Event, Record, RunCompleted
from core.phrases import Language, Phrase
from core.replay.queries import Entry, EventPage
from core.thread.fold import fold
from core.wording import line_of
from tests.channels.http.story import RUN, THREAD, requested, started
from tests.channels.http.story import Story as Log
from tests.extending.pages import ROOT, install, write


class LighthouseLit(Event, frozen=True):
    """A package's event with words."""

    phrase = Phrase("Lighthouse lit", "灯塔已点亮", "{place}, {times} times", "{place}，{times} 次")
    place: str
    times: int = 2


class FoghornTested(Event, frozen=True):
    """A package's event without words."""

    volume: int


def log_of(event: Event) -> list[Record]:
    return Log(requested(), started(), event, RunCompleted()).records


@pytest.mark.parametrize(
    ("event", "language", "name", "text"),
    [
        (LighthouseLit(place="Rock"), "en", "Lighthouse lit", "Rock, 2 times"),
        (LighthouseLit(place="Rock"), "zh", "灯塔已点亮", "Rock，2 次"),
        (FoghornTested(volume=7), "en", "foghorn tested", '{"volume":7}'),
        (FoghornTested(volume=7), "zh", "foghorn tested", '{"volume":7}'),
    ],
)
def test_logs_say_it_in_its_words(event: Event, language: Language, name: str, text: str) -> None:
    records = log_of(event)
    [record] = [record for record in records if type(record.event) is type(event)]
    phrase = {"name": name, "text": text}
    page = debugging._logged(EventPage([Entry(record.seq, msgspec.Raw(record.raw))]), language)
    assert msgspec.to_builtins(page.events[0].phrase) == phrase
    assert msgspec.json.decode(raw_log._Words(language).whole(record))["phrase"] == phrase
    if language == "en":
        assert Story().line(record).endswith(f" {text}")
        assert [row.text for row in rows(records) if row.record is record] == [f"{record.type}  {text}"]


def test_chats_say_it_as_it_happens() -> None:
    event = LighthouseLit(place="Rock")
    records = log_of(event)
    assert in_terminal(records) == f"▸ {line_of(event)}\n" == "▸ Lighthouse lit: Rock, 2 times\n"
    assert on_platforms(records) == ["Lighthouse lit: Rock, 2 times"]


def test_chats_say_nothing_of_what_has_no_words() -> None:
    """Its fields were written for those who read logs, and not for everybody in a group."""
    records = log_of(FoghornTested(volume=7))
    assert in_terminal(records) == ""
    assert on_platforms(records) == []


def in_terminal(records: list[Record]) -> str:
    """What the chat in a terminal shows of a run."""
    out = io.StringIO()
    screen, translator, frames = (
        Screen(out, io.StringIO()),
        Translator(),
        Frames(fold(records[:1]), THREAD, RUN, ["custom"]),
    )
    transcript = Transcript(screen)
    for frame in (frame for record in records[1:] for frame in frames.fact(record)):
        for event in translator.take(Frame(frame.event, msgspec.json.decode(frame.data))):
            transcript.feed(event)
    screen.settle()
    return out.getvalue()


def on_platforms(records: list[Record]) -> list[str]:
    """The lines of status that a bot shows of a run."""
    progress, lines = Progress(RUN, fold(records[:1])), list[str]()
    for record in records[1:]:
        progress.take([record])
        lines.append(progress.status)
    return [line for line in dict.fromkeys(lines) if line]


def test_the_page_has_the_words_of_installed_packages(tmp_path: Path) -> None:
    install([write("event", tmp_path / "milestones")], tmp_path / "packages")
    code = "from channels.web import assets; print(assets.asset(assets.name_of('timeline.js')).body.decode())"
    env: dict[str, Any] = {**os.environ, "PYTHONPATH": os.pathsep.join((str(tmp_path / "packages"), str(ROOT)))}
    script = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True, timeout=60
    )
    assert (
        '["milestone.reached", {"en": ["Milestone reached", "{count} run<count!=1?s>"], "zh": ["达到里程碑"'
        in script.stdout
    )

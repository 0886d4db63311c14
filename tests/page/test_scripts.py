"""The page's scripts without a browser: their types and style, and the folds on recorded logs. All by Node."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import anyio
import msgspec
import pytest

from channels.web import catalogue
from core.catalogue import installed
from core.events import ENVELOPE, Envelope, Event, encode
from core.phrases import LANGUAGES, Phrase
from core.wording import name_of, text_of_event
from tests.core.test_phrases import CASES as PHRASE_CASES
from tests.page import check, moments
from tests.support.phrases import examples

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "channels/web"
SOURCE = PAGE / "vendor/source"
SCRIPTS = Path(__file__).parent / "scripts"
NODE = shutil.which("node")


def run(
    *words: str | Path, cwd: Path, seconds: float = 300, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*map(str, words)],
        cwd=cwd,
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )


@pytest.mark.timeout(400)
@pytest.mark.skipif(NODE is None, reason="there is no Node: the folds are tried in the browser only")
def test_the_folds_hold_on_recorded_logs(tmp_path: Path) -> None:
    tables = {"SIKA_PHRASES": phrases(), "SIKA_MOMENTS": anyio.run(moments.expected)}
    for name, table in tables.items():
        (tmp_path / name).write_bytes(table)
    places = {name: str(tmp_path / name) for name in tables}
    result = run(NODE or "", "--test", *sorted(SCRIPTS.glob("*.test.mjs")), cwd=ROOT, env=places)
    assert result.returncode == 0, result.stdout[-8000:] + result.stderr[-2000:]
    assert "# pass 0" not in result.stdout
    assert "# skipped 0" in result.stdout


def phrases() -> bytes:
    """Returns the server's examples for its words of events, and what it says of an event of every type."""
    head = Envelope(id="e", type="", kind="thread", aggregate_id="t", actor="a", at="2026-11-28T10:00:00Z")
    others = [Unworded(colour="red", of={"a": 1}), Worded(place="Rock")]
    types: dict[str, type[Event]] = {**installed(), "worded": Worded}
    words = {
        "cases": [
            {"template": template, "event": _whole(event), "text": text} for template, event, text in PHRASE_CASES
        ],
        "catalogue": [[name, catalogue.entry(cls)] for name, cls in types.items() if cls.phrase],
        "envelope": sorted(ENVELOPE),
        "events": [
            {"event": json.loads(encode(event, head))}
            | {shown: [name_of(event, shown), text_of_event(event, shown)] for shown in LANGUAGES}
            for event in [*examples(), *others]
        ],
    }
    return json.dumps(words).encode()


class Unworded(Event, frozen=True):
    """A test's own event, without words."""

    colour: str
    of: dict[str, int]


class Worded(Event, frozen=True):
    """A package's event."""

    phrase = Phrase("Lighthouse lit", "灯塔已点亮", "{place}, {times} times", "{place}，{times} 次")
    place: str
    times: int = 2


def _whole(event: Event) -> dict[str, object]:
    """Returns the fields as they are stored, with those that have their default."""
    fields = msgspec.structs.fields(event)
    return {field.name: msgspec.to_builtins(getattr(event, field.name)) for field in fields}


@pytest.fixture(scope="module")
def tools() -> Path:
    """The folder with the tools that `package.json` pins."""
    if problem := check.install():
        pytest.skip(f"types and style of the page's scripts are not checked: {problem}")
    return check.tools()


@pytest.mark.long
@pytest.mark.timeout(1500)
@pytest.mark.usefixtures("tools")
def test_types_and_style_hold() -> None:
    assert not check.check()


@pytest.mark.long
@pytest.mark.timeout(1500)
@pytest.mark.skipif(NODE is None, reason="there is no Node: the libraries cannot be made")
def test_libraries_are_what_make_vendor_makes(tools: Path, tmp_path: Path) -> None:
    """Byte for byte: their files, the manifest with their hashes, and the licences."""
    for file in SOURCE.iterdir():
        shutil.copy(file, tmp_path)
    os.symlink(tools / "node_modules", tmp_path / "node_modules")
    target = tmp_path / "made"
    target.mkdir()
    result = run(NODE or "", "build.mjs", target, cwd=tmp_path)
    assert result.returncode == 0, result.stderr[-2000:]
    made = {file.name for file in target.iterdir()}
    assert made == {file.name for file in (PAGE / "vendor").iterdir() if file.is_file() and file.suffix != ".ts"}
    for name in sorted(made):
        assert (target / name).read_bytes() == (PAGE / "vendor" / name).read_bytes(), f"{name}: run `make vendor`"

"""What our page and DeerFlow's cost in the browser while they show the same answer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

import msgspec
from playwright.sync_api import Browser, CDPSession

from tests.bench import processes
from tests.bench.laboratory import Laboratory
from tests.bench.measure import Row, at_most, median, ratio
from tests.support.model_server import Script, Turn

_TOKENS = 2000
_MODEL = "markdown"
_LAST = "That is all of it."
_SETTLING_MS = 2000
"""For what a page does after the last token: it counts too."""
_PART = """## Part {number}

Some **bold** text and `code`, a [link](https://example.org/x), and words that follow each other, as answers do.

- one thing to say
- another thing, with more `code`

| city | people |
|---|---|
| Bern | 134 |
| Graz | 303 |

```python
def part_{number}(numbers):
    return [number + {number} for number in numbers]
```

A last paragraph of plain words that says nothing at all, but is as long as a person expects it to be.

"""
_CHOICES = {"sika.choices": {"model": _MODEL, "mode": "pro", "agent": ""}}
_THEIR_CHOICES = {"deerflow.local-settings": {"context": {"model_name": _MODEL, "mode": "pro"}}}


@dataclass(frozen=True)
class _Place:
    """A page: where a new conversation begins, its field, and what its storage holds so that our model answers."""

    name: str
    url: str
    field: str
    storage: dict[str, Any]


@dataclass(frozen=True)
class _Figures:
    """Milliseconds of CPU for one token."""

    thread: float
    """Of the main thread."""
    renderer: float
    """Of the process, with its workers."""
    browser: float
    """Of all processes of the browser."""


def beside(lab: Laboratory, browser: Browser, deerflow: str) -> Iterator[Row]:
    """Both pages are on one Sika: ours as it serves it, DeerFlow's as its nginx does. They take turns."""
    ours, theirs = list[_Figures](), list[_Figures]()
    with (
        processes.models(scripts=_scripts(lab.folder)) as models,
        processes.sika(lab.new_home(), _config(lab.folder, models)) as sika,
        processes.front(f"http://{sika.host}:{sika.port}", deerflow) as front,
    ):
        mine = _Place("our", f"http://{sika.host}:{sika.port}/#/", "#composer", _CHOICES)
        other = _Place("DeerFlow's", f"{front}/workspace/chats/new", "textarea[name=message]", _THEIR_CHOICES)
        for repetition in range(1 if lab.quick else 5):
            for place, figures in [(mine, ours), (other, theirs)][:: -1 if repetition % 2 else 1]:
                lab.say(f"{place.name} page, {repetition + 1}")
                figures.append(_measured(browser, place))
    for what, part in (
        ("main thread", attrgetter("thread")),
        ("its process", attrgetter("renderer")),
        ("browser", attrgetter("browser")),
    ):
        values, theirs_of_it = [part(one) for one in ours], [part(one) for one in theirs]
        yield Row(
            f"CPU of a token, {what}, beside DeerFlow's page",
            ratio(values, theirs_of_it),
            at_most(1),
            "ms/token",
            ours=median(values),
            bare=median(theirs_of_it),
            note="bare: DeerFlow's page",
        )


def _scripts(folder: Path) -> Path:
    """A model that says so many words of Markdown, 100 a second at most."""
    words = "".join(_PART.format(number=number) for number in range(_TOKENS // 40)).split(" ")[:_TOKENS]
    script = Script((Turn(text=f"{' '.join(words)}\n\n{_LAST}", delay_ms=10),))
    path = folder / "markdown.json"
    path.write_bytes(msgspec.json.encode({_MODEL: script}))
    return path


def _config(folder: Path, models: str) -> Path:
    entry = {"name": _MODEL, "model": _MODEL, "base_url": models, "api_key": "none"}
    return processes.configure(folder / "markdown.yaml", models, models=[entry])


def _measured(browser: Browser, place: _Place) -> _Figures:
    """One answer in a window of its own, from the question until some seconds after its last word."""
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    try:
        tab = context.new_page()
        items = json.dumps({name: json.dumps(value) for name, value in place.storage.items()})
        tab.add_init_script(f"Object.entries({items}).forEach(([name, value]) => localStorage.setItem(name, value))")
        tab.goto(place.url)
        tab.fill(place.field, "Speak")
        tab.wait_for_timeout(_SETTLING_MS)
        page, whole = context.new_cdp_session(tab), browser.new_browser_cdp_session()
        page.send("Performance.enable", {"timeDomain": "threadTicks"})
        before = _cpu(page, whole)
        tab.press(place.field, "Enter")
        tab.get_by_text(_LAST).wait_for(timeout=180_000)
        tab.wait_for_timeout(_SETTLING_MS)
        after = _cpu(page, whole)
    finally:
        context.close()
    return _Figures(*(1000 * (late - early) / _TOKENS for early, late in zip(before, after, strict=True)))


def _cpu(page: CDPSession, whole: CDPSession) -> tuple[float, float, float]:
    """Seconds of the page's main thread, of the processes of pages, and of all of the browser's."""
    metrics = {one["name"]: one["value"] for one in page.send("Performance.getMetrics")["metrics"]}
    spent = [(one["type"], one["cpuTime"]) for one in whole.send("SystemInfo.getProcessInfo")["processInfo"]]
    renderers = sum(seconds for kind, seconds in spent if kind == "renderer")
    return metrics["TaskDuration"], renderers, sum(seconds for _, seconds in spent)

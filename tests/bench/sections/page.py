"""The page in a real Chromium: how soon it takes letters, and whether it stays quick and small while answers stream."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any
from uuid import uuid4

from playwright.sync_api import Browser, BrowserContext, Page, Request, sync_playwright

from channels.web import assets
from tests.bench.laboratory import Laboratory
from tests.bench.measure import Row, at_most, flat, median, percentile
from tests.bench.processes import Broken, Sika
from tests.bench.sections.page_beside import beside

_CHROMIUMS = ("chromium", "google-chrome", "chromium-browser")
_WATCH = """
window.seen = { shift: 0, tasks: [], ready: 0, updates: [] };
const observe = (type, take) =>
  new PerformanceObserver((list) => list.getEntries().forEach(take)).observe({type, buffered: true});
observe('layout-shift', ({hadRecentInput, value}) => { if (!hadRecentInput) seen.shift += value; });
observe('longtask', (entry) => seen.tasks.push(entry.duration));
new MutationObserver((changes) => {
  if (!seen.ready && document.activeElement?.id === 'composer') seen.ready = performance.now();
  if (changes.some(({target}) => target.parentElement?.closest('.growing'))) seen.updates.push(performance.now());
}).observe(document, {subtree: true, childList: true, characterData: true});
"""
"""What the browser sees of itself: shifts of the layout, tasks over 50 ms, when the field takes letters, updates."""
_READY = "() => new Promise((resolve) => { const look = () => seen.ready ? resolve() : setTimeout(look, 5); look(); })"
_PAINT = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? 0"
_ENDED = ".run-end, .error-card"
_SPEED = "tokens-400-delay-10"
"""A model that says 100 words a second."""
_INTERPRETED = "--js-flags=--no-opt --no-maglev --no-sparkplug"
"""Compiled code lies in the heap, too, and comes for as long as a page is used: some 250 kB in 120 conversations."""


def page(lab: Laboratory) -> Iterator[Row]:
    """`warm`: with the files in the browser's cache. A task that is not long (50 ms) counts as 0."""
    lab.say(f"serving on port {lab.shared.port}")  # before the browser: each has an event loop of its own
    with chromium() as browser:
        yield _bytes()
        yield from _starts(lab, browser)
        yield from _streaming(lab, browser)
        yield _long_thread(lab, browser)
    with chromium(_INTERPRETED) as browser:
        yield _heap(lab, browser)
        if lab.deerflow_page:
            yield from beside(lab, browser, lab.deerflow_page)
        else:
            lab.say("not beside DeerFlow's page: --deerflow-page URL is missing")


@contextmanager
def chromium(*flags: str) -> Iterator[Browser]:
    path = next((path for name in _CHROMIUMS if (path := shutil.which(name))), None)
    if path is None:
        raise Broken("there is no Chromium")
    with sync_playwright() as playwright:
        args = ["--no-sandbox", "--disable-dev-shm-usage", *flags]
        browser = playwright.chromium.launch(executable_path=path, args=args)
        yield browser
        browser.close()


def _bytes() -> Row:
    first = [assets.name_of(path) for path in ("main.js", "style.css", *assets.PRELOADED)]
    size = sum(len(file.compressed or file.body) for file in (assets.document(), *map(assets.asset, first)))
    return Row("kB before lazy parts, compressed", size / 1000, at_most(75))


# ── beginning ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _starts(lab: Laboratory, browser: Browser) -> Iterator[Row]:
    figures: dict[str, list[float]] = {}
    for repetition in range(3 if lab.quick else 9):
        lab.say(f"start {repetition + 1}")
        with watched(browser) as context:
            for how in ("cold", "warm"):
                tab = context.new_page()
                requests = _requests(tab)
                _open(tab, lab.shared, "tokens-50")
                tab.wait_for_timeout(1000)
                figures.setdefault(f"first contentful paint, {how}", []).append(tab.evaluate(_PAINT))
                figures.setdefault(f"the field takes letters, {how}", []).append(tab.evaluate("seen.ready"))
                figures.setdefault(f"layout shift, {how}", []).append(tab.evaluate("seen.shift"))
                figures.setdefault(f"requests, {how}", []).append(len(requests))
                tab.close()
    for what, values in figures.items():
        limit = at_most(0.02) if "shift" in what else at_most(12) if what == "requests, cold" else None
        yield Row(f"{what}{', ms' if 'paint' in what or 'letters' in what else ''}", median(values), limit)


def _requests(tab: Page) -> list[str]:
    """Addresses that a tab asks for from now on."""
    urls: list[str] = []

    def note(request: Request) -> None:
        urls.append(request.url)

    tab.on("request", note)
    return urls


@contextmanager
def watched(browser: Browser) -> Iterator[BrowserContext]:
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    context.add_init_script(f"if (window === top) {{ {_WATCH} }}")
    yield context
    context.close()


def _open(tab: Page, server: Sika, model: str, place: str = "") -> None:
    choices = json.dumps(json.dumps({"model": model, "mode": "pro", "agent": ""}))
    tab.add_init_script(f"if (window === top) localStorage.setItem('sika.choices', {choices})")
    tab.goto(f"{_url(server)}/#/{place}")
    tab.evaluate(_READY)


def _url(server: Sika) -> str:
    return f"http://{server.host}:{server.port}"


# ── streaming ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _streaming(lab: Laboratory, browser: Browser) -> Iterator[Row]:
    with watched(browser) as context:
        lab.say("100 words a second")
        tab = context.new_page()
        _open(tab, lab.shared, _SPEED)
        _say(tab, 1)
        times = tab.evaluate("seen.updates")
        gaps = [after - before for before, after in pairwise(times)]
        yield Row("gap between updates, p95, ms", percentile(gaps, 95), at_most(40), note=f"{len(times)} updates")
        lab.say("three streams")
        tab.evaluate("seen.tasks.length = 0")
        for _ in range(2):
            _run(tab, str(uuid4()))
        _say(tab, 2)
        yield Row("longest task while 3 streams run, ms", max(tab.evaluate("seen.tasks"), default=0), at_most(50))


def _say(tab: Page, count: int) -> None:
    """Sends a message, and waits until so many runs have ended."""
    tab.fill("#composer", "Speak")
    tab.press("#composer", "Enter")
    tab.wait_for_function("([s, n]) => document.querySelectorAll(s).length >= n", arg=[_ENDED, count], timeout=120_000)


def _run(tab: Page, thread: str) -> None:
    body = {"input": {"messages": [{"type": "human", "content": "Speak"}]}, "context": {"model_name": _SPEED}}
    _post(tab, f"threads/{thread}/runs", body | {"if_not_exists": "create"})


def _post(tab: Page, path: str, body: dict[str, Any]) -> None:
    origin = tab.url.partition("/#")[0]
    response = tab.request.post(f"{origin}/api/{path}", data=body)
    if not response.ok:
        raise Broken(f"{path}: {response.status} {response.text()[:200]}")


# ── much ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _long_thread(lab: Laboratory, browser: Browser) -> Row:
    lab.say("2000 messages")
    thread = str(uuid4())
    with watched(browser) as context:
        tab = context.new_page()
        _open(tab, lab.shared, "tokens-50")
        _post(tab, "threads", {"thread_id": thread})
        for start in range(0, 2000, 200):
            messages = [_message(number) for number in range(start, start + 200)]
            _post(tab, f"threads/{thread}/state", {"values": {"messages": messages}})
        longest = []
        for _ in range(1 if lab.quick else 3):
            other = context.new_page()
            _open(other, lab.shared, "tokens-50", f"t/{thread}")
            other.wait_for_selector(".answer .markdown p")
            other.wait_for_timeout(1500)
            longest.append(max(other.evaluate("seen.tasks"), default=0))
            other.close()
        return Row("longest task, 2 000 messages are opened, ms", median(longest), at_most(100))


def _message(number: int) -> dict[str, Any]:
    text = f"Message **{number}** with some `code` and words.\n\n- one\n- two\n"
    return {"type": "ai" if number % 2 else "human", "id": f"m{number}", "content": text}


def _heap(lab: Laboratory, browser: Browser) -> Row:
    """Conversations of 400 words, one after the other in one tab, each deleted when it has ended: what the list of
    conversations shows grows with it, and is no leak. The first ones warm up: lazy parts come.
    """
    warm, last = (6, 12) if lab.quick else (12, 240)
    with watched(browser) as context:
        tab = context.new_page()
        _open(tab, lab.shared, "tokens-400")
        session = context.new_cdp_session(tab)
        sizes = []
        for number in range(1, last + 1):
            tab.goto(f"{_url(lab.shared)}/#/")
            tab.locator(".begin").wait_for()
            _say(tab, 1)
            tab.request.delete(f"{_url(lab.shared)}/api/threads/{tab.url.rpartition('/')[2]}")
            if number in (warm, last):
                tab.goto(f"{_url(lab.shared)}/#/")
                tab.locator(".begin").wait_for()
                session.send("HeapProfiler.collectGarbage")
                sizes.append(session.send("Runtime.getHeapUsage")["usedSize"])
        what = f"heap after {last} conversations / after {warm}"
        return Row(what, sizes[-1] / sizes[0], flat(0.1), note=f"{sizes[-1] / 1e6:.1f} MB")

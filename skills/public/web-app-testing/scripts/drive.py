"""Does steps in a real browser: python3 drive.py http://localhost:3000 steps.yaml [--out shots] [--size phone]."""

from __future__ import annotations

import argparse
import base64
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

from cdp import BROWSERS, Browser, Failed, browser_path

try:
    import yaml
except ModuleNotFoundError as error:
    print(f"missing Python package {error.name}. Fix: pip install pyyaml", file=sys.stderr)
    sys.exit(3)

HELD, BROKEN, MISTAKE, MISSING = 0, 1, 2, 3
SIZES = {"phone": (390, 844), "desktop": (1280, 800)}
KEYS = {
    **{"Enter": (13, "\r"), "Tab": (9, ""), "Escape": (27, ""), "Backspace": (8, ""), "Space": (32, " ")},
    **{"ArrowLeft": (37, ""), "ArrowUp": (38, ""), "ArrowRight": (39, ""), "ArrowDown": (40, "")},
}
POLL_SECONDS = 0.1
FIND = """
(() => {
  const words = s => (s || "").replace(/\\s+/g, " ").trim();
  const visible = e => {
    const r = e.getBoundingClientRect(), s = getComputedStyle(e);
    return r.width > 0 && r.height > 0 && s.visibility !== "hidden" && s.display !== "none";
  };
  const isButton = e => e.tagName === "INPUT" && ["submit", "button"].includes(e.type);
  const says = (e, text) => words(isButton(e) ? e.value : e.innerText).includes(text);
  const byText = text => {
    const shown = [...document.querySelectorAll("body *:not(script):not(style)")];
    const hits = shown.filter(e => says(e, text) && visible(e));
    const inner = hits.filter(e => !hits.some(o => o !== e && e.contains(o)));
    const exact = inner.filter(e => words(e.innerText) === text);
    return exact.length ? exact : inner;
  };
  const labelled = e => (e.getAttribute("aria-labelledby") || "").split(" ").map(i => document.getElementById(i));
  const names = e => [...(e.labels || []), ...labelled(e)].map(l => words(l?.innerText))
    .concat(words(e.getAttribute("aria-label")), words(e.placeholder));
  const byLabel = text => [...document.querySelectorAll("input, textarea, select, [contenteditable]")]
    .filter(e => names(e).some(name => name.includes(text)));
  const all = target => target.startsWith("text=") ? byText(target.slice(5))
    : target.startsWith("label=") ? byLabel(target.slice(6)) : [...document.querySelectorAll(target)];
  return {all, visible, words, first: target => all(target).find(visible)};
})()
"""


class Broken(Exception):
    """What was expected did not come about."""


class Mistake(Exception):
    """A step that cannot be done as it is written."""


class Page:
    def __init__(self, site: str, out: Path | None, seconds: float) -> None:
        self.site, self.out, self.seconds = site, out, seconds
        self.errors: list[str] = []
        self._loaded = False
        self._requests: dict[str, str] = {}
        self.browser = Browser(str(browser_path()), self._heard)
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.browser.call(f"{domain}.enable")

    # ── what the page reports ───────────────────────────────────────────────────────────────────────────────────────

    def _heard(self, method: str, about: dict[str, Any]) -> None:
        match method:
            case "Page.loadEventFired":
                self._loaded = True
            case "Runtime.exceptionThrown":
                details = about["exceptionDetails"]
                text = details.get("exception", {}).get("description") or details.get("text", "")
                self.errors.append(f"exception: {text.splitlines()[0][:300]}")
            case "Runtime.consoleAPICalled" if about["type"] in ("error", "assert"):
                words = [str(argument.get("value", argument.get("description", ""))) for argument in about["args"]]
                self.errors.append(f"console: {' '.join(words)[:300]}")
            case "Network.requestWillBeSent":
                self._requests[about["requestId"]] = about["request"]["url"]
            case "Network.responseReceived" if about["response"]["status"] >= 400:
                if about["response"]["url"].endswith("/favicon.ico"):
                    return
                self.errors.append(f"request: {about['response']['status']:.0f} {about['response']['url'][:200]}")
            case "Network.loadingFailed" if not about.get("canceled"):
                self.errors.append(f"request: {about['errorText']} {self._requests.get(about['requestId'], '')[:200]}")
            case "Log.entryAdded" if about["entry"]["level"] == "error" and about["entry"]["source"] != "network":
                self.errors.append(f"log: {about['entry']['text'][:300]}")
            case "Page.javascriptDialogOpening":
                print(f"    dialog: {about['message'][:200]}")
                self._dialog = True

    # ── steps ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def open(self, path: str) -> None:
        address = urljoin(self.site.rstrip("/") + "/", path.lstrip("/") if path.startswith("/") else path)
        if urlsplit(address).netloc != urlsplit(self.site).netloc:
            raise Mistake(f"open: {address} is another site than {self.site}")
        self._navigated(lambda: self.browser.call("Page.navigate", url=address), address)

    def reload(self, _: Any) -> None:
        self._navigated(lambda: self.browser.call("Page.reload"), "reload")

    def back(self, _: Any) -> None:
        history = self.browser.call("Page.getNavigationHistory")
        if history["currentIndex"] == 0:
            raise Broken("there is no page before this one")
        entry = history["entries"][history["currentIndex"] - 1]
        self.browser.call("Page.navigateToHistoryEntry", entryId=entry["id"])
        self._until(lambda: self.value("document.readyState") == "complete", "the page before is not there")

    def _navigated(self, go: Callable[[], dict[str, Any]], what: str) -> None:
        self._loaded = False
        if text := go().get("errorText"):
            raise Broken(f"{what}: {text}")
        until = time.monotonic() + max(self.seconds, 30)
        while not self._loaded and time.monotonic() < until:
            self.browser.listen(POLL_SECONDS)
        if not self._loaded:
            raise Broken(f"{what}: was not loaded in {max(self.seconds, 30):g} s")

    def click(self, target: str, count: int = 1) -> None:
        x, y = self._place(target)
        for number in range(1, count + 1):
            for kind in ("mousePressed", "mouseReleased"):
                self.browser.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=number)

    def double(self, target: str) -> None:
        self.click(target, 2)

    def _place(self, target: str) -> tuple[float, float]:
        """Returns the middle of what is visible; it must not be covered or disabled."""
        code = f"""(() => {{
            const e = {FIND}.first({json.dumps(target)});
            if (!e) return null;
            e.scrollIntoView({{block: "center", inline: "center", behavior: "instant"}});
            const r = e.getBoundingClientRect(), x = r.x + r.width / 2, y = r.y + r.height / 2;
            const o = document.elementFromPoint(x, y), labels = [...(e.labels || [])];
            const free = o && (e.contains(o) || o.contains(e) || labels.some(l => l.contains(o)));
            const over = free ? "" : o ? o.outerHTML.slice(0, 80) : "the edge of the window";
            return {{x, y, over, off: e.disabled === true}};
        }})()"""
        last: dict[str, Any] = {}

        def ready() -> bool:
            last.clear()
            last.update(self.value(code) or {})
            return bool(last) and not last["over"] and not last["off"]

        def why() -> str:
            if not last:
                return f"{target}: is not visible{self._near(target)}"
            return f"{target}: is disabled" if last["off"] else f"{target}: is covered by {last['over']}"

        self._until(ready, why)
        return last["x"], last["y"]

    def type(self, step: Any) -> None:
        target, text = self._two(step, "into", "text")
        self.click(target)
        self.value(f"""(() => {{ const e = {FIND}.first({json.dumps(target)}); e.focus();
            e.select ? e.select() : document.getSelection().selectAllChildren(e); }})()""")
        self.browser.call("Input.insertText", text=str(text))

    def choose(self, step: Any) -> None:
        target, value = self._two(step, "in", "value")
        code = f"""(() => {{
            const e = {FIND}.first({json.dumps(target)}), v = {json.dumps(str(value))};
            if (!e) return false;
            const o = [...e.options].find(o => o.value === v || o.text.trim() === v); if (!o) return false;
            e.value = o.value; for (const n of ["input", "change"]) e.dispatchEvent(new Event(n, {{bubbles: true}}));
            return true; }})()"""
        self._until(lambda: bool(self.value(code)), f"{target}: has no option {value!r}, or is not visible")

    def press(self, key: str) -> None:
        if key not in KEYS:
            raise Mistake(f"press: {key} is not one of {', '.join(KEYS)}")
        code, text = KEYS[key]
        about = {"key": " " if key == "Space" else key, "code": key, "windowsVirtualKeyCode": code}
        more = {"text": text} if text else {}
        self.browser.call("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", **about, **more)
        self.browser.call("Input.dispatchKeyEvent", type="keyUp", **about)

    def expect(self, step: Any) -> None:
        if isinstance(step, str):
            code = f"Boolean({FIND}.first({json.dumps(step)}))"
            self._until(lambda: bool(self.value(code)), lambda: f"{step}: is not visible{self._near(step)}")
            return
        target, text = self._two(step, "see", "text")
        code = f"""(() => {{ const f = {FIND}, e = f.first({json.dumps(target)});
            return e ? f.words(e.value ?? e.innerText) || f.words(e.innerText) : null; }})()"""
        self._until(
            lambda: str(text) in (self.value(code) or ""),
            lambda: f"{target}: expected {str(text)!r}, got {self.value(code)!r}",
        )

    def gone(self, target: str) -> None:
        code = f"Boolean({FIND}.first({json.dumps(target)}))"
        self._until(lambda: not self.value(code), f"{target}: is still visible")

    def count(self, step: Any) -> None:
        target, number = self._two(step, "of", "is")
        code = f"{FIND}.all({json.dumps(target)}).length"
        self._until(
            lambda: self.value(code) == number, lambda: f"{target}: expected {number}, there are {self.value(code)}"
        )

    def url(self, end: str) -> None:
        self._until(
            lambda: str(self.value("location.href")).endswith(end),
            lambda: f"the address is {self.value('location.href')}, not …{end}",
        )

    def true(self, code: str) -> None:
        self._until(lambda: bool(self.value(code)), f"{code}: is not true")

    def size(self, name: str) -> None:
        if name not in SIZES:
            raise Mistake(f"size: {name} is not one of {', '.join(SIZES)}")
        width, height = SIZES[name]
        self.browser.call(
            "Emulation.setDeviceMetricsOverride",
            **{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": name == "phone"},
        )

    def screenshot(self, name: str) -> None:
        if self.out is None:
            raise Mistake("screenshot: say where to, by --out")
        target = self.out / f"{Path(name).name.removesuffix('.png')}.png"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(base64.b64decode(self.browser.call("Page.captureScreenshot", format="png")["data"]))
        print(f"    {target}")

    # ── parts ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def value(self, code: str) -> Any:
        """Returns the value of an expression. A page that is just changing has none."""
        self._answer_dialog()
        try:
            answer = self.browser.call("Runtime.evaluate", expression=code, returnByValue=True, awaitPromise=True)
        except Failed as error:
            if "context" in str(error):
                return None
            raise
        if details := answer.get("exceptionDetails"):
            text = details.get("exception", {}).get("description", details.get("text", ""))
            if "SyntaxError" in text:
                raise Mistake(text.splitlines()[0])
            return None
        return answer["result"].get("value")

    _dialog = False

    def _answer_dialog(self) -> None:
        if self._dialog:
            self._dialog = False
            self.browser.call("Page.handleJavaScriptDialog", accept=True)

    def _until(self, holds: Callable[[], bool], why: str | Callable[[], str]) -> None:
        until = time.monotonic() + self.seconds
        while not holds():
            if time.monotonic() > until:
                raise Broken(why if isinstance(why, str) else why())
            self.browser.listen(POLL_SECONDS)

    def _near(self, target: str) -> str:
        if not target.startswith(("text=", "label=")):
            return ""
        return f"; the page says: {str(self.value('document.body.innerText') or '')[:200]!r}"

    def _two(self, step: Any, first: str, second: str) -> tuple[str, Any]:
        if not isinstance(step, dict) or step.keys() != {first, second}:
            raise Mistake(f"expected {{{first}: …, {second}: …}}, got {step!r}")
        return str(step[first]), step[second]


STEPS = (
    *("open", "click", "double", "type", "choose", "press", "expect", "gone", "count", "url", "true", "size"),
    *("screenshot", "back", "reload"),
)


def steps_of(path: Path) -> list[tuple[str, Any]]:
    try:
        steps = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise Mistake(f"{path}: {error}") from None
    pairs = []
    for number, step in enumerate(steps if isinstance(steps, list) else [steps], 1):
        if not isinstance(step, dict) or len(step) != 1:
            raise Mistake(f"{path}: step {number}: expected one `name: value`, got {step!r}")
        [(name, value)] = step.items()
        name = "true" if name is True else name  # YAML reads the key so
        if name not in STEPS:
            raise Mistake(f"{path}: step {number}: {name} is not one of {', '.join(STEPS)}")
        pairs.append((name, value))
    return pairs


def run(page: Page, steps: list[tuple[str, Any]]) -> bool:
    """Does the steps; returns whether all held."""
    for number, (name, value) in enumerate(steps, 1):
        print(f"{number}. {name}: {value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}")
        try:
            getattr(page, name)(str(value) if isinstance(value, int | float) else value)
        except Broken as error:
            print(f"    FAILED: {error}")
            if page.out is not None:
                page.screenshot(f"failed-{number}")
            return False
    page.browser.listen(POLL_SECONDS * 3)
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("site", nargs="?", help="the address of the app")
    parser.add_argument("steps", type=Path, nargs="?")
    parser.add_argument("--out", type=Path, help="a folder for pictures")
    parser.add_argument("--size", choices=SIZES, default="desktop")
    parser.add_argument("--seconds", type=float, default=5.0, help="time that a step waits")
    parser.add_argument("--allow-errors", action="store_true", help="errors of the page do not count")
    parser.add_argument("--check", action="store_true", help="only look whether there is a browser")
    options = parser.parse_args()
    if (path := browser_path()) is None:
        print(f"no browser here ({', '.join(BROWSERS)}). Fix: install chromium", file=sys.stderr)
        return MISSING
    if options.check:
        print(path)
        return HELD
    page = None
    try:
        if options.site is None or options.steps is None or urlsplit(options.site).scheme not in ("http", "https"):
            raise Mistake("an address as http://localhost:3000, and a file of steps are needed")
        steps = steps_of(options.steps)
        page = Page(options.site, options.out, options.seconds)
        page.size(options.size)
        held = run(page, steps)
    except (Mistake, Failed) as error:
        print(error, file=sys.stderr)
        return MISTAKE
    finally:
        if page is not None:
            page.browser.close()
    for line in dict.fromkeys(page.errors):
        print(f"page: {line}")
    errors = bool(page.errors) and not options.allow_errors
    print(
        f"{'all' if held else 'not all'} of {len(steps)} steps held" + (", the page reported errors" if errors else "")
    )
    return HELD if held and not errors else BROKEN


if __name__ == "__main__":
    sys.exit(main())

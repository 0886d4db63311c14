"""What the tests of the page share: the scripts of the models, a server with them, and a tab as a person uses it."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Sequence, Set
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import pytest
from playwright.async_api import Browser, BrowserContext, ConsoleMessage, Page, Request, expect

from tests.e2e.servers import Server
from tests.support.model_server import Failure, ModelServer, Script, ToolCall, Turn
from tests.support.workers import wait_for

AXE = Path(__file__).parent / "axe/axe.min.js"
"""axe-core 4.14.1 (MPL-2.0), as npm has it."""
ANY_ORIGIN = "axe.configure({ allowedOrigins: ['<unsafe_all_origins>'] }); true"
"""Frames of diagrams and of files have an origin of their own."""
RULES = """async () => {
  const { violations } = await axe.run(document, { resultTypes: ['violations'], pingWaitTime: 30000 });
  return violations.map(({ id, nodes }) => id + ': ' + nodes.map((one) => one.html.slice(0, 200)).join(' | '));
}"""


looks = pytest.mark.parametrize(
    ("scheme", "language"),
    [
        ("dark", "zh"),
        pytest.param("light", "en", marks=pytest.mark.long),
        pytest.param("light", "zh", marks=pytest.mark.long),
        pytest.param("dark", "en", marks=pytest.mark.long),
    ],
)
"""Each scheme with each language: one pair in the short lane, as light and English are seen in it by `test_rules`."""

MARKDOWN = """# A heading

Some **bold** text, a [link](https://example.org/x), `code`, and a [citation:Source](https://example.org/s).

| city | people |
|---|---|
| Bern | 134 |

```python
def f(x):
    return x + 1
```

Inline $a^2 + b^2$ and a block:

$$
\\int_0^1 x\\,dx
$$

```mermaid
graph TD; A-->B;
```

The end.
"""


def bash(command: str, identity: str = "") -> ToolCall:
    return ToolCall("bash", {"description": "do it", "command": command}, identity)


def gated(gate: str) -> list[Turn]:
    """Sixty words, of which twelve come before the gate is released."""
    return [Turn(text=" ".join(f"word{n}" for n in range(60)), gate=gate, gate_after=12), Turn(text="Understood.")]


def busy(calls: int) -> list[Turn]:
    """Calls of tools, at most forty at once."""
    parts = [range(first, min(first + 40, calls)) for first in range(0, calls, 40)]
    return [
        *(Turn(tool_calls=tuple(bash(f"echo call {n}", f"busy{n}") for n in part)) for part in parts),
        Turn(text="It is done."),
    ]


TODOS = ToolCall(
    "write_todos",
    {
        "todos": [
            {"content": "Look around", "status": "completed"},
            {"content": "Write it down", "status": "in_progress"},
        ]
    },
)


SCRIPTS: dict[str, Script | list[Turn]] = {
    "plain": [Turn(text="One two three.")],
    **{gate: gated(gate) for gate in ("slow", "halts", "lines", "killed", "pairs", "erased")},
    **{gate: gated(gate) for gate in ("reloaded", "offline", "silent", "frozen", "left", "joined")},
    "plans": [Turn(tool_calls=(TODOS,)), Turn(text="Planned.", gate="plans")],
    **{f"busy-{calls}": busy(calls) for calls in (40, 200)},
    "long": [Turn(tool_calls=(bash("seq -f 'line %.0f' 1 500000"),)), Turn(text="Printed.")],
    "markdown": [Turn(text=MARKDOWN)],
    "counts": [
        Turn(text="I will count them.", tool_calls=(bash("wc -l *.csv"), bash("printf 'Bern,134\\nGraz,303\\n'"))),
        Turn(
            text="Two cities are in the table:\n\n| city | people |\n|---|---:|\n| Bern | 134 |\n| Graz | 303 |\n\n"
            "The first command found no file: I made the table of what the second one printed."
        ),
    ],
    "thinks": [Turn(reasoning="Let me think about it.", text="I thought.")],
    "tools": [
        Turn(text="I look.", tool_calls=(bash("echo first; echo last line"), bash("echo oops >&2; exit 3"))),
        Turn(
            text="I write.",
            tool_calls=(
                ToolCall("write_file", {"path": "/mnt/user-data/workspace/a.txt", "content": "one\ntwo\n"}),
                ToolCall("write_todos", {"todos": [{"content": "Write it down", "status": "completed"}]}),
            ),
        ),
        Turn(
            text="I edit.",
            tool_calls=(
                ToolCall(
                    "str_replace",
                    {"path": "/mnt/user-data/workspace/a.txt", "old_str": "two", "new_str": "three"},
                ),
            ),
        ),
        Turn(text="All is done."),
    ],
    "prints": [
        Turn(
            tool_calls=(bash("echo first; until test -f /mnt/user-data/uploads/go.txt; do sleep 0.1; done; echo last"),)
        ),
        Turn(text="Printed."),
    ],
    "code": [Turn(text="As *this*:\n\n```python\ndef f(x):\n    return x < 1\n```\n\nand\n\n```\nplain\n```")],
    "mends": [
        Turn(text="Well.", error=Failure(status=401, message="Incorrect API key", code="invalid_api_key"), times=1)
    ],
    "fails": [Turn(error=Failure(status=401, message="Incorrect API key provided", code="invalid_api_key"))],
}
"""By the name of the model."""


class Site(NamedTuple):
    """A server, and the models that answer there."""

    server: Server
    models: ModelServer

    async def ask(self, method: str, path: str, body: Any = None) -> Any:
        """The JSON of a request to the API, as a program sends it."""
        url = f"{self.server.url}/api{path}"
        data = None if body is None else BytesIO(json.dumps(body).encode())
        headers = {"content-type": "application/json"}
        async with (
            aiohttp.ClientSession(headers=headers) as session,
            session.request(method, url, data=data) as response,
        ):
            text = await response.text()
            assert response.status < 300, (response.status, text)
            return json.loads(text) if text else None

    async def run(self, thread: str, text: str, model: str) -> str:
        body = {
            "input": {"messages": [{"role": "user", "content": text}]},
            "context": {"model_name": model},
            "if_not_exists": "create",
        }
        return str((await self.ask("POST", f"/threads/{thread}/runs", body))["run_id"])

    async def upload(self, thread: str, name: str, content: bytes) -> None:
        """Puts a file into the uploads of a thread, as a program does."""
        form = aiohttp.FormData()
        form.add_field("files", content, filename=name)
        url = f"{self.server.url}/api/threads/{thread}/uploads"
        async with aiohttp.ClientSession() as session, session.post(url, data=form) as response:
            assert response.status < 300, (response.status, await response.text())

    async def texts(self, thread: str) -> list[str]:
        """What people and models said, as the log has it."""
        return texts_of(await self.ask("GET", f"/threads/{thread}/log"))


def texts_of(records: Sequence[dict[str, Any]]) -> list[str]:
    """What people and models said, of the records of a log."""
    texts = []
    requested: dict[str, list[Any]] = {}
    for record in records:
        if record["type"] == "run.requested":
            requested[record["run"]] = record.get("input", {}).get("messages", [])
        if record["type"] == "run.started" and record["attempt"] == 1:
            texts += [message["content"] for message in requested[record["run"]]]
        if record["type"] == "model.completed" and record["message"]["content"]:
            texts.append(record["message"]["content"])
    return texts


@dataclass
class Tab:
    """A tab, and what its browser complained of: errors of scripts, and what the content policy refused."""

    page: Page
    site: Site
    complaints: list[str] = field(default_factory=list)
    expected: tuple[str, ...] = ("Failed to load resource",)
    """Beginnings of complaints that belong to what is tested."""

    @property
    def thread(self) -> str:
        """The conversation that the address names."""
        match = re.search(r"#/t/([\w-]+)", self.page.url)
        assert match, self.page.url
        return match[1]

    async def open(self, model: str = "plain", *, place: str = "", language: str = "en") -> None:
        """Opens the page, with a model chosen."""
        choices = json.dumps({"model": model, "mode": "pro", "agent": ""})
        settings = {"sika.choices": choices, "sika.language": json.dumps(language)}
        await self.page.add_init_script(
            f"if (window === top) for (const [name, value] of Object.entries({json.dumps(settings)}))"
            " localStorage.getItem(name) ?? localStorage.setItem(name, value);"
        )
        await self.page.goto(f"{self.site.server.url}/#/{place}")
        await self.page.wait_for_selector("#composer, .gone, .files-room, .waiting-list")

    async def say(self, text: str) -> None:
        await self.page.fill("#composer", text)
        await self.page.press("#composer", "Enter")

    async def ended(self, count: int = 1) -> None:
        """Waits until so many runs have ended on the screen."""
        await expect(self.page.locator(".run-end, .error-card")).to_have_count(count, timeout=120_000)

    async def shown(self) -> list[str]:
        """What people and the agent said, as it is on the screen."""
        texts: list[str] = await self.page.evaluate(
            "[...document.querySelectorAll('.person > .bubble, .answer > .markdown')].map(e => e.innerText.trim())"
        )
        return texts

    async def may_copy(self) -> None:
        """Lets the page use the clipboard, as a person does who is asked."""
        await self.page.context.grant_permissions(["clipboard-read", "clipboard-write"])

    async def copied(self) -> str:
        """The text that the page says to have copied, as the browser's clipboard has it."""
        toast = self.page.locator(".toast", has_text="Copied.")
        await expect(toast).to_be_visible()
        await toast.locator("button").evaluate("close => close.click()")  # also where a dialog lies over it
        text: str = await self.page.evaluate("navigator.clipboard.readText()")
        return text

    async def look_again(self) -> None:
        """Tells the page that somebody has come back to it: a browser without a screen shows all its tabs."""
        await self.page.evaluate(
            "() => { document.dispatchEvent(new Event('visibilitychange')); dispatchEvent(new Event('focus')); }"
        )

    async def asks_again(self, paths: Set[str]) -> None:
        """Comes back to the page, and waits until it has read these of the API again."""
        async with self.asking() as again:
            await self.look_again()

            async def asked() -> bool:
                return again >= paths

            await wait_for(asked)

    @asynccontextmanager
    async def asking(self) -> AsyncIterator[set[str]]:
        """Collects what the page reads of the API."""
        paths: set[str] = set()

        def note(request: Request) -> None:
            if request.method == "GET" and "/api/" in request.url:
                paths.add(request.url.partition("/api/")[2])

        self.page.on("request", note)
        try:
            yield paths
        finally:
            self.page.remove_listener("request", note)

    async def watch(self) -> None:
        """Counts changes of messages that are finished now: in them, and of their own place."""
        await self.page.evaluate(
            """() => {
              window.changes = [];
              const finished = [...document.querySelectorAll('.person, .answer:not(.growing)')];
              const note = (change) => window.changes.push(change.target.nodeName + ' ' + change.type);
              const watcher = new MutationObserver((list) => list.forEach(note));
              for (const e of finished)
                watcher.observe(e, {subtree: true, childList: true, characterData: true, attributes: true});
              new MutationObserver((list) => {
                for (const node of list.flatMap((change) => [...change.removedNodes]))
                  for (const e of finished) if (node.contains(e)) window.changes.push(e.className + ' removed');
              }).observe(document, {subtree: true, childList: true});
            }"""
        )

    async def changes(self) -> list[str]:
        """What changed in messages since `watch`."""
        changes: list[str] = await self.page.evaluate("window.changes")
        return changes


@asynccontextmanager
async def tab(
    browser: Browser, site: Site, context: BrowserContext | None = None, **settings: Any
) -> AsyncIterator[Tab]:
    """A tab, in a context of its own unless one is given. Its browser must not have complained when it is closed."""
    own = context or await browser.new_context(**{"viewport": {"width": 1280, "height": 800}, **settings})
    own.set_default_timeout(60_000)
    page = await own.new_page()
    opened = Tab(page, site)

    def complain(kind: str, text: str) -> None:
        if not text.startswith(opened.expected):
            opened.complaints.append(f"{kind}: {text}")

    def on_console(message: ConsoleMessage) -> None:
        if message.type == "error":
            complain("console", message.text)

    page.on("console", on_console)
    page.on("pageerror", lambda error: complain("error", str(error)))
    await page.add_init_script(
        "addEventListener('securitypolicyviolation', e => console.error('policy', e.violatedDirective, e.blockedURI))"
    )
    try:
        yield opened
    finally:
        await (page.close() if context else own.close())
    assert opened.complaints == []


async def violations(page: Tab) -> list[str]:
    """Rules of axe-core that what is on the screen breaks, in its frames, too."""
    for frame in page.page.frames:
        if not await frame.evaluate("'axe' in window"):
            await frame.evaluate(f"{AXE.read_text()};{ANY_ORIGIN}")
    broken: list[str] = await page.page.evaluate(RULES)
    return broken

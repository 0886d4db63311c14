"""Texts of others run nothing, ask for nothing, and read as what they are, wherever the page shows them.

Each payload would call `canary` or ask `canary.invalid`; and no element or attribute that could is in the page.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
import pytest
from playwright.async_api import Browser, Request, expect

from core.ids import uuid7
from tests.e2e.servers import serving
from tests.page.site import Site, Tab, tab
from tests.support.model_server import ModelServer, Turn
from tests.support.workers import configure, wait_for

pytestmark = [pytest.mark.anyio, pytest.mark.long(keep=6)]

BEACON = "http://canary.invalid/x"
SVG = "<svg xmlns='http://www.w3.org/2000/svg' onload='canary()'><script>canary()</script></svg>"
ENCODED = base64.b64encode(SVG.encode()).decode()

MARKUP = (
    "<script>canary()</script>",
    f'<script src="{BEACON}"></script>',
    "<img src=x onerror=canary()>",
    "<img src=x onerror=&#99;anary()>",
    f'<img src="{BEACON}">',
    f'<img srcset="{BEACON} 1x">',
    f"<picture><source srcset='{BEACON}'><img alt=x></picture>",
    "<svg onload=canary()></svg>",
    "<svg><script>canary()</script></svg>",
    "<svg><animate onbegin=canary() attributeName=x dur=1s></svg>",
    '<svg><a xlink:href="javascript:canary()"><text y=9>x</text></a></svg>',
    "<svg><use href=\"data:image/svg+xml,<svg id='x' xmlns='http://www.w3.org/2000/svg'/>#x\"/></svg>",
    '<svg></p><style><a id="</style><img src=1 onerror=canary()>">',
    '<math><mtext><table><mglyph><style><!--</style><img title="--&gt;&lt;img src=1 onerror=canary()&gt;">',
    '<math><annotation-xml encoding="text/html"><script>canary()</script></annotation-xml></math>',
    '<math href="javascript:canary()">CLICK</math>',
    '<noscript><p title="</noscript><img src=x onerror=canary()>">',
    "<template><img src=x onerror=canary()></template>",
    "<template shadowrootmode=open><img src=x onerror=canary()></template>",
    f'<iframe src="{BEACON}"></iframe>',
    '<iframe srcdoc="<script>parent.canary()</script>"></iframe>',
    '<iframe src="javascript:parent.canary()"></iframe>',
    f'<object data="{BEACON}"></object>',
    f'<embed src="{BEACON}">',
    f'<link rel=stylesheet href="{BEACON}">',
    f'<link rel=prefetch href="{BEACON}">',
    f"<style>@import '{BEACON}'; *{{display:none}}</style>",
    f'<p style="background:url({BEACON})">styled</p>',
    '<meta http-equiv=refresh content="0;url=javascript:canary()">',
    f'<base href="{BEACON}">',
    f'<form action="{BEACON}"><button autofocus>Send</button></form>',
    "<input autofocus onfocus=canary()>",
    "<details open ontoggle=canary()><summary>x</summary></details>",
    "<video autoplay onloadstart=canary()><source onerror=canary()></video>",
    f'<audio src="{BEACON}" autoplay></audio>',
    "<marquee onstart=canary()>x</marquee>",
    "<body onload=canary()>",
    "<div onmouseover=canary() onpointerover=canary() onclick=canary() onfocus=canary() tabindex=0>over</div>",
    "<a href=x id=canary name=canary>clobbers</a><form id=canary><input name=nodeName></form>",
    "<img name=getElementById><img id=composer>",
    "<div popover id=pop onbeforetoggle=canary()>x</div><button popovertarget=pop>x</button>",
    "<x-a onclick=canary()>custom</x-a><is is=canary>",
    f'<a href="https://example.org" ping="{BEACON}">ping</a>',
)
MARKDOWN = (
    "[a](javascript:canary())",
    "[a](JaVaScRiPt:canary())",
    "[a](&#106;avascript:canary())",
    "[a](java\tscript:canary())",
    "[a](\x01javascript:canary())",
    "[a](vbscript:canary)",
    "[a](data:text/html,<script>canary()</script>)",
    f"[a](data:image/svg+xml;base64,{ENCODED})",
    "[a](blob:http://127.0.0.1/x)",
    "[a](//canary.invalid/x)",
    "<javascript:canary()>",
    "[a]: javascript:canary()\n\n[a]",
    "[a](https://example.org 'x\" onmouseover=\"canary()')",
    '[a](https://example.org/"onmouseover="canary())',
    f"![a]({BEACON})",
    '![a](x" onerror="canary())',
    f"![a](data:image/svg+xml;base64,{ENCODED})",
    "![a](/mnt/user-data/../../../../api/canary)",
    "![a](/mnt/user-data/outputs/..%2f..%2f..%2fapi%2fcanary)",
    "[citation:<img src=x onerror=canary()>](https://example.org/)",
    "[citation:a](javascript:canary())",
    "```html\n<img src=x onerror=canary()>\n```",
    '```"><img src=x onerror=canary()>\ncode\n```',
    "| a |\n|---|\n| <img src=x onerror=canary()> |",
    "`<img src=x onerror=canary()>`",
    "$\\href{javascript:canary()}{x}$",
    f"$\\includegraphics{{{BEACON}}}$",
    "$\\htmlData{onmouseover=canary()}{x}$ and $\\htmlStyle{background:url(//canary.invalid)}{x}$",
    "$\\text{<img src=x onerror=canary()>}$",
    "$$\n\\def\\x{\\x\\x}\\x\n$$",
    "$$\n</annotation><img src=x onerror=canary()>\n$$",
    '```mermaid\ngraph TD; A["<img src=x onerror=canary()>"]-->B;\n```',
    '```mermaid\ngraph TD; A-->B; click A "javascript:canary()" "x"\n```',
    "```mermaid\ngraph TD; A-->B; click A call canary()\n```",
    f"```mermaid\n%%{{init: {{'themeCSS': '@import url({BEACON})', 'securityLevel': 'loose'}}}}%%\n"
    "graph TD; A-->B;\n```",
    "```mermaid\nsequenceDiagram\n  A->>B: <script>canary()</script>\n```",
)
TEXTS = ("<img src=x onerror=canary()>", "</title><script>canary()</script>", '"><svg onload=canary()>')
"""Where a text is only a text: titles, names, outputs, arguments."""
ARTIFACTS = {
    "evil.html": "<script>canary()</script><img src=x onerror=canary()>",
    "evil.svg": SVG,
    "evil.xhtml": f"<html xmlns='http://www.w3.org/1999/xhtml'><script>canary()</script>{SVG}</html>",
    "evil.xml": f"<?xml version='1.0'?><x>{SVG}</x>",
    "evil.mht": "Content-Type: text/html\n\n<script>canary()</script>",
    "evil.js": "canary()",
    "evil.txt": "<script>canary()</script>",
}
ASKED = re.compile(r"canary\.invalid|/api/canary(?<!artifacts/mnt/user-data/api/canary)")
POLICY = ("policy ", "Executing inline", "Applying inline", "Setting the document's base URI", "Loading the ")
"""What Chromium says of the document in which the gate reads markup, and of the frame of diagrams: nothing can run in
either. That the page itself stays within its policy is asserted by all other tests.
"""
TURNED = "\u202etxt.exe"
HIDDEN = re.compile("[\u0000-\u0008\u000e-\u001f\u007f-\u009f\u202a-\u202e\u2066-\u2069\u3164\U000e0000-\U000e007f]")


def test_there_are_enough() -> None:
    assert len({*MARKUP, *MARKDOWN, *TEXTS, *ARTIFACTS}) >= 80


@pytest.fixture(scope="module")
async def site(tmp_path_factory: pytest.TempPathFactory, anyio_backend: str) -> AsyncIterator[Site]:
    """A server whose models and agents have hostile names, and say what is hostile."""
    path: Path = tmp_path_factory.mktemp("hostile")
    scripts = {"says": [Turn(text="\n\n".join(part for part in MARKDOWN if "mermaid" not in part))]}
    async with ModelServer(scripts) as models:
        named = {"name": "named", "model": "says", "base_url": models.url, "api_key": "none"}
        named |= {"display_name": f"{TEXTS[0]}{TURNED}", "description": TEXTS[2]}
        settings = {"http": {"heartbeat_seconds": 1}, "agents_api": {"enabled": True}}
        config = configure(path / "config.yaml", models, more_models=[named], **settings)
        async with serving(path / "home", config) as server:
            site = Site(server, models)
            await site.ask("POST", "/agents", {"name": "evil", "description": f"{TEXTS[0]}{TURNED}", "soul": "x"})
            yield site


@asynccontextmanager
async def watched(browser: Browser, site: Site) -> AsyncIterator[Tab]:
    """A tab that knows a canary, and complains of what it did."""
    async with tab(browser, site) as opened:
        opened.expected += POLICY

        def on_request(request: Request) -> None:
            if ASKED.search(request.url):
                opened.complaints.append(f"asked {request.url}")

        await opened.page.expose_binding("canary", lambda source, *words: opened.complaints.append(f"ran in {source}"))
        opened.page.on("dialog", lambda dialog: opened.complaints.append(f"dialog {dialog.message}"))
        opened.page.on("request", on_request)
        yield opened


@pytest.fixture
async def page(chromium: Browser, site: Site) -> AsyncIterator[Tab]:
    async with watched(chromium, site) as opened:
        yield opened


async def written(site: Site, messages: Sequence[dict[str, Any]], title: str = "") -> str:
    thread = str(uuid7())
    await site.ask("POST", "/threads", {"thread_id": thread})
    values = {"messages": [{"id": f"m{n}", **message} for n, message in enumerate(messages)]}
    await site.ask("POST", f"/threads/{thread}/state", {"values": values | ({"title": title} if title else {})})
    return thread


async def uploaded(site: Site, thread: str, files: Mapping[str, str | bytes]) -> list[str]:
    """Names of files as the server has taken them."""
    form = aiohttp.FormData()
    for name, text in files.items():
        form.add_field("files", text.encode() if isinstance(text, str) else text, filename=name)
    url = f"{site.server.url}/api/threads/{thread}/uploads"
    async with aiohttp.ClientSession() as session, session.post(url, data=form) as response:
        assert response.status == 200, await response.text()
        return [file["filename"] for file in (await response.json())["files"]]


PROVOKE = """async ([place, unfold]) => {
  const folded = `${place} [aria-expanded=false]:not([aria-haspopup])`;
  if (unfold) for (const button of document.querySelectorAll(folded)) button.click();
  if (unfold) await new Promise((resolve) => setTimeout(resolve, 50));
  for (const element of document.querySelectorAll(`${place} *`))
    for (const type of ['pointerover', 'mouseover', 'mouseenter', 'focus', 'toggle', 'load', 'error'])
      element.dispatchEvent(new Event(type));
  await new Promise((resolve) => requestIdleCallback(resolve, { timeout: 5000 }));
}"""
"""Passes over everything in a place, and focuses everything. `unfold`: opens everything before. A browser that is never
idle has a time limit.
"""
FINDINGS = """() => {
  const elements = ['SCRIPT', 'STYLE', 'OBJECT', 'EMBED', 'LINK', 'BASE', 'META', 'TEMPLATE'];
  const attributes = ['style', 'id', 'name', 'srcset', 'ping', 'action'];
  const schemes = ['http:', 'https:', 'mailto:'];
  const wrong = (element, {name, value}) =>
    name.startsWith('on') || (['id', 'name'].includes(name) && value === 'canary')
    || (element.closest('.markdown') && attributes.includes(name) && !element.closest('math'));
  const problems = (element) => [
    ...elements.filter((name) => element.nodeName === name),
    ...[...element.attributes].filter((one) => wrong(element, one)).map(({name, value}) => `${name}=${value}`),
    ...(element.nodeName === 'A' && element.href && !schemes.includes(element.protocol) ? [element.href] : []),
    ...(element.id === 'composer' && element.nodeName !== 'TEXTAREA' ? ['a second composer'] : []),
    ...(element.nodeName === 'IFRAME' && element.getAttribute('sandbox') !== 'allow-scripts' ? ['a frame'] : []),
  ];
  return [...document.querySelectorAll('#page *')].flatMap(problems);
}"""


async def provoke(page: Tab) -> None:
    """Does what people do by accident: opens everything, passes over everything with the mouse, focuses everything."""
    await page.page.evaluate(PROVOKE, ["main", True])


async def findings(page: Tab) -> list[str]:
    """Elements and attributes that no text of others may bring, and characters that nobody sees."""
    problems: list[str] = await page.page.evaluate(FINDINGS)
    text = await page.page.evaluate("document.body.innerText + document.title")
    return problems + [f"hidden {character!a}" for character in HIDDEN.findall(text)]


@pytest.mark.parametrize("payloads", [MARKUP, MARKDOWN], ids=["markup", "markdown"])
async def test_answers_run_nothing(page: Tab, site: Site, payloads: Sequence[str]) -> None:
    ends = 40  # messages of the first page
    for start in range(0, len(payloads), ends):
        part = payloads[start : start + ends]
        thread = await written(site, [{"type": "ai", "content": f"{text}\n\nend{n}"} for n, text in enumerate(part)])
        await page.open(place=f"t/{thread}")
        await expect(page.page.locator(".answer .markdown")).to_have_count(len(part))
        for frame in await page.page.locator(".diagram iframe").all():
            await frame.scroll_into_view_if_needed()
        if "mermaid" in "".join(part):
            await expect(page.page.locator(".diagram iframe[height]").first).to_be_visible()
        await provoke(page)
        assert await findings(page) == []
        assert "end0" in await page.page.inner_text("main")


@pytest.mark.parametrize("payloads", [MARKUP, MARKDOWN], ids=["markup", "markdown"])
async def test_a_shared_conversation_runs_nothing(page: Tab, site: Site, payloads: Sequence[str]) -> None:
    thread = await written(site, [{"type": "ai", "content": f"{text}\n\nend{n}"} for n, text in enumerate(payloads)])
    token = (await site.ask("POST", f"/threads/{thread}/share", {}))["token"]
    await page.page.goto(f"{site.server.url}/shared#{token}")
    await expect(page.page.locator(".markdown")).to_have_count(len(payloads))
    await expect(page.page.get_by_text(f"end{len(payloads) - 1}")).to_be_visible()
    await provoke(page)
    assert await findings(page) == []


async def test_text_that_is_only_text_runs_nothing_and_hides_nothing(page: Tab, site: Site) -> None:
    messages: list[dict[str, Any]] = []
    for n, text in enumerate((*TEXTS, f"echo {TURNED}", "a\u200bb", "\x1b[31mred", "tag\U000e0041\U000e0042")):
        file = {"filename": text, "path": f"/mnt/user-data/uploads/{quote(text)}", "size": 3}
        messages += [
            {"type": "human", "content": text, "additional_kwargs": {"files": [file]}},
            {
                "type": "ai",
                "content": "",
                "tool_calls": [
                    {"id": f"a{n}", "name": "bash", "args": {"command": text}},
                    {"id": f"b{n}", "name": f"x{n}", "args": {text: text, "description": text}},
                    {"id": f"c{n}", "name": "write_file", "args": {"path": text, "content": text}},
                ],
            },
            *({"type": "tool", "tool_call_id": f"{c}{n}", "name": "x", "content": text} for c in "abc"),
        ]
    thread = await written(site, messages, f"{TEXTS[1]}{TURNED}")
    await page.open("named", place=f"t/{thread}")
    await expect(page.page.locator(".step")).to_have_count(21)
    await provoke(page)
    await page.page.get_by_role("button", name=re.compile("^Model")).click()
    await page.page.keyboard.press("Escape")
    await page.page.get_by_role("button", name=re.compile("^Agent")).click()
    await expect(page.page.get_by_role("menu")).to_contain_text("[U+202E]txt.exe")
    assert await findings(page) == []
    main = await page.page.inner_text("main")
    for shown in ("echo [U+202E]txt.exe", "a[U+200B]b", "[U+001B][31mred", "tag[U+E0041][U+E0042]", TEXTS[0]):
        assert shown in main
    assert "[U+202E]" in await page.page.inner_text("header h1")
    await expect(page.page.locator("nav li.current")).to_contain_text("[U+202E]")


async def test_what_is_made_now_runs_nothing(page: Tab) -> None:
    await page.open("says")
    await page.say("Speak")
    await page.ended()
    await provoke(page)
    assert await findings(page) == []


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("[https://bank.example/login](https://evil.example)", "https://bank.example/login (evil.example)"),
        ("[www.bank.example](https://evil.example)", "www.bank.example (evil.example)"),
        ("[bank.example](https://bank.example.evil.example)", "bank.example (bank.example.evil.example)"),
        ("<https://bank.example@evil.example/>", "https://bank.example@evil.example/ (evil.example)"),
        ("[https://b\u0430nk.example](https://b\u0430nk.example)", "https://b\u0430nk.example (xn--bnk-6cd.example)"),
        ("[https://bank.example](https://bank.example/x)", "https://bank.example"),
        ("[a page](https://bank.example/x)", "a page"),
        ("[exe.\u202efdp](https://bank.example/x)", "exe.[U+202E]fdp"),
        ("rm\u2066 -rf /\u2069", "rm[U+2066] -rf /[U+2069]"),
        ("`a\u00adb`", "a[U+00AD]b"),
        ("می\u200cخواهم and שלום\u200f!", "می\u200cخواهم and שלום\u200f!"),
        ("👩\u200d👩\u200d👧 🏴\U000e0067\U000e0062\U000e0073\U000e0063\U000e0074\U000e007f", None),
    ],
)
async def test_links_and_characters_read_as_what_they_are(
    site: Site, reading: Tab, text: str, shown: str | None
) -> None:
    thread = await written(site, [{"type": "ai", "content": text}])
    await reading.page.goto(f"{site.server.url}/#/t/{thread}")
    await expect(reading.page.locator(".answer .markdown")).to_have_text(shown if shown is not None else text)
    for link in await reading.page.locator(".answer .markdown a").all():
        assert await link.get_attribute("title") == await link.evaluate("e => e.href")


@pytest.fixture(scope="module")
async def reading(chromium: Browser, site: Site) -> AsyncIterator[Tab]:
    async with tab(chromium, site) as opened:
        await opened.open()
        yield opened


async def test_files_run_nothing_on_our_origin(page: Tab, site: Site) -> None:
    thread = await written(site, [{"type": "ai", "content": "files"}])
    files = await uploaded(site, thread, ARTIFACTS)
    assert len(files) == len(ARTIFACTS)
    await page.open(place=f"t/{thread}")
    answers = await page.page.evaluate(
        """async ([thread, names]) => {
          const shown = {};
          for (const name of names) {
            const frame = document.createElement('iframe');
            frame.src = `api/threads/${thread}/artifacts/mnt/user-data/uploads/${name}`;
            const loaded = new Promise((resolve) => { frame.onload = resolve; setTimeout(resolve, 400); });
            document.body.append(frame);
            await loaded;
            shown[name] = frame.contentDocument?.contentType ?? 'apart';
            frame.remove();
          }
          return shown;
        }""",
        [thread, files],
    )
    assert set(answers) == set(ARTIFACTS)


PROBES = """
const tried = {};
const attempt = async (name, act) => {
  try { tried[name] = String(await act()); } catch { tried[name] = 'refused'; }
};
const press = (element) => { document.body.append(element); element.click(); };
(async () => {
  await attempt('cookie', () => document.cookie);
  await attempt('storage', () => localStorage.length);
  await attempt('parent', () => parent.document.title);
  await attempt('canary', () => parent.canary('parent'));
  await attempt('top', () => top.document.title);
  await attempt('fetch', () => fetch('ORIGIN/api/threads/search', {method: 'POST', body: '{}'}));
  await attempt('fetch of canary', () => fetch('ORIGIN/api/canary', {mode: 'no-cors', credentials: 'include'}));
  await attempt('socket', () => new Promise((resolve, reject) => {
    const socket = new EventSource('ORIGIN/api/events');
    socket.onopen = resolve;
    socket.onerror = reject;
  }));
  await attempt('navigate', () => { top.location = 'BEACON'; });
  await attempt('window', () => { if (!window.open('BEACON')) throw new Error(); });
  document.body.dataset.tried = JSON.stringify(tried);
  press(Object.assign(document.createElement('a'), {href: 'data:,x', download: 'x'}));
  press(Object.assign(document.createElement('a'), {href: 'BEACON', target: '_top'}));
  press(Object.assign(document.createElement('a'), {href: 'BEACON', target: '_blank'}));
  const form = Object.assign(document.createElement('form'), {action: 'BEACON', target: '_top'});
  document.body.append(form);
  form.requestSubmit();
  alert('canary');
  document.body.dataset.done = 'yes';
})();
"""
BLOCKED = ("Connecting to", "Fetch API cannot", "Framing ", "Unsafe attempt", "Blocked ", "Ignored call", "Download is")
"""What Chromium says of the attempts."""
FRAMED = ("cookie", "storage", "parent", "canary", "top", "fetch", "fetch of canary", "socket", "navigate", "window")


WORDS = "BT /F 20 Tf 20 200 Td (Words) Tj ET"


def document(*actions: str) -> bytes:
    """A PDF that does something when it is opened, when its page is seen, and by a link over the whole page."""
    script = "app.alert(1); app.launchURL('BEACON', true); this.submitForm('BEACON'); this.getURL('BEACON'); canary();"
    objects = [
        f"<< /Type /Catalog /Pages 2 0 R /OpenAction << /S /JavaScript /JS ({script}) >> >>",
        "<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 300 300] /Contents 5 0 R /Annots [4 0 R] "
        f"/Resources << /Font << /F 6 0 R >> >> /AA << /O {actions[0]} >> >>",
        f"<< /Type /Annot /Subtype /Link /Rect [0 0 300 300] /A {actions[1]} >>",
        f"<< /Length {len(WORDS)} >>\nstream\n{WORDS}\nendstream",
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    text = b"%PDF-1.7\n"
    offsets = []
    for number, body in enumerate(objects, 1):
        offsets.append(len(text))
        text += f"{number} 0 obj\n{body}\nendobj\n".replace("BEACON", BEACON).encode()
    table = "".join(f"{offset:010} 00000 n \n" for offset in offsets)
    end = f"xref\n0 7\n0000000000 65535 f \n{table}trailer\n<< /Size 7 /Root 1 0 R >>\nstartxref\n{len(text)}\n%%EOF\n"
    return text + end.encode()


ACTIONS = {
    "uri": "<< /S /URI /URI (BEACON) >>",
    "form": "<< /S /SubmitForm /F << /FS /URL /F (BEACON) >> >>",
    "launch": "<< /S /Launch /F (BEACON) >>",
    "remote": "<< /S /GoToR /F << /FS /URL /F (BEACON) >> /D [0 /Fit] >>",
    "javascript": "<< /S /URI /URI (javascript:top.canary\\(\\)) >>",
}


@pytest.mark.parametrize("action", ACTIONS)
async def test_a_document_that_is_shown_does_nothing_by_itself(page: Tab, site: Site, action: str) -> None:
    thread = await written(site, [{"type": "ai", "content": "files"}])
    [name] = await uploaded(site, thread, {"evil.pdf": document(ACTIONS[action], ACTIONS[action])})
    await page.open(place=f"files/{thread}/mnt/user-data/uploads/{name}")
    drawn = page.page.get_by_role("region", name="Page 1 of 1")
    await expect(drawn).to_contain_text("Words")
    await drawn.click()
    await page.page.wait_for_timeout(500)  # nothing is to happen: there is no sign to wait for
    assert page.page.url.startswith(site.server.url)
    assert len(page.page.context.pages) == 1


async def test_a_page_in_a_page_has_no_rights_either(page: Tab, site: Site) -> None:
    """A file that is shown, and a document that it writes into a frame, try everything; other files are not framed."""
    probes = f"<script>{PROBES}</script>".replace("ORIGIN", site.server.url).replace("BEACON", BEACON)
    srcdoc = escape(f"<!doctype html><body>{probes}</body>")
    outer = f'<!doctype html><body>{probes}<iframe src="inner.html"></iframe><iframe srcdoc="{srcdoc}"></iframe></body>'
    thread = await written(site, [{"type": "ai", "content": "files"}])
    await uploaded(site, thread, {"outer.html": outer, "inner.html": f"<!doctype html><body>{probes}</body>"})
    page.expected += BLOCKED
    events: list[str] = []
    page.page.on("download", lambda download: events.append(download.url))
    page.page.context.on("page", lambda other: events.append(other.url))
    await page.open(place=f"t/{thread}")
    await page.page.goto(f"{site.server.url}/#/files/{thread}/mnt/user-data/uploads/outer.html")
    address = page.page.url

    async def all_done() -> bool:
        frames = page.page.frames[1:]
        done = [await frame.evaluate("document.body?.dataset.done") for frame in frames]
        return len(frames) == 3 and done == ["yes", None, "yes"]

    await wait_for(all_done, every=0.1)
    shown, refused, within = page.page.frames[1:]
    assert refused.url.startswith("chrome-error:")
    for frame in (shown, within):
        tried = json.loads(await frame.evaluate("document.body.dataset.tried"))
        assert tried == dict.fromkeys(FRAMED, "refused"), frame.url
    assert page.page.url == address
    assert events == []

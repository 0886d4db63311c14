"""Each provider against a server that plays it: what it is asked, what comes of its answers and its failures."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from adapters.web import api
from adapters.web.duckduckgo import DuckDuckGo
from adapters.web.exa import Exa
from adapters.web.firecrawl import Firecrawl
from adapters.web.jina import Jina
from adapters.web.ports import Hit, Page, Picture
from adapters.web.serper import Serper
from adapters.web.settings import Settings
from adapters.web.tavily import Tavily
from core.config.settings import Secret
from core.errors import Invalid, Unavailable
from tests.adapters.web.site import Site

pytestmark = pytest.mark.anyio

KEY = "hush-1"
PUBLIC = "http://out.test/page"
BEARER = {"Authorization": f"Bearer {KEY}"}


def settings(site: Site, **more: Any) -> Settings:
    return Settings(base_url=site.url, api_key=Secret(KEY), **{"timeout": 5, **more})


# --- what they are asked, and what they answer

SEARCHES: list[tuple[Any, str, Mapping[str, str], Any, Any, list[Hit]]] = [
    (
        Tavily,
        "/search",
        BEARER,
        {"query": "q", "max_results": 3},
        {"results": [{"title": "A", "url": "http://a", "content": "about a", "score": 0.5}, {"url": "http://b"}]},
        [Hit("A", "http://a", "about a"), Hit("http://b", "http://b", "")],
    ),
    (
        Serper,
        "/search",
        {"X-API-KEY": KEY},
        {"q": "q", "num": 3},
        {"organic": [{"title": "A", "link": "http://a", "snippet": "about a", "position": 1}], "credits": 1},
        [Hit("A", "http://a", "about a")],
    ),
    (
        Exa,
        "/search",
        {"x-api-key": KEY},
        {"query": "q", "numResults": 3, "type": "auto", "contents": {"text": {"maxCharacters": 1000}}},
        {"results": [{"title": None, "url": "http://a", "text": "about a"}]},
        [Hit("http://a", "http://a", "about a")],
    ),
    (
        Firecrawl,
        "/v2/search",
        BEARER,
        {"query": "q", "limit": 3},
        {"success": True, "data": {"web": [{"title": "A", "url": "http://a", "description": "about a"}]}},
        [Hit("A", "http://a", "about a")],
    ),
]


@pytest.mark.parametrize(("provider", "path", "headers", "asked", "answer", "found"), SEARCHES)
async def test_search(
    site: Site, provider: Any, path: str, headers: Mapping[str, str], asked: Any, answer: Any, found: list[Hit]
) -> None:
    site.say(path, answer)
    assert await provider(settings(site)).search("q", 3) == found
    assert [(one.method, one.path, one.body) for one in site.asked] == [("POST", path, asked)]
    assert headers.items() <= site.asked[0].headers.items()


FETCHES: list[tuple[Any, str, Mapping[str, str], Any, Any]] = [
    (
        Tavily,
        "/extract",
        BEARER,
        {"urls": [PUBLIC], "format": "markdown"},
        {"results": [{"url": PUBLIC, "title": "T", "raw_content": "text"}], "failed_results": []},
    ),
    (
        Exa,
        "/contents",
        {"x-api-key": KEY},
        {"urls": [PUBLIC], "text": {"maxCharacters": 10_000}},
        {"results": [{"url": PUBLIC, "title": "T", "text": "text"}], "statuses": []},
    ),
    (
        Firecrawl,
        "/v2/scrape",
        BEARER,
        {"url": PUBLIC, "formats": ["markdown"], "onlyMainContent": True},
        {"success": True, "data": {"markdown": "text", "metadata": {"title": "T", "statusCode": 200}}},
    ),
    (
        Jina,
        "/",
        {**BEARER, "Accept": "application/json", "X-Timeout": "5"},
        {"url": PUBLIC},
        {"code": 200, "data": {"title": "T", "content": "text", "url": PUBLIC}},
    ),
]
EMPTY = [
    (Tavily, "/extract", {"results": [], "failed_results": [{"url": PUBLIC, "error": KEY}]}),
    (Exa, "/contents", {"results": [{"url": PUBLIC, "text": ""}]}),
    (Firecrawl, "/v2/scrape", {"success": False, "error": KEY}),
    (Jina, "/", {"code": 200, "data": None}),
]


@pytest.mark.parametrize(("provider", "path", "headers", "asked", "answer"), FETCHES)
async def test_fetch(site: Site, provider: Any, path: str, headers: Mapping[str, str], asked: Any, answer: Any) -> None:
    site.say(path, answer)
    assert await provider(settings(site)).fetch(PUBLIC) == Page("T", "text")
    assert [(one.method, one.path, one.body) for one in site.asked] == [("POST", path, asked)]
    assert headers.items() <= site.asked[0].headers.items()


@pytest.mark.parametrize(("provider", "path", "answer"), EMPTY)
async def test_nothing_was_read(site: Site, provider: Any, path: str, answer: Any) -> None:
    site.say(path, answer)
    with pytest.raises(Unavailable, match="could not read this page") as caught:
        await provider(settings(site)).fetch(PUBLIC)
    assert KEY not in str(caught.value)


async def test_pictures(site: Site) -> None:
    rows = [
        {"title": "A", "imageUrl": "http://a", "thumbnailUrl": "http://a/s", "imageWidth": 5},
        {"imageUrl": "http://b"},
    ]
    site.say("/images", {"images": rows})
    found = await Serper(settings(site)).pictures("q", 30, {"size": "Large"})
    assert found == [Picture("A", "http://a", "http://a/s"), Picture("", "http://b", "http://b")]
    assert site.asked[0].body == {"q": "q", "num": 10}


async def test_settings_of_one_provider(site: Site) -> None:
    site.say("/search", {"results": []})
    await Exa(settings(site, search_type="neural", contents_max_characters=50)).search("q", 3)
    assert site.asked[0].body["type"] == "neural"
    assert site.asked[0].body["contents"] == {"text": {"maxCharacters": 50}}


# --- what goes wrong


def searching(site: Site, **more: Any) -> Callable[[], Awaitable[list[Hit]]]:
    return lambda: Tavily(settings(site, **more)).search("q", 3)


@pytest.mark.parametrize(
    ("status", "headers", "problem"),
    [
        (401, {}, r"does not accept the API key \(HTTP 401\)\. Somebody has to correct it"),
        (403, {}, "does not accept the API key"),
        (402, {}, "no credit left"),
        (432, {}, "no credit left"),
        (429, {"Retry_After": "17"}, "too many requests .* Wait 17 seconds and try again"),
        (429, {"Retry_After": KEY}, "too many requests .* Wait a while and try again"),
        (429, {}, "Wait a while"),
        (400, {}, "cannot do this"),
        (404, {}, "cannot do this"),
        (500, {}, "out of order .* Try again later"),
        (503, {}, "out of order"),
        (302, {"Location": "/elsewhere"}, "points to another address"),
    ],
)
async def test_refused(site: Site, status: int, headers: dict[str, str], problem: str) -> None:
    site.say("/search", {"error": f"bad key {KEY}"}, status=status, **headers)
    site.say("/elsewhere", {"results": []})
    with pytest.raises(Unavailable, match=f"^Tavily .*{problem}.*, or go on without it") as caught:
        await searching(site)()
    assert KEY not in str(caught.value)
    assert len(site.asked) == 1


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>",
        b"[]",
        b"null",
        b'{"results": {}}',
        b'{"results": [1]}',
        b'{"results": [{"url": 1}]}',
        b'{"results": [{"url": "\xff"}]}',
    ],
)
async def test_answers_that_cannot_be_read(site: Site, body: bytes) -> None:
    site.say("/search", body, kind="application/json")
    with pytest.raises(Unavailable, match="an answer that cannot be read"):
        await searching(site)()


async def test_an_answer_that_is_too_large(site: Site) -> None:
    site.endless("/search", b" " * 65536, "application/json")
    with pytest.raises(Unavailable, match=f"sent more than {api.MAX_BYTES >> 20} MB"):
        await searching(site, timeout=60)()


@pytest.mark.parametrize("begin", [None, b'{"results"'])
async def test_an_answer_that_does_not_come(site: Site, begin: bytes | None) -> None:
    site.never("/search", begin)
    with pytest.raises(Unavailable, match=r"did not answer within 0\.3 s"):
        await searching(site, timeout=0.3)()


async def test_nobody_is_there(site: Site) -> None:
    wanted = Settings(base_url="http://127.0.0.1:1", api_key=Secret(KEY))
    with pytest.raises(Unavailable, match="Tavily cannot be reached: it refuses connections"):
        await Tavily(wanted).search("q", 3)


async def test_a_key_that_cannot_be_sent(site: Site) -> None:
    wanted = Settings(base_url=site.url, api_key=Secret("hush\nX-Other: 1"))
    with pytest.raises(Unavailable, match="cannot be reached") as caught:
        await Tavily(wanted).search("q", 3)
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize("provider", [Tavily, Exa, Firecrawl, Jina])
@pytest.mark.parametrize("url", ["http://127.0.0.1/", "http://localhost/", "http://a.internal/", "file:///etc/passwd"])
async def test_nobody_is_sent_inside(site: Site, provider: Any, url: str) -> None:
    with pytest.raises(Invalid):
        await provider(settings(site)).fetch(url)
    assert site.asked == []


@pytest.mark.parametrize("provider", [Firecrawl, Jina])
async def test_ones_own_provider_is_not_sent_inside_by_a_name(site: Site, provider: Any) -> None:
    with pytest.raises(Invalid, match=r"inside\.test has no public address"):
        await provider(settings(site)).fetch("http://inside.test/")
    assert site.asked == []


async def test_ones_own_provider_may_be_sent_inside_if_that_is_wanted(site: Site) -> None:
    site.say("/", {"data": {"content": "text"}})
    page = await Jina(settings(site, allow_private_addresses=True)).fetch("http://inside.test/")
    assert page.text == "text"


# --- keys


@pytest.mark.parametrize(
    ("provider", "variable"),
    [(Tavily, "TAVILY_API_KEY"), (Serper, "SERPER_API_KEY"), (Exa, "EXA_API_KEY"), (Firecrawl, "FIRECRAWL_API_KEY")],
)
def test_a_key_is_needed(monkeypatch: pytest.MonkeyPatch, provider: Any, variable: str) -> None:
    monkeypatch.delenv(variable, raising=False)
    with pytest.raises(Invalid, match=f"needs an API key: set api_key: \\${variable}"):
        provider(Settings())
    monkeypatch.setenv(variable, "hush")
    provider(Settings())


@pytest.mark.parametrize(("provider", "path"), [(Jina, "/"), (Firecrawl, "/v2/scrape")])
async def test_no_key_is_needed(site: Site, monkeypatch: pytest.MonkeyPatch, provider: Any, path: str) -> None:
    monkeypatch.delenv("JINA_API_KEY", raising=False)
    monkeypatch.delenv("FIRECRAWL_API_KEY", raising=False)
    site.say(path, {"data": {"content": "text", "markdown": "text"}})
    assert (await provider(Settings(base_url=site.url)).fetch(PUBLIC)).text == "text"
    assert "Authorization" not in site.asked[0].headers


# --- DuckDuckGo: a stand-in of the package that asks the server

PACKAGE = """
import json, urllib.error, urllib.request

class RatelimitException(Exception): pass
class TimeoutException(Exception): pass

class DDGS:
    def __init__(self, timeout): self.timeout = timeout
    def _ask(self, path, query, options):
        body = json.dumps({{"query": query, **options}}).encode()
        try:
            with urllib.request.urlopen("{url}" + path, body, timeout=self.timeout) as answer:
                rows = json.load(answer)
        except urllib.error.HTTPError as error:
            error.close()
            raise RatelimitException("slow down") if error.code == 429 else RuntimeError("hush")
        if not rows:
            raise Exception("No results found.")
        return rows
    def text(self, query, **options): return self._ask("/text", query, options)
    def images(self, query, **options): return self._ask("/images", query, options)
"""


@pytest.fixture
def ddgs(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    (tmp_path / "ddgs.py").write_text(PACKAGE.format(url=site.url))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "ddgs", raising=False)
    return site


async def test_duckduckgo(ddgs: Site) -> None:
    ddgs.say("/text", [{"title": "A", "href": "http://a", "body": "about a"}, {"title": None, "href": 5}, "odd"])
    ddgs.say("/images", [{"title": "P", "image": "http://p", "thumbnail": "http://p/s", "width": 5}])
    provider = DuckDuckGo(Settings(region="de-de", safesearch="off", backend="brave"))
    assert await provider.search("q", 3) == [Hit("A", "http://a", "about a"), Hit("", "", "")]
    assert await provider.pictures("q", 4, {"size": "Large"}) == [Picture("P", "http://p", "http://p/s")]
    shared = {"query": "q", "region": "de-de", "safesearch": "off", "backend": "brave"}
    assert [one.body for one in ddgs.asked] == [
        {**shared, "max_results": 3},
        {**shared, "max_results": 4, "size": "Large"},
    ]


@pytest.mark.parametrize(("status", "problem"), [(429, "too many requests. Wait"), (500, r"asked \(RuntimeError\)")])
async def test_duckduckgo_refuses(ddgs: Site, status: int, problem: str) -> None:
    ddgs.say("/text", [], status=status)
    with pytest.raises(Unavailable, match=f"DuckDuckGo .*{problem}") as caught:
        await DuckDuckGo(Settings()).search("q", 3)
    assert "hush" not in str(caught.value)


async def test_duckduckgo_finds_nothing(ddgs: Site) -> None:
    ddgs.say("/text", [])
    assert await DuckDuckGo(Settings()).search("q", 3) == []


async def test_duckduckgo_is_late(ddgs: Site) -> None:
    ddgs.never("/text")
    with pytest.raises(Unavailable, match=r"did not answer within 0\.2 s"):
        await DuckDuckGo(Settings(timeout=0.2)).search("q", 3)


async def test_duckduckgo_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ddgs", None)
    with pytest.raises(Unavailable, match="pip install ddgs"):
        await DuckDuckGo(Settings()).search("q", 3)


def test_settings_are_not_shown() -> None:
    assert KEY not in repr(msgspec.structs.asdict(Settings(api_key=Secret(KEY))))

"""Reading pages ourselves, from a server that is really there: what is read, what is not, what is not waited for."""

from __future__ import annotations

import gzip

import pytest

from adapters import egress
from adapters.web import direct
from adapters.web.direct import Direct
from adapters.web.ports import Page
from adapters.web.settings import Settings
from core.errors import Invalid, Unavailable
from tests.adapters.web.site import Site

pytestmark = pytest.mark.anyio

PAGE = "<html><head><title>T</title></head><body><p>text <a href='/next'>next</a></p></body></html>"


async def read(url: str, timeout: float = 5) -> Page:
    return await Direct(Settings(timeout=timeout)).fetch(url)


async def test_a_page(site: Site) -> None:
    site.say("/page", PAGE, kind="text/html; charset=utf-8")
    page = await read(site.at("public.test") + "/page?q=1#part")
    assert page == Page("T", f"text [next]({site.at('public.test')}/next)")
    assert [one.path for one in site.asked] == ["/page?q=1"]


@pytest.mark.parametrize(
    ("body", "kind", "text"),
    [
        (b"# as it is <b>", "text/plain", "# as it is <b>"),
        (b'{"a": 1}', "application/json", '{"a": 1}'),
        (b"<a/>", "application/atom+xml", "<a/>"),
        ("Käse".encode("latin-1"), "text/plain; charset=iso-8859-1", "Käse"),
        (b"<meta charset=iso-8859-1><p>" + "Käse".encode("latin-1"), "text/html", "Käse"),
        ("<p>Käse".encode("utf-16"), "text/html; charset=utf-8", "Käse"),
        ("<p>Käse".encode(), "text/html; charset=no-such", "Käse"),
        (b"<p>Mnchen-3ya", "text/html; charset=punycode", "Mnchen-3ya"),
        (b"<meta charset=idna><p>xn--mnchen-3ya", "text/html", "xn--mnchen-3ya"),
        (b"a\xffb", "text/plain", "a\ufffdb"),
        (b"<p>no type", "", "no type"),
        (b"no type", "", "no type"),
    ],
)
async def test_types_and_encodings(site: Site, body: bytes, kind: str, text: str) -> None:
    site.say("/x", body, kind=kind)
    assert (await read(site.at("public.test") + "/x")).text == text


@pytest.mark.parametrize("kind", ["image/png", "application/pdf", "application/octet-stream", "video/mp4", "odd"])
async def test_what_is_not_text(site: Site, kind: str) -> None:
    site.say("/x", b"\x89PNG", kind=kind)
    with pytest.raises(Invalid, match=f"not a page of text but {kind}"):
        await read(site.at("public.test") + "/x")


async def test_what_only_says_that_it_is_text(site: Site) -> None:
    site.say("/x", b"\x7fELF\0\0\0", kind="text/plain")
    with pytest.raises(Invalid, match="though its type is text/plain"):
        await read(site.at("public.test") + "/x")


@pytest.mark.parametrize("status", [400, 401, 403, 404, 410, 429, 500, 503, 304])
async def test_pages_that_are_not_there(site: Site, status: int) -> None:
    site.say("/x", "no", status=status, kind="text/html")
    with pytest.raises(Unavailable, match=f"HTTP {status}"):
        await read(site.at("public.test") + "/x")


# --- redirects


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_redirects_are_followed(site: Site, status: int) -> None:
    site.say("/one", status=status, Location="two?x=1")
    site.say("/two", PAGE, kind="text/html")
    assert (await read(site.at("public.test") + "/one")).title == "T"


@pytest.mark.parametrize(
    "place",
    [
        "http://127.0.0.1:{port}/secret",
        "http://[::1]:{port}/secret",
        "http://[::ffff:127.0.0.1]:{port}/secret",
        "http://2130706433:{port}/secret",
        "http://127.1:{port}/secret",
        "http://0x7f.1:{port}/secret",
        "http://\uff11\uff12\uff17.0.0.1:{port}/secret",
        "http://localhost:{port}/secret",
        "http://localhost.:{port}/secret",
        "http://inside.test:{port}/secret",
        "//inside.test:{port}/secret",
        "http://10.0.0.1/secret",
        "http://169.254.169.254/latest/meta-data/",
        "http://me:hush@public.test:{port}/secret",
        "file:///etc/passwd",
        "ftp://public.test/secret",
        "http://[bad",
    ],
)
async def test_redirects_that_are_not_followed(site: Site, place: str) -> None:
    site.say("/one", status=302, Location=place.format(port=site.port))
    site.say("/secret", "secret", kind="text/plain")
    with pytest.raises((Invalid, Unavailable)) as caught:
        await read(site.at("public.test") + "/one")
    assert [one.path for one in site.asked] == ["/one"]
    assert "hush" not in str(caught.value)


async def test_redirects_in_a_circle(site: Site) -> None:
    site.say("/one", status=302, Location="/one")
    with pytest.raises(Unavailable, match="more than 5 redirects"):
        await read(site.at("public.test") + "/one")
    assert len(site.asked) == egress.MAX_REDIRECTS + 1


# --- addresses


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("http://127.0.0.1:{port}/", "not a public address"),
        ("http://[::1]:{port}/", "not a public address"),
        ("http://localhost:{port}/", "not a public address"),
        ("http://127.1:{port}/", "not a public address"),
        ("http://printer/", "not a public address"),
        ("http://a.internal/", "not a public address"),
        ("http://192.168.1.1/", "not a public address"),
        ("http://[fe80::1%25eth0]/", "not a public address"),
        ("http://inside.test:{port}/", "no public address"),
        ("http://both.test:{port}/", "no public address"),
        ("http://gone.test:{port}/", "no such name"),
        ("http://me:hush@public.test:{port}/", "holds credentials"),
        ("http://public.test:0/", "not the URL of a page"),
        ("ftp://public.test/", "not the URL of a page"),
        ("public.test/page", "not the URL of a page"),
        ("http://public.test/a b", "not the URL of a page"),
        ("http://", "not (the|a) URL"),
        ("", "not the URL of a page"),
        ("http://[", "not a URL"),
        ("http://public.test:99999/", "not a URL"),
        ("http://public.test/" + "a" * 5000, "not the URL of a page"),
    ],
)
async def test_what_is_not_read(site: Site, url: str, problem: str) -> None:
    with pytest.raises((Invalid, Unavailable), match=problem) as caught:
        await read(url.format(port=site.port))
    assert site.asked == []
    assert "hush" not in str(caught.value)


async def test_private_addresses_if_they_are_allowed(site: Site) -> None:
    site.say("/x", PAGE, kind="text/html")
    page = await Direct(Settings(allow_private_addresses=True)).fetch(site.url + "/x")
    assert page.title == "T"


async def test_nobody_is_there(site: Site, unused_port: int) -> None:
    with pytest.raises(Unavailable, match=r"public\.test cannot be reached"):
        await read(f"http://public.test:{unused_port}/")


@pytest.fixture
def unused_port() -> int:
    import socket

    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


# --- limits


async def test_of_an_endless_page_the_beginning_is_read(site: Site) -> None:
    site.endless("/x", b"word " * 10_000, "text/plain")
    page = await read(site.at("public.test") + "/x", timeout=60)
    assert len(page.text) == direct.MAX_BYTES


async def test_what_is_packed_to_explode(site: Site) -> None:
    site.say("/x", gzip.compress(b"a" * (64 << 20)), kind="text/plain", Content_Encoding="gzip")
    page = await read(site.at("public.test") + "/x", timeout=60)
    assert len(page.text) == direct.MAX_BYTES


@pytest.mark.parametrize("begin", [None, b"<p>the beginning"])
async def test_a_page_that_does_not_come(site: Site, begin: bytes | None) -> None:
    site.never("/x", begin)
    with pytest.raises(Unavailable, match=r"public\.test did not send the page within 0\.3 s"):
        await read(site.at("public.test") + "/x", timeout=0.3)


async def test_a_body_that_cannot_be_unpacked(site: Site) -> None:
    site.say("/x", b"not gzip", kind="text/plain", Content_Encoding="gzip")
    with pytest.raises(Unavailable, match="cannot be reached"):
        await read(site.at("public.test") + "/x")

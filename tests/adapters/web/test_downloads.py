"""Files from URLs of users: what is fetched, within which bounds, and where nothing is connected to."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from adapters import egress
from adapters.egress import Downloads
from core.egress import Absent, check_url
from core.errors import Invalid, Unavailable
from tests.adapters.web.site import AsIfPublic, Site, serving, world

pytestmark = pytest.mark.anyio

real_check = check_url


@pytest.fixture
async def site(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Site]:
    """A site of the world, whose plain http counts as https: nobody has a certificate for it."""

    def check(url: str, where: str, **rules: Any) -> None:
        real_check(url.replace("http://", "https://"), where, **rules)

    world(monkeypatch)
    monkeypatch.setattr(egress, "PublicResolver", AsIfPublic)
    monkeypatch.setattr(egress, "check_url", check)
    async with serving() as running:
        yield running


async def fetch(url: str, limit: int = 1 << 20, seconds: float = 20, private: bool = False) -> bytes:
    body = bytearray()

    async def write(chunk: bytes) -> None:
        body.extend(chunk)

    await Downloads().fetch(url, write, limit=limit, seconds=seconds, private=private, lifted_by="x.allow_private")
    return bytes(body)


async def test_a_file_is_fetched_also_behind_redirects(site: Site) -> None:
    site.say("/", status=302, Location="/b")
    site.say("/b", status=308, Location=site.at("public.test") + "/c")
    site.say("/c", b"content")
    assert await fetch(site.at("public.test") + "/") == b"content"
    assert [request.path for request in site.asked] == ["/", "/b", "/c"]


@pytest.mark.parametrize(
    ("target", "problem"),
    [
        ("http://127.0.0.1:{port}/", "url: 127.0.0.1 is not a public address"),
        ("http://[::1]:{port}/", "not a public address"),
        ("http://localhost:{port}/", "not a public address"),
        ("http://2130706433:{port}/", "not a public address"),
        ("http://inside.test:{port}/", "cannot be reached"),
        ("http://both.test:{port}/", "cannot be reached"),
        ("http://me:hush@public.test:{port}/", "no credentials"),
        ("ftp://public.test/", "expected an https URL"),
        ("file:///etc/passwd", "expected an https URL"),
        ("http://[", "not a URL|cannot be connected to"),
    ],
)
async def test_inner_addresses_are_not_connected_to_also_behind_a_redirect(
    site: Site, target: str, problem: str
) -> None:
    url = target.format(port=site.port)
    with pytest.raises((Invalid, Unavailable), match=problem):
        await fetch(url)
    assert site.asked == []
    site.say("/r", status=302, Location=url)
    with pytest.raises((Invalid, Unavailable), match=problem.removeprefix("url: ")) as caught:
        await fetch(site.at("public.test") + "/r")
    assert [request.path for request in site.asked] == ["/r"]
    assert "hush" not in str(caught.value)


async def test_plain_http_is_refused(monkeypatch: pytest.MonkeyPatch, site: Site) -> None:
    monkeypatch.setattr(egress, "check_url", real_check)
    with pytest.raises(Invalid, match=r"https URL \(x\.allow_private lifts this\)"):
        await fetch(site.at("public.test") + "/")
    assert site.asked == []
    site.say("/f", b"inside")
    assert await fetch(site.url + "/f", private=True) == b"inside"


async def test_size_time_and_redirects_are_bounded(site: Site) -> None:
    site.endless("/endless", b"a" * 1000, "application/zip")
    with pytest.raises(Invalid, match="larger than 1 MiB"):
        await fetch(site.at("public.test") + "/endless")
    site.say("/bomb", b"\x1f\x8b", Content_Encoding="gzip")
    assert await fetch(site.at("public.test") + "/bomb") == b"\x1f\x8b", "nothing is decompressed"
    site.never("/never", b"begin")
    with pytest.raises(Unavailable, match=r"public\.test did not send the file within 0\.2 s"):
        await fetch(site.at("public.test") + "/never", seconds=0.2)
    site.say("/round", status=302, Location="/round")
    with pytest.raises(Invalid, match="more than 5 redirects"):
        await fetch(site.at("public.test") + "/round")


@pytest.mark.parametrize(("status", "error"), [(404, Invalid), (403, Invalid), (304, Invalid), (502, Unavailable)])
async def test_a_site_that_gives_no_file(site: Site, status: int, error: type[Exception]) -> None:
    site.say("/x", status=status)
    with pytest.raises(error, match=rf"public\.test answers HTTP {status}"):
        await fetch(site.at("public.test") + "/x")


@pytest.mark.parametrize(
    ("status", "headers", "error", "words"),
    [
        (429, {}, Unavailable, "HTTP 429: it takes no more requests from here; try again later"),
        (429, {"Retry_After": "7"}, Unavailable, "try again in 7 s"),
        (429, {"Retry_After": "Wed, 21 Oct 2026 07:28:00 GMT"}, Unavailable, "try again later"),
        (403, {"Retry_After": "600"}, Unavailable, "HTTP 403: .* try again in 10 minutes"),
        (403, {"X_RateLimit_Remaining": "0", "X_RateLimit_Reset": "1"}, Unavailable, "try again in 1 s"),
        (403, {"X_RateLimit_Remaining": "9"}, Invalid, "HTTP 403; is the address right, and may everybody read it"),
        (404, {"X_RateLimit_Remaining": "0"}, Absent, "HTTP 404; is the address right, and may everybody read it"),
    ],
)
async def test_a_refusal_names_what_to_do(
    site: Site, status: int, headers: dict[str, str], error: type[Exception], words: str
) -> None:
    site.say("/limited", status=status, **headers)
    with pytest.raises(error, match=words):
        await fetch(site.at("public.test") + "/limited")

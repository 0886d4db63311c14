"""Where sandboxed commands may connect to."""

from __future__ import annotations

import asyncio
import socket
import threading
from typing import Any

import anyio
import pytest

from adapters.sandboxes.egress.rules import Place, Refused, Rules
from core.errors import Invalid


@pytest.mark.parametrize(
    ("entry", "host", "port", "has"),
    [
        ("example.com", "example.com", 443, True),
        ("example.com", "example.com", 80, True),
        ("example.com", "example.com", 22, False),
        ("example.com", "www.example.com", 443, False),
        ("*.example.com", "www.example.com", 443, True),
        ("*.example.com", "a.b.example.com", 443, True),
        ("*.example.com", "example.com", 443, False),
        ("*.example.com", "evilexample.com", 443, False),
        ("example.com:8443", "example.com", 8443, True),
        ("example.com:8443", "example.com", 443, False),
        ("example.com:*", "example.com", 22, True),
        ("Example.COM.", "example.com", 443, True),
        ("bücher.example", "xn--bcher-kva.example", 443, True),
        ("[2001:4860::1]:80", "2001:4860::1", 80, True),
        ("2001:4860::1", "2001:4860::1", 443, True),
        ("*", "anything.example", 443, True),
        ("*", "anything.example", 25, False),
        ("*:*", "anything.example", 25, True),
    ],
)
def test_places(entry: str, host: str, port: int, has: bool) -> None:
    assert Place.of(entry).has(host, port) is has


@pytest.mark.parametrize(
    "entry", ["", "exa*mple.com", "*.*.example.com", "http://example.com", "a:0", "a:70000", "a:b"]
)
def test_what_is_no_place_is_refused(entry: str) -> None:
    with pytest.raises(Invalid):
        Place.of(entry)


@pytest.mark.parametrize(
    ("host", "port"),
    [
        ("127.0.0.1", 80),
        ("169.254.169.254", 80),
        ("::1", 80),
        ("::ffff:127.0.0.1", 80),
        ("10.1.2.3", 443),
        ("localhost", 80),
    ],
)
async def test_private_addresses_are_refused_also_where_every_host_is_allowed(host: str, port: int) -> None:
    with pytest.raises(Refused, match="no public address"):
        await Rules(["*"]).addresses(host, port)
    assert await Rules(["*"], [host if ":" not in host else f"[{host}]:*"]).addresses(host, port)


@pytest.mark.parametrize("host", ["2130706433", "0x7f.1", "127.1", "0177.0.0.1"])
async def test_other_ways_to_write_an_address_lead_nowhere_else(host: str) -> None:
    with pytest.raises((Refused, OSError)):
        await Rules(["*"]).addresses(host, 80)


async def test_only_the_addresses_that_were_checked_are_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    def mixed(host: str, port: int, **_: Any) -> list[Any]:
        addresses = ("10.0.0.1", "93.184.216.34", "127.0.0.1")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in addresses]

    monkeypatch.setattr(socket, "getaddrinfo", mixed)
    assert await Rules(["rebinding.example"]).addresses("rebinding.example", 443) == ["93.184.216.34"]


async def test_slow_names_hold_up_none_of_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    resolve, end = socket.getaddrinfo, threading.Event()

    def slow(host: str, *arguments: Any, **more: Any) -> list[Any]:
        if host == "slow.example":
            end.wait(60)
            raise OSError("no such name")
        return list(resolve(host, *arguments, **more))

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    loop = asyncio.get_running_loop()
    async with anyio.create_task_group() as tasks:
        for _ in range(100):
            tasks.start_soon(Rules(["*"]).addresses, "slow.example", 443)
        await anyio.wait_all_tasks_blocked()
        with anyio.fail_after(120):
            assert await loop.getaddrinfo("127.0.0.1", 443)
        tasks.cancel_scope.cancel()
        end.set()

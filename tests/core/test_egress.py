"""Addresses of this machine are not public, whatever their number: tried in a network namespace that has some."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from core import egress
from core.egress import Outside, is_public, may_be_public

PUBLIC = ["93.184.216.34", "2600:1901::77", "::ffff:93.184.216.34", "64:ff9b::5db8:d822", "2002:5db8:d822::1"]
ELSEWHERE = ["93.184.216.35", "2600:1901::78"]
PROGRAM = """
import ctypes, fcntl, ipaddress, json, os, socket, struct, sys
from core.egress import is_public

def interface(*, v4, v6):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        address = struct.pack("HH4s8x", socket.AF_INET, 0, socket.inet_aton(v4))
        fcntl.ioctl(s, 0x8916, struct.pack("16s16s", b"lo", address))  # SIOCSIFADDR
        fcntl.ioctl(s, 0x8914, struct.pack("16sH14x", b"lo", 0x49))  # SIOCSIFFLAGS: up, loopback, running
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as s:
        fcntl.ioctl(s, 0x8916, struct.pack("16sIi", socket.inet_pton(socket.AF_INET6, v6), 128, 1))

before = [is_public(address) for address in json.loads(sys.argv[1])]
interface(v4="93.184.216.34", v6="2600:1901::77")
print(json.dumps([before, [is_public(address) for address in json.loads(sys.argv[1])]]))
"""


def own_network() -> list[str]:
    """Returns the words that start a program in a network namespace of its own; skips where that is not allowed."""
    words = ["unshare", "--net"] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", "--net"]
    try:
        subprocess.run([*words, "true"], check=True, capture_output=True, timeout=30)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no network namespaces here (unshare, of util-linux)")
    return words


def test_addresses_of_this_machine_are_not_public() -> None:
    addresses = [*PUBLIC, *ELSEWHERE]
    root = Path(__file__).parents[2]
    command = [*own_network(), sys.executable, "-c", PROGRAM, json.dumps(addresses)]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    before, after = json.loads(done.stdout)
    assert before == [True] * len(addresses)
    assert after == [False] * len(PUBLIC) + [True] * len(ELSEWHERE)


OUTSIDE = {
    "its address": ("http://93.184.216.34:8080", "93.184.216.34", False),
    "in IPv6": ("https://[2600:1901::77]", "2600:1901::77", False),
    "written otherwise": ("https://[2600:1901:0::77]", "2600:1901::0077", False),
    "wrapped": ("http://93.184.216.34", "::ffff:93.184.216.34", False),
    "of another": ("http://93.184.216.34", "93.184.216.35", True),
    "without a URL": (None, "93.184.216.34", True),
    "a name that nobody has": ("https://no-such-host.invalid", "93.184.216.34", True),
}


@pytest.mark.anyio
@pytest.mark.parametrize(("url", "address", "public"), OUTSIDE.values(), ids=OUTSIDE)
async def test_the_address_by_which_the_server_is_reached_is_not_public(
    monkeypatch: pytest.MonkeyPatch, url: str | None, address: str, public: bool
) -> None:
    """Behind a router that translates, it is of none of its interfaces."""
    outside = Outside()
    monkeypatch.setattr(egress, "outside", outside)
    await outside.look(url)
    assert (is_public(address), may_be_public(address)) == (public, public)


@pytest.mark.anyio
async def test_a_name_that_fails_for_a_moment_opens_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    outside = Outside()
    monkeypatch.setattr(egress, "outside", outside)
    await outside.look("http://93.184.216.34")
    await outside.look("https://no-such-host.invalid")
    assert not is_public("93.184.216.34")
    await outside.look(None)
    assert is_public("93.184.216.34")

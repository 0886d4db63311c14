"""The machine of the agent's commands, as runs know it, and the section of the prompt that describes it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from core.config import sandbox as settings
from core.sandbox.probe import Probe

HOST = "host"
"""The provider that does not confine commands."""
FILE = "environment.json"
"""The server's record of the machine, in its data directory: replays and plans read it."""
UNKNOWN_PROGRAMS = "- Programs and packages: look before you rely on one."
MOST_HOSTS = 8
"""Hosts that are named."""


class Known(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The provider of sandboxes, and its machine if that was looked at."""

    provider: str = ""
    probe: Probe | None = None


class Environment:
    """The sandboxes of this server. It stays the same while the server runs, and so do the prompts."""

    def __init__(self, known: Known = Known()) -> None:  # noqa: B008  frozen
        self._known = known

    @property
    def confined(self) -> bool:
        """Tells whether the sandbox confines commands, so that none need be refused for what it looks like."""
        return self._known.provider not in ("", HOST)

    def allows_commands(self, sandbox: settings.Sandbox) -> bool:
        """Tells whether commands run: on this machine itself only if the settings allow it."""
        unconfined = HOST in (sandbox.provider, self._known.provider)
        return sandbox.allow_host_bash or not unconfined

    def section(self, sandbox: settings.Sandbox) -> str:
        return section(self._known, sandbox)


def remembered(home: Path) -> Environment:
    """Returns the environment that a server of the data directory noted last. Blocks."""
    try:
        return Environment(msgspec.json.decode((home / "sandbox" / FILE).read_bytes(), type=Known))
    except (OSError, msgspec.MsgspecError):
        return Environment()


def section(known: Known, sandbox: settings.Sandbox) -> str:
    """Returns the section for a run with commands; empty if nothing is known. Pure, so equal machines and settings make
    the same bytes.
    """
    return "\n".join(["<environment>", *_lines(known, sandbox), "</environment>"]) if known.provider else ""


def _lines(known: Known, sandbox: settings.Sandbox) -> Iterator[str]:
    own = known.provider != HOST
    where = "in a sandbox" if own else "on this machine itself, without a sandbox"
    yield f"- Commands run {where}{_system(known.probe)}."
    if known.probe is None:
        yield UNKNOWN_PROGRAMS
    else:
        yield f"- Programs: {_versions(known.probe.programs) or 'a POSIX shell'}. Look before you rely on others."
        if known.probe.packages:
            yield f"- Python packages: {_versions(known.probe.packages)}, and what they need."
    yield f"- Network: {_network(sandbox) if own else 'that of this machine'}."
    yield f"- Limits: {_limits(sandbox)}."
    yield f"- What lasts: {_lasting(own, sandbox)}"


def _system(probe: Probe | None) -> str:
    if probe is None or not probe.system:
        return ""
    cores = f", {probe.cores} processors" if probe.cores else ""
    return f": {probe.system}, {probe.machine}{cores}"


def _versions(names: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {_short(version)}".rstrip() for name, version in names.items())


def _short(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _network(sandbox: settings.Sandbox) -> str:
    if not sandbox.network:
        return "none but localhost, so nothing can be installed or downloaded"
    egress = sandbox.egress
    if egress.direct:
        return "that of this machine"
    hosts = [host for host in (*egress.allow, *egress.allow_private) if host != "*"]
    named = [*(["all public hosts"] if "*" in egress.allow else []), *hosts[:MOST_HOSTS]]
    more = f" and {len(hosts) - MOST_HOSTS} more" if len(hosts) > MOST_HOSTS else ""
    return f"HTTP and HTTPS by a proxy (http_proxy is set) to {', '.join(named) or 'no host'}{more}"


def _limits(sandbox: settings.Sandbox) -> str:
    every = f", {sandbox.max_thread_mb} MB of files in all" if sandbox.max_thread_mb else ""
    return (
        f"a command {sandbox.timeout_seconds:g} s, in the background {sandbox.background_seconds:g} s and "
        f"{sandbox.max_background} at a time; each {sandbox.memory_mb} MB of memory and {sandbox.max_processes} "
        f"processes; {sandbox.max_file_mb} MB a file{every}"
    )


def _lasting(own: bool, sandbox: settings.Sandbox) -> str:
    pause = f" until no command ran for {sandbox.idle_seconds} s" if sandbox.idle_seconds else ""
    temporary = f"/tmp{pause}; " if own else ""
    return (
        f"files in the directories above; {temporary}commands in the background, whose ports later ones reach. "
        "`cd`, variables and what a command leaves running end with it."
    )

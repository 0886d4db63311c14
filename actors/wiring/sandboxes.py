"""Sandbox providers as the configuration wants them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import msgspec
import structlog
from anyio import to_thread

from actors.agent.setup.environment import FILE, Environment, Known
from actors.wiring.discovery import BUILT_IN_SANDBOXES, provider_of
from core.config.load import reveal
from core.config.settings import Config
from core.errors import Unavailable
from core.ports.sandbox import MakeProvider, Probes, SandboxProvider, SandboxSetup
from core.sandbox.probe import SCRIPT, Probe, parsed
from core.skills.library import folders_of

log = structlog.get_logger("sika.compose")

PROBE_SECONDS = 5.0
"""Time that the first start waits for a look at the machine of commands."""
BY_STRENGTH = ("bubblewrap", "docker")
"""The sandbox providers that `auto` tries, in this order."""


def quota_of(config: Config) -> dict[str, int]:
    """Returns the limits of the files of threads and users (`adapters.sandboxes.process.quota`)."""
    sandbox = config.sandbox
    return {
        "thread_bytes": sandbox.max_thread_mb << 20,
        "thread_files": sandbox.max_thread_files,
        "user_bytes": sandbox.max_user_mb << 20,
        "user_files": sandbox.max_user_files,
    }


def _built_in(name: str) -> MakeProvider:
    if name == "docker":
        from adapters.sandboxes.remote.docker_engine import provider

        return provider
    if name == "aio":
        from adapters.sandboxes.remote.provider import Aio

        return Aio
    if name == "provisioner":
        from adapters.sandboxes.remote.provisioner import Provisioner

        return Provisioner
    from adapters.sandboxes.bubblewrap import Bubblewrap

    return Bubblewrap


async def provider_for(home: Path, config: Config, project: Path = Path()) -> SandboxProvider:
    """Returns the configured sandbox provider; for `auto`, the strongest that works here. Raises `Unavailable`."""
    from adapters.sandboxes.host.sandbox import Host

    if config.sandbox.provider == "auto":
        provider, weaker = await strongest(home, config, project)
        (log.warning if weaker else log.info)("sandbox", provider=provider.name, because=weaker or "the strongest")
        return provider
    name, setup = config.sandbox.provider, _sandbox_setup(home, config, project)
    if name == "host":
        return Host(setup)
    provider = (provider_of(config) or _built_in(name))(setup)
    problem = await provider.check()
    if problem is None:
        return provider
    raise Unavailable(f"sandbox.provider: {name} does not work here: {problem}")


async def strongest(home: Path, config: Config, project: Path = Path()) -> tuple[SandboxProvider, Mapping[str, str]]:
    """Returns the strongest sandbox provider that works here, and why each stronger one does not, by its name. The
    last is the host's, which has file tools, and commands only with `sandbox.allow_host_bash`.
    """
    problems: dict[str, str] = {}
    for name in (*(name for name in BY_STRENGTH if name in BUILT_IN_SANDBOXES), "host"):
        sandbox = msgspec.structs.replace(config.sandbox, provider=name)
        try:
            return await provider_for(home, msgspec.structs.replace(config, sandbox=sandbox), project), problems
        except Unavailable as error:
            problems[name] = str(error)
    raise AssertionError("the host has no check that fails here")


async def environment_of(home: Path, provider: SandboxProvider) -> Environment:
    """Returns the environment of runs, and notes it in the data directory. The machine is looked at if it was not since
    it changed, for `PROBE_SECONDS`: the server's start waits for it, so that its prompts stay the same.
    """
    known = Known(provider=provider.name, probe=await _probed(home, provider) if isinstance(provider, Probes) else None)
    await to_thread.run_sync(_write, home / "sandbox" / FILE, msgspec.json.encode(known))
    return Environment(known)


async def _probed(home: Path, provider: Probes) -> Probe | None:
    from adapters.sandboxes.confine import toolkit

    try:
        with anyio.fail_after(PROBE_SECONDS):
            name = f"{type(provider).__name__} {await provider.edition()} {SCRIPT}"
            key = hashlib.sha256(name.encode()).hexdigest()[:16]
            file = (await to_thread.run_sync(toolkit.beside) or home / "sandbox") / f"environment-{key}.json"
            with suppress(OSError, msgspec.MsgspecError):
                return msgspec.json.decode(await to_thread.run_sync(file.read_bytes), type=Probe)
            probe = parsed(await provider.probe(SCRIPT))
    except (TimeoutError, Unavailable) as error:
        log.warning("agents are not told what programs there are", error=repr(error))
        return None
    await to_thread.run_sync(_write, file, msgspec.json.encode(probe))
    return probe


def _write(path: Path, content: bytes) -> None:
    """Writes a file whole, or not at all: without it the machine is looked at again."""
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.write_bytes(content)
        draft.replace(path)


def for_tests(config: Config) -> Callable[[Path, Path], SandboxProvider]:
    """Returns what makes the configured sandbox for a data directory and a folder of skills of their own."""
    from adapters.sandboxes.host.sandbox import Host
    from core.skills.folders import folders_in

    def make(home: Path, skills: Path) -> SandboxProvider:
        setup = replace(_sandbox_setup(home, config, Path()), skills=folders_in(skills))
        name = config.sandbox.provider
        return Host(setup) if name == "host" else (provider_of(config) or _built_in(name))(setup)

    return make


def _sandbox_setup(home: Path, config: Config, project: Path) -> SandboxSetup:
    from core.files.paths import Mount

    section = config.sandbox
    for mount in section.mounts:
        if not os.path.isdir(mount.host_path):
            log.warning("a mount is left out: no such directory, or it cannot be looked at", host_path=mount.host_path)
    return SandboxSetup(
        home=home,
        skills=folders_of(config, project),
        mounts=[Mount(Path(m.host_path), m.container_path, writable=not m.read_only) for m in section.mounts],
        environment={name: secret.reveal() for name, secret in section.environment.items()},
        network=section.network,
        egress=section.egress,
        memory_mb=section.memory_mb,
        max_processes=section.max_processes,
        max_file_mb=section.max_file_mb,
        quota=quota_of(config),
        idle_seconds=section.idle_seconds,
        allow_host_bash=section.allow_host_bash,
        settings=_provider_settings(config),
    )


def _provider_settings(config: Config) -> Mapping[str, Any]:
    section = config.sandbox
    if section.provider in ("docker", "aio"):
        return msgspec.structs.asdict(getattr(section, section.provider))
    if section.provider == "provisioner":
        key = section.provisioner.api_key
        return {"url": section.provisioner.url, "api_key": key.reveal() if key else ""}
    settings: Mapping[str, Any] = reveal(config.installed.get(section.provider, {}))
    return settings

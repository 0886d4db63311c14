"""An engine that does not see this machine's files: nothing is mounted, and all that people see was copied."""

from __future__ import annotations

import datetime as dt
import ipaddress
import os
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.abc import ByteStream, SocketAttribute
from anyio.streams.tls import TLSListener
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from adapters.sandboxes.docker.address import Address
from adapters.sandboxes.remote.docker_engine import RemoteDocker, provider
from adapters.sandboxes.remote.sandbox import AioSandbox
from core.config.sandbox import Egress
from core.errors import Unavailable
from core.ports.sandbox import Machine, MachineLost, SandboxSetup, ShellCommand
from tests.adapters.sandboxes.conftest import running, settings
from tests.adapters.sandboxes.test_contract import run
from tests.support.engine import IMAGE, REMOTE_IMAGE, TestEngine
from tests.support.nats import eventually

pytestmark = [pytest.mark.anyio, pytest.mark.long(keep=4)]
FILL = "i=0; while [ $i -lt 20 ]; do head -c 8000000 /dev/zero > f$i; i=$((i + 1)); done; sleep 987650"
"""160 MB; the limit of the settings is 64 MB, of a file 8 MB."""


def remote(place: Path, host: str, **changes: Any) -> RemoteDocker:
    options = {"host": host, "image": REMOTE_IMAGE, "remote": True} | changes.pop("options", {})
    made = provider(SandboxSetup(**settings(place) | changes, settings=options))
    assert isinstance(made, RemoteDocker)
    return made


@pytest.fixture
def docker(tmp_path: Path, docker_engine: TestEngine) -> RemoteDocker:
    return remote(tmp_path, docker_engine.host)


@pytest.fixture
async def machine(docker: RemoteDocker) -> AsyncIterator[Machine]:
    yield (started := await docker.start("ada", "t1"))
    await docker.end(started)


@pytest.fixture
async def sandbox(docker: RemoteDocker, machine: Machine) -> AioSandbox:
    return await docker.open(machine, "ada", "t1")


# ── machines ────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_nothing_of_this_machine_is_mounted(
    tmp_path: Path, docker_engine: TestEngine, sandbox: AioSandbox, machine: Machine
) -> None:
    (tmp_path / "home/users/ada/threads/t1/user-data/uploads/given").write_text("from here\n")
    result = await run(sandbox, "cat ../uploads/given /mnt/readonly/fixed.txt /proc/mounts; echo there > made")
    assert result.stdout.startswith("from here\nfixed")
    assert str(tmp_path) not in result.stdout
    assert (tmp_path / "home/users/ada/threads/t1/user-data/workspace/made").read_text() == "there\n"
    with docker_engine.client() as client:
        state = client.inspect_container(machine.id)
    assert {(mount["Type"], mount["Destination"]) for mount in state["Mounts"]} == {
        ("volume", "/mnt"),
        ("volume", "/run/sika"),
    }
    assert not state["HostConfig"]["Binds"]
    assert not [mount for mount in state["HostConfig"]["Mounts"] if mount["Type"] == "bind"]


async def test_its_volumes_end_with_a_machine(docker_engine: TestEngine, docker: RemoteDocker) -> None:
    machine = await docker.start("ada", "t1")
    with docker_engine.client() as client:
        names = {mount["Name"] for mount in client.inspect_container(machine.id)["Mounts"]}
        await docker.end(machine)
        assert names.isdisjoint(volume["Name"] for volume in client.volumes()["Volumes"] or ())


async def test_a_machine_is_adopted_and_one_that_is_gone_is_replaced(
    tmp_path: Path, docker_engine: TestEngine, docker: RemoteDocker, machine: Machine, sandbox: AioSandbox
) -> None:
    assert (await run(sandbox, "echo x >> count; cat count")).stdout == "x\n"
    successor = remote(tmp_path, docker_engine.host)
    assert await successor.start("ada", "t1") == machine
    assert list(await successor.residents()) == [(machine, "ada", "t1")]
    await docker.end(machine)
    with pytest.raises(MachineLost):
        await run(sandbox, "true", "c2")
    with pytest.raises(MachineLost):
        await docker.open(machine, "ada", "t1")
    replaced = await successor.start("ada", "t1")
    assert replaced != machine
    again = await successor.open(replaced, "ada", "t1")
    assert (await run(again, "cat count", "c3")).stdout == "x\n"
    await successor.end(replaced)


async def test_a_command_has_no_privileges_and_no_network(sandbox: AioSandbox) -> None:
    text = "cat /proc/self/status /proc/net/dev; for d in / /bin /etc /dev; do touch $d/x && echo open $d; done"
    result = await run(sandbox, text)
    status = dict(line.split(":", 1) for line in result.stdout.splitlines() if ":" in line)
    assert {status[name].strip() for name in ("CapEff", "CapPrm", "CapBnd")} == {"0" * 16}
    assert (status["NoNewPrivs"].strip(), status["Seccomp"].strip()) == ("1", "2")
    assert int(status["Uid"].split()[0]) == (os.geteuid() or 1000)
    assert "eth0" not in result.stdout
    assert "open" not in result.stdout


async def test_a_cleared_environment_does_not_hide_a_process(sandbox: AioSandbox) -> None:
    assert (await run(sandbox, "(env -i setsid sleep 987651 &); echo on")).stdout == "on\n"
    assert running("987651") == []


async def test_an_image_without_the_tools_is_named(tmp_path: Path, docker_engine: TestEngine) -> None:
    docker = remote(tmp_path, docker_engine.host, options={"image": IMAGE})
    with pytest.raises(Unavailable, match="the sandbox's image lacks the program"):
        await docker.start("ada", "t1")
    for resident in await docker.residents():
        await docker.end(resident.machine)


# ── limits of files ─────────────────────────────────────────────────────────────────────────────────────────────────


async def test_the_quota_ends_a_command(sandbox: AioSandbox) -> None:
    result = await run(sandbox, FILL)
    assert result.exit_code == 137
    assert "sandbox.max_thread_mb" in result.stderr
    assert running("987650") == []
    assert (await run(sandbox, "rm f*; echo free", "c2")).stdout == "free\n"


async def test_the_quota_ends_a_command_in_the_background(docker: RemoteDocker, sandbox: AioSandbox) -> None:
    async def ended() -> bool:
        return (await sandbox.output("c1")).result is not None

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(docker.run)
        await anyio.wait_all_tasks_blocked()
        await sandbox.start("c1", ShellCommand(FILL, 100))
        await eventually(ended)
        tasks.cancel_scope.cancel()
    assert "sandbox.max_thread_mb" in (await sandbox.output("c1")).text
    assert running("987650") == []


# ── the address of the engine ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("host", ["tcp://192.0.2.1:2375", "tcp://engine.example:2375"])
def test_an_engine_elsewhere_without_tls_is_refused(host: str) -> None:
    assert "has no TLS" in (Address(host, {}).problem(remote=True) or "")
    assert Address(host, {}).problem(remote=False) is None  # a socket proxy of this machine's engine


@pytest.mark.parametrize("host", ["tcp://127.0.0.1:2375", "tcp://[::1]:2375", "tcp://localhost:2375", "unix:///sock"])
def test_a_tunnel_to_an_engine_needs_no_tls(host: str) -> None:
    assert Address(host, {}).problem(remote=True) is None


def test_certificates_that_are_not_there_are_named(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").touch()
    address = Address("tcp://engine.example:2376", {"DOCKER_CERT_PATH": str(tmp_path)})
    assert "cert.pem, key.pem" in (address.problem(remote=True) or "")
    assert "sandbox.docker.remote" in (address.problem(remote=False) or "")


async def test_a_network_that_cannot_be_had_is_refused(tmp_path: Path, docker_engine: TestEngine) -> None:
    assert "sandbox.egress.direct" in (await remote(tmp_path, docker_engine.host, network=True).check() or "")
    direct = remote(tmp_path, docker_engine.host, network=True, egress=Egress(direct=True))
    assert await direct.check() is None


async def test_files_and_output_come_over_tls(
    tmp_path: Path, docker_engine: TestEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Large enough for transfers of their own in both directions."""
    await anyio.to_thread.run_sync(certify, tmp_path / "tls")
    monkeypatch.setenv("DOCKER_CERT_PATH", str(tmp_path / "tls"))
    async with tls_front(tmp_path / "tls", docker_engine.host.removeprefix("unix://")) as host:
        docker = remote(tmp_path, host)
        assert await docker.check() is None
        machine = await docker.start("ada", "t1")
        sandbox = await docker.open(machine, "ada", "t1")
        data = os.urandom(3_000_000)
        files = tmp_path / "home/users/ada/threads/t1/user-data"
        (files / "uploads/data").write_bytes(data)
        command = "cp ../uploads/data ../outputs/copy; head -c 300000 /dev/zero | tr '\\0' x"
        assert len((await run(sandbox, command)).stdout) == 300_000
        assert (files / "outputs/copy").read_bytes() == data
        await docker.end(machine)


async def test_a_server_with_another_authority_is_no_engine(
    tmp_path: Path, docker_engine: TestEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("tls", "other"):
        await anyio.to_thread.run_sync(certify, tmp_path / name)
    monkeypatch.setenv("DOCKER_CERT_PATH", str(tmp_path / "other"))
    async with tls_front(tmp_path / "tls", docker_engine.host.removeprefix("unix://")) as host:
        assert "certificate verify failed" in (await remote(tmp_path, host).check() or "")


@asynccontextmanager
async def tls_front(folder: Path, path: str) -> AsyncIterator[str]:
    """Serves a Unix socket over TLS on loopback, to clients with a certificate of the folder's authority."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=folder / "ca.pem")
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    context.verify_mode = ssl.CERT_REQUIRED

    async def copy(source: ByteStream, target: ByteStream, scope: anyio.CancelScope) -> None:
        with suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):
            async for block in source:
                await target.send(block)
        scope.cancel()

    async def serve(client: ByteStream) -> None:
        async with client, await anyio.connect_unix(path) as engine, anyio.create_task_group() as both:
            both.start_soon(copy, client, engine, both.cancel_scope)
            both.start_soon(copy, engine, client, both.cancel_scope)

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(SocketAttribute.local_port)
    async with (
        TLSListener(listener, context, standard_compatible=False) as secure,
        anyio.create_task_group() as connections,
    ):
        connections.start_soon(secure.serve, serve)
        yield f"tcp://127.0.0.1:{port}"
        connections.cancel_scope.cancel()


def certify(folder: Path) -> None:
    """Writes an authority, and one certificate of it for both sides."""
    folder.mkdir()
    authority, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    issuer, subject = name_of("authority"), name_of("engine")
    ca = certificate(issuer, issuer, authority, authority, x509.BasicConstraints(ca=True, path_length=None))
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    leaf = certificate(subject, issuer, key, authority, address)
    pem, private = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    (folder / "ca.pem").write_bytes(ca.public_bytes(pem))
    (folder / "cert.pem").write_bytes(leaf.public_bytes(pem))
    (folder / "key.pem").write_bytes(key.private_bytes(pem, private, serialization.NoEncryption()))


def name_of(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def certificate(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    signer: ec.EllipticCurvePrivateKey,
    extension: x509.ExtensionType,
) -> x509.Certificate:
    now = dt.datetime.now(dt.UTC)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number()).not_valid_before(now - dt.timedelta(days=1))
    builder = builder.not_valid_after(now + dt.timedelta(days=1)).add_extension(extension, critical=True)
    asked_for = (  # by Python 3.13
        x509.SubjectKeyIdentifier.from_public_key(key.public_key()),
        x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()),
        x509.KeyUsage(True, False, False, False, False, key is signer, False, False, False),
    )
    for one in asked_for:
        builder = builder.add_extension(one, critical=False)
    return builder.sign(signer, hashes.SHA256())

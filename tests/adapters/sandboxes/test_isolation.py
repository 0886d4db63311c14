"""What a command in bubblewrap cannot see or do. All of it really runs."""

from __future__ import annotations

import os
import socket
import struct
import sys
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from adapters.sandboxes import bubblewrap
from adapters.sandboxes.bubblewrap import Bubblewrap, BubblewrapSandbox
from adapters.sandboxes.confine import confinement, etc, seccomp
from core.config.sandbox import Egress
from core.ports.sandbox import SandboxSetup
from tests.adapters.sandboxes.conftest import SECRET, run, settings

pytestmark = pytest.mark.anyio


async def test_check_says_yes_here(tmp_path: Path) -> None:
    assert await Bubblewrap(SandboxSetup(**settings(tmp_path))).check() is None


async def test_check_leaves_nothing_in_the_data_directory(tmp_path: Path) -> None:
    await Bubblewrap(SandboxSetup(**settings(tmp_path))).check()
    assert list((tmp_path / "home").iterdir()) == []


async def test_etc_follows_the_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = etc.folder(tmp_path, network=True)
    assert etc.folder(tmp_path, network=True) == first
    assert (first / "resolv.conf").exists() == Path("/etc/resolv.conf").exists()
    assert not (etc.folder(tmp_path, network=False) / "resolv.conf").exists()
    monkeypatch.setattr(etc, "_version", lambda name: (1, 2, 3))  # as after a change of certificates
    os.utime(first, (0, 0))
    assert etc.folder(tmp_path, network=True) != first
    assert not first.exists()  # was not used for a day


async def test_check_names_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setattr(bubblewrap, "binary", lambda: str(broken))
    reason = await Bubblewrap(SandboxSetup(**settings(tmp_path))).check()
    assert reason is not None
    assert "No permissions" in reason
    assert "apparmor_restrict_unprivileged_userns" in reason


async def test_the_home_and_other_threads_are_invisible(tmp_path: Path, jail: BubblewrapSandbox) -> None:
    provider = Bubblewrap(SandboxSetup(**settings(tmp_path)))
    other = await provider.acquire("ada", "t2")
    await other.write("secret.txt", SECRET)
    home = tmp_path / "home"
    (home / "config.yaml").write_text(SECRET)
    search = f"grep -rs --exclude-dir={Path(sys.base_prefix).name} {SECRET} /mnt /tmp /home /root"  # Python is large
    result = await run(jail, f"ls {home} {home}/users; cat {home}/config.yaml; {search}")
    assert SECRET not in result.stdout
    assert result.stderr.count("No such file") == 3


async def test_the_host_is_invisible(jail: BubblewrapSandbox) -> None:
    result = await run(jail, "ls -d /etc/shadow /etc/ssh /etc/ssl/private /home /var /opt /boot /sys /run /srv; ls /")
    assert not {"home", "var", "opt", "sys", "run", "work"} & set(result.stdout.split())
    assert result.stderr.count("No such file") == 10


async def test_nothing_of_the_system_can_be_written(jail: BubblewrapSandbox) -> None:
    result = await run(
        jail,
        "for d in / /usr /usr/bin /etc /mnt /mnt/user-data /mnt/skills /mnt/readonly;"
        "do touch $d/x && echo WROTE $d; done;"
        "touch /tmp/x /mnt/shared/x /mnt/user-data/workspace/x && echo fine",
    )
    assert result.stdout == "fine\n"


async def test_no_kernel_setting_can_be_opened_for_writing(jail: BubblewrapSandbox) -> None:
    # As a server that is root, uid 1000 inside is root to the kernel. Opened without O_TRUNC, and never written to.
    probe = """
import os
for top in ("/proc/sys", "/proc/pressure", "/proc/irq", "/proc/bus", "/proc/self"):
    for place, _, names in os.walk(top):
        for name in names:
            path = os.path.join(place, name)
            if top == "/proc/self" and "/fd" in path:
                continue
            try:
                os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
                print(path)
            except OSError:
                pass
"""
    await jail.write("probe.py", probe)
    result = await run(jail, "python3 probe.py")
    assert (result.stdout, result.stderr, result.exit_code) == ("", "", 0)


async def test_no_privileges_and_no_way_to_them(jail: BubblewrapSandbox) -> None:
    result = await run(jail, "grep -E 'CapEff|CapBnd|NoNewPrivs' /proc/self/status; mount -t tmpfs none /tmp; id -u")
    assert result.stdout.split() == ["CapEff:", "0" * 16, "CapBnd:", "0" * 16, "NoNewPrivs:", "1", "1000"]
    assert result.stderr != ""


async def test_other_processes_are_invisible(jail: BubblewrapSandbox) -> None:
    result = await run(jail, f"ls /proc | grep -c '^[0-9]'; kill -0 {os.getpid()} 2>&1")
    assert int(result.stdout.split()[0]) < 10
    assert result.exit_code != 0


async def test_there_is_no_network(jail: BubblewrapSandbox) -> None:
    result = await run(jail, "cat /proc/net/dev | tail -n +3 | cut -d: -f1; ls /etc/resolv.conf")
    assert result.stdout.split() == ["lo"]


async def test_secrets_of_the_server_are_not_in_the_environment(
    jail: BubblewrapSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_API_KEY", SECRET)
    result = await run(jail, "cat /proc/*/environ /proc/*/cmdline 2>/dev/null | tr '\\0' '\\n'")
    assert "CONFIGURED=yes" in result.stdout
    assert SECRET not in result.stdout


async def test_an_unknown_machine_or_an_old_bwrap_is_no_obstacle_and_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = tmp_path / "bwrap"
    old.write_text(
        "#!/bin/sh\n"
        'for word; do [ "$word" != --disable-userns ] || { echo "unknown" >&2; exit 1; }; done\n'
        f'exec {confinement.binary()} "$@"\n'
    )
    old.chmod(0o755)
    for module in (bubblewrap, confinement):
        monkeypatch.setattr(module, "binary", lambda: str(old))
    monkeypatch.setattr(seccomp, "available", lambda: False)
    with capture_logs() as lines:
        assert await Bubblewrap(SandboxSetup(**settings(tmp_path))).check() is None
    reasons = " ".join(line["reason"] for line in lines)
    assert "cannot refuse nested user namespaces" in reasons
    assert "no filter of system calls for" in reasons
    weak = await Bubblewrap(SandboxSetup(**settings(tmp_path))).acquire("ada", "t1")
    assert (await run(weak, "echo fine")).stdout == "fine\n"


def test_filters_of_all_machines_end_in_a_verdict() -> None:
    """Each jump stays within the program, and the last instruction returns: else the kernel takes none of it."""
    for machine in seccomp.ARCHITECTURES:
        for program in (seccomp.program(machine), seccomp.notifying(machine)):
            words = [struct.unpack_from("=HBBI", program, place) for place in range(0, len(program), 8)]
            jumps = [place + 1 + max(word[1:3]) for place, word in enumerate(words) if word[0] & 7 == 5]
            assert max(jumps) < len(words)
            assert words[-1][0] == 0x06


async def test_a_network_shared_with_the_host_is_named(tmp_path: Path) -> None:
    """With `egress.direct` the command reaches the ports of localhost; what it can reach is said, not hidden."""
    shared = Bubblewrap(SandboxSetup(**settings(tmp_path) | {"network": True, "egress": Egress(direct=True)}))
    with socket.create_server(("127.0.0.1", 0)) as listener, capture_logs() as lines:
        assert await shared.check() is None
        port = listener.getsockname()[1]
        code = f"import socket; socket.create_connection(('127.0.0.1', {port}), 5); print('reached')"
        result = await run(await shared.acquire("ada", "t1"), f'python3 -c "{code}"')
    assert result.stdout == "reached\n"
    assert any("localhost" in line.get("reason", "") for line in lines)
    assert "localhost" in " ".join(shared.weaknesses())
    proxied = Bubblewrap(SandboxSetup(**settings(tmp_path) | {"network": True}))
    assert "localhost" not in " ".join(proxied.weaknesses())

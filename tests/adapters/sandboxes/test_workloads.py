"""Programs that people use still work in the sandbox. Each really runs; one that is not installed is skipped."""

from __future__ import annotations

import shutil

import pytest

from adapters.sandboxes.bubblewrap import BubblewrapSandbox
from tests.adapters.sandboxes.conftest import run

pytestmark = pytest.mark.anyio

C = """
#include <pthread.h>
#include <stdio.h>
static void *work(void *number) { *(int *)number += 1; return 0; }
int main(void) {
    pthread_t threads[8]; int numbers[8] = {0}, sum = 0;
    for (int i = 0; i < 8; i++) pthread_create(&threads[i], 0, work, &numbers[i]);
    for (int i = 0; i < 8; i++) { pthread_join(threads[i], 0); sum += numbers[i]; }
    printf("%d\\n", sum);
}
"""
PYTHON = {
    "threads": "import threading; w = [threading.Thread(target=int) for _ in range(20)]; [x.start() for x in w]",
    "fork pool": "from multiprocessing import get_context as c; assert c('fork').Pool(2).map(abs, [-1]) == [1]",
    "asyncio and a subprocess": "import asyncio as a; p = a.run(a.create_subprocess_exec('true'))",
    "sqlite": "import sqlite3; d = sqlite3.connect('x.db'); d.execute('pragma journal_mode=wal')",
    "pty": "import pty; assert pty.spawn(['true']) == 0",
    "loopback": "import socket as s; a = s.create_server(('127.0.0.1', 0)); s.create_connection(a.getsockname())",
    "unix socket": "import socket as s; a = s.socket(1); a.bind('u'); a.listen(); s.socket(1).connect('u')",
    "names of hosts": "import socket as s; assert s.getaddrinfo('localhost', 80)",
    "shared memory": "from multiprocessing.shared_memory import SharedMemory as S; S(create=True, size=9).unlink()",
    "openssl": "import ssl; assert ssl.create_default_context().get_ca_certs() is not None",
}
NODE = "require('child_process').execSync('true'); new (require('worker_threads').Worker)('1', {eval: true})"
COMMIT = "git -c user.name=a -c user.email=a@b commit -q --allow-empty -m x"


@pytest.mark.parametrize("name", PYTHON)
async def test_python(jail: BubblewrapSandbox, name: str) -> None:
    await jail.write("work.py", PYTHON[name].replace("; ", "\n"))
    result = await run(jail, "python3 -W error::DeprecationWarning work.py")
    assert (result.exit_code, result.stderr) == (0, "")


@pytest.mark.parametrize(
    ("program", "command"),
    [
        ("git", "git init -q r && cd r && " + COMMIT + " && git gc -q"),
        ("gcc", "gcc -pthread -o work work.c && ./work | grep -x 8"),
        ("node", f'node -e "{NODE}"'),
        ("perl", "perl -e 'fork // die; wait'"),
        ("make", "printf 'x:\\n\\ttrue\\n' > Makefile && make -s -j4"),
        ("tar", "mkdir d && tar czf d.tgz d && tar xzf d.tgz"),
        ("script", "script -qc true /dev/null < /dev/null"),
        ("ps", "ps aux | grep -q ps"),
        ("python3", "python3 -m venv --without-pip v && v/bin/python -c 'print(1)'"),
    ],
)  # fmt: skip
async def test_programs(jail: BubblewrapSandbox, program: str, command: str) -> None:
    if shutil.which(program, path="/usr/local/bin:/usr/bin:/bin") is None:
        pytest.skip(f"{program} is not installed")
    await jail.write("work.c", C)
    result = await run(jail, command)
    assert result.exit_code == 0, result

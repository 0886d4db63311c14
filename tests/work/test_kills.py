"""Sessions whose server is killed in the middle, at steps of a seed."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.work.conftest import working
from tests.work.session import Work, seeded, until

pytestmark = pytest.mark.long(keep=3)

STEPS = 24


@pytest.fixture(scope="module")
async def work(anyio_backend: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Work]:
    async with working(tmp_path_factory.mktemp("work"), runs={"lease_seconds": 2}) as office:
        yield office


@pytest.mark.parametrize("seed", range(3))
async def test_killed_at_random_steps(work: Work, seed: int) -> None:
    """Each command is run once, whatever happens to the server while it runs."""
    session = await work.session()
    session.kills = seeded(STEPS, 3, seed)
    await session.asks(f"Write a ledger, number {seed}.")
    for n in range(STEPS):
        if n % 3 == 2:
            await session.write(f"note{n}.txt", f"note {n}\n")
        else:
            text = await session.bash(f"echo line {n} >> ledger; tail -1 ledger")
            assert f"line {n}" in text
    assert session.file("workspace/ledger").read_text().splitlines() == [
        f"line {n}" for n in range(STEPS) if n % 3 != 2
    ]
    assert all(session.file(f"workspace/note{n}.txt").read_text() == f"note {n}\n" for n in range(2, STEPS, 3))
    await session.answers("The ledger is written.")


async def test_killed_while_a_command_runs_and_a_job_waits(work: Work) -> None:
    session = await work.session("Run the long job, and a command beside it.")
    text = await session.bash("until test -e go; do sleep 0.05; done; echo job done", background=True)
    job = text.split()[0]
    ids = await session.begins(
        ("bash", {"command": "echo begun >> runs; until test -e on; do sleep 0.05; done; cat runs"})
    )
    await until(session.file("workspace/runs").exists)
    await work.restart()
    session.puts("workspace/on", "")
    [text] = await session.resumed(ids)
    assert text.strip().splitlines()[-1] == "begun"
    assert session.file("workspace/runs").read_text() == "begun\n"
    session.puts("workspace/go", "")
    for _ in range(60):
        text = await session.call("bash_output", id=job, wait_seconds=1)
        if "job done" in text:
            break
    assert "job done" in text
    await session.answers("Both are done.")

"""The script that looks at a machine runs in any shell, and what it prints is taken for nothing else."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.sandbox.probe import LONGEST, PACKAGES, PROGRAMS, SCRIPT, Probe, parsed

SHELLS = [["bash"], ["dash"], ["busybox", "sh"]]


@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
def test_any_shell_finds_the_same(shell: list[str]) -> None:
    if shutil.which(shell[0]) is None:
        pytest.skip(f"there is no {shell[0]}")
    process = subprocess.run([*shell, "-c", SCRIPT], capture_output=True, text=True, check=True)
    probe = parsed(process.stdout)
    assert process.stderr == ""
    assert {name for name in PROGRAMS if shutil.which(name)} == probe.programs.keys()
    words = subprocess.run(["python3", "--version"], capture_output=True, text=True, check=True).stdout.split()
    assert probe.programs["python3"] == words[1]
    assert probe.system
    assert probe.cores > 0


def test_a_machine_with_nothing_but_a_shell() -> None:
    script = f"PATH=/nowhere\n{SCRIPT}"
    probe = parsed(subprocess.run(["/bin/sh", "-c", script], capture_output=True, text=True, check=False).stdout)
    assert (probe.programs, probe.packages) == ({}, {})


def test_versions() -> None:
    rows = ["program\tgit\tgit version 2.39.5", "program\tjava\t", "program\tgo\tgo version go1.22.1 linux/amd64"]
    rows += ["package\tnumpy\t2.4.6", "system\tDebian GNU/Linux 12 (bookworm)\tx86_64", "cores\t8\t", "noise"]
    assert parsed("\n".join(rows)) == Probe(
        system="Debian GNU/Linux 12 (bookworm)",
        machine="x86_64",
        cores=8,
        programs={"git": "2.39.5", "go": "1.22.1", "java": ""},
        packages={"numpy": "2.4.6"},
    )


LINES = st.tuples(
    st.sampled_from(["program", "package", "system", "cores", "x"]),
    st.one_of(st.sampled_from([*PROGRAMS, *PACKAGES]), st.text(max_size=100)),
    st.text(max_size=100),
).map("\t".join)


@given(st.lists(LINES).map("\n".join))
def test_a_hostile_image_says_nothing_of_its_own(output: str) -> None:
    probe = parsed(output)
    assert probe.programs.keys() <= PROGRAMS.keys()
    assert probe.packages.keys() <= set(PACKAGES)
    values = [*probe.programs.values(), *probe.packages.values()]
    assert all(len(value) <= LONGEST and set(value) <= set("0123456789.") for value in values)
    assert all(len(text) <= LONGEST and not set(text) & set("<>\n`") for text in (probe.system, probe.machine))

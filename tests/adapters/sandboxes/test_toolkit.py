"""The Python of commands has the packages that skills need, and nothing else of the server's installation."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

import pytest

from adapters.sandboxes.bubblewrap import BubblewrapSandbox
from adapters.sandboxes.confine import toolkit
from tests.adapters.sandboxes.conftest import run

pytestmark = pytest.mark.anyio

MODULES = (
    "bs4, docx, duckdb, lxml, markdown_it, matplotlib.pyplot, openpyxl, pandas, pdfplumber, PIL, pptx, pypdf, "
    "pypdfium2, reportlab.platypus, yaml"
)


async def test_the_python_of_commands_has_the_packages_of_skills(jail: BubblewrapSandbox) -> None:
    # The product shows that OpenBLAS fits into the limits of a small sandbox.
    code = f"import numpy; numpy.ones((500, 500)) @ numpy.ones((500, 500)); import {MODULES}"
    result = await run(jail, f"python3 -c '{code}'")
    assert (result.stdout, result.stderr, result.exit_code) == ("", "", 0)
    assert (await run(jail, "ls -A", "c2")).stdout == ""  # no caches in the workspace


async def test_the_rest_of_the_servers_installation_is_invisible(jail: BubblewrapSandbox) -> None:
    names = "ls -R /python/lib | grep -E 'pth$|nats|openai'"
    private = f"(find /python/lib -path '*.dist-info/*' ! -name METADATA | grep . || {names})"
    result = await run(jail, f"python3 -c 'import sys; print(sys.prefix)' && {private}")
    assert result.stdout == f"{toolkit.ROOT}\n"
    result = await run(jail, "cd /python/lib/python3*/site-packages/numpy && touch x", "c2")
    assert "Read-only file system" in result.stderr


def test_a_package_that_is_not_installed_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    original = metadata.distribution

    def without_pandas(name: str) -> metadata.Distribution:
        if name == "pandas":
            raise metadata.PackageNotFoundError(name)
        return original(name)

    monkeypatch.setattr(metadata, "distribution", without_pandas)
    names = {path.name for path in toolkit._paths.__wrapped__().entries}
    assert {"matplotlib", "docx", "numpy"} <= names
    assert "pandas" not in names


def test_files_that_are_not_there_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An image may leave out what a server does not import, and a package may be half removed."""
    record = tmp_path / "half-1.dist-info"
    record.mkdir()
    (record / "RECORD").write_text("half.py,,\nother.py,,\nhalf-1.dist-info/METADATA,,\nhalf-1.dist-info/RECORD,,\n")
    (tmp_path / "half.py").touch()
    monkeypatch.setattr(metadata, "distribution", lambda _: metadata.PathDistribution(record))
    monkeypatch.setattr(toolkit, "PACKAGES", ("half",))
    (record / "METADATA").write_text("Name: half\nVersion: 1\n")
    assert toolkit._paths.__wrapped__() == ([tmp_path / "half.py"], [record / "METADATA"])
    (record / "METADATA").unlink()
    for cached in ("_paths", "_key"):
        monkeypatch.setattr(toolkit, cached, getattr(toolkit, cached).__wrapped__)
    assert toolkit._paths().metadata == []
    assert toolkit.edition()

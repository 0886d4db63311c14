"""The promises of decision 1: our package names are ours alone, and the lock names no place."""

from __future__ import annotations

import importlib.metadata
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
OURS = {"core", "actors", "channels", "adapters"}


def test_no_dependency_installs_a_package_of_our_names() -> None:
    for distribution in importlib.metadata.distributions():
        if distribution.metadata["Name"] == "sika":
            continue
        tops = {file.parts[0] for file in distribution.files or () if len(file.parts) > 1}
        assert not tops & OURS, distribution.metadata["Name"]


def test_the_lock_pins_by_hash_and_names_no_place() -> None:
    lock = (ROOT / "requirements.lock").read_text()
    assert not re.search(r"https?://|file:|--index-url|--find-links", lock)
    requirements = re.findall(r"^([A-Za-z0-9_.-]+)==.*?(?=^\S|\Z)", lock, re.MULTILINE | re.DOTALL)
    blocks = re.split(r"^(?=\S)", lock, flags=re.MULTILINE)
    assert requirements
    assert all("--hash=sha256:" in block for block in blocks if block.strip() and not block.startswith("#"))

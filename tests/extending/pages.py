"""The pages on extending, as packages: what stands in their code blocks is written, built and installed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "channels" / "http" / "docs"
KINDS = ("actor", "tool", "policy", "channel", "verb", "view", "sandbox", "event", "protocol", "model", "skill")


def page(kind: str) -> str:
    return (PAGES / f"extend-{kind}.md").read_text()


def files(kind: str) -> Mapping[str, str]:
    """The files of a page's package: code blocks that say their name after their language."""
    blocks = [token for token in MarkdownIt().parse(page(kind)) if token.type == "fence"]
    named = [(token.info.split()[1:], token.content) for token in blocks]
    return {name[0]: content for name, content in named if name}


def is_test(name: str) -> bool:
    return name.startswith("test_")


def write(kind: str, folder: Path) -> Path:
    """Writes a page's package, its tests included."""
    folder.mkdir(parents=True)
    for name, content in files(kind).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    return folder


def install(folders: Iterable[Path], target: Path) -> None:
    """Builds and installs packages as pip does, without a network."""
    uv = str(Path(sys.executable).parent / "uv")
    command = [uv, "pip", "install", "--quiet", "--offline", "--no-index", "--no-deps", "--no-build-isolation"]
    where = ["--python", sys.executable, "--target", str(target)]
    subprocess.run([*command, *where, *map(str, folders)], check=True, capture_output=True, timeout=120)

"""The wheel as somebody installs it who has no clone: in an environment and a folder of its own."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import aiohttp
import pytest

from tests.e2e.servers import Frame, Server, browser, run_of
from tests.support.model_server import ModelServer
from tests.support.workers import DEADLINE

pytestmark = [pytest.mark.anyio, pytest.mark.long]

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the programs of an environment with the wheel. The libraries are those of the tests."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=120)
    venv.create(folder / "venv", with_pip=False, symlinks=True)
    programs = folder / "venv/bin"
    [wheel] = folder.glob("*.whl")
    pip = [sys.executable, "-m", "pip", "--python", str(programs / "python"), "install", "--no-deps", "--no-index"]
    subprocess.run([*pip, "--quiet", str(wheel)], check=True, capture_output=True, timeout=120)
    [packages] = (folder / "venv/lib").glob("python*/site-packages")
    (packages / "libraries.pth").write_text(sysconfig.get_path("purelib"))
    (programs / "nats-server").symlink_to(Path(sys.executable).with_name("nats-server"))  # of the wheel of that name
    return programs


async def test_init_serve_a_run_the_page_and_skills(installed: Path, tmp_path: Path) -> None:
    environment = {"HOME": str(tmp_path), "PATH": f"{installed}:{os.environ['PATH']}"}
    async with ModelServer({}) as models, browser() as client, aiohttp.ClientSession() as session:
        wishes = ["--provider", "custom", "--base-url", models.url, "--model", "tokens-3", "--key-stdin"]
        init = await asyncio.create_subprocess_exec(
            installed / "sika", "init", *wishes, cwd=tmp_path, env=environment,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        async with asyncio.timeout(DEADLINE):
            text, _ = await init.communicate(b"a-key-that-is-long-enough-4711\n")
        assert init.returncode == 0, text.decode()
        assert (tmp_path / "config.yaml").is_file()
        with (tmp_path / "log").open("wb") as log:
            server = await asyncio.create_subprocess_exec(
                installed / "sika", "serve", "--port", "0", cwd=tmp_path, env=environment,
                stdout=subprocess.PIPE, stderr=log,
            )  # fmt: skip
        try:
            assert server.stdout is not None
            async with asyncio.timeout(DEADLINE):
                line = (await server.stdout.readline()).decode()
            found = re.search(r"http://\S+", line)
            assert found, (tmp_path / "log").read_text()
            at = Server(tmp_path / "home", tmp_path / "config.yaml")
            at.url = found[0]
            thread, frames = await client.thread(at), list[Frame]()
            await client.start(at, thread, "go", "main", frames)
            assert await client.status(at, thread, run_of(frames)) == "success"
            async with session.get(at.url) as response:
                page = await response.text()
                assert response.content_type == "text/html"
            links = re.findall(r'(?:src|href)="(/?[^":]+\.(?:js|css))', page)
            assert links
            for link in links:
                async with session.get(f"{at.url}/{link.lstrip('/')}") as response:
                    assert response.status == 200, link
            skills = {skill["name"] for skill in (await client.get(at, "/skills"))["skills"]}
            assert {path.name for path in (ROOT / "skills/public").iterdir() if path.is_dir()} <= skills
        except BaseException as error:
            error.add_note((tmp_path / "log").read_text())
            raise
        finally:
            if server.returncode is None:
                server.terminate()
            async with asyncio.timeout(DEADLINE):
                await server.wait()

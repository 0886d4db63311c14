"""`sika mcp` against a whole server with a real stdio server beside it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from actors.wiring import compose
from channels import cli
from core.errors import Refused
from tests.support.mcp import SERVER

pytestmark = pytest.mark.anyio


async def sika(home: Path, *words: str) -> int:
    arguments = cli.parser().parse_args(["mcp", *words[:1], "--home", str(home), *words[1:]])
    return int(await arguments.command(arguments))


async def test_from_adding_to_calling(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.yaml").write_text("tracing: {}")
    (tmp_path / "extensions_config.json").write_text('{"other": 1, "mcpServers": {"bad": {"command": "no-such"}}}')
    async with compose.serve(compose.Options(tmp_path / "home", port=0)):
        home = tmp_path / "home"
        assert await sika(home, "add", "--trusted", "mine", sys.executable, SERVER) == 0
        with pytest.raises(Refused, match="already"):
            await sika(home, "add", "mine", "x")
        content = json.loads((tmp_path / "extensions_config.json").read_text())
        assert content["other"] == 1
        assert content["mcpServers"]["mine"]["args"] == [SERVER]
        capsys.readouterr()
        assert await sika(home, "test", "mine") == 0
        assert capsys.readouterr().out.endswith("mine: 19 tools\n")
        assert await sika(home, "test", "bad") == 1
        assert "no-such" in capsys.readouterr().out
        assert await sika(home, "tools", "mine") == 0
        shown = capsys.readouterr().out
        assert "mine_echo  (pure)" in shown
        assert "@mine:test://notes  (resource)  notes" in shown
        assert "/mine:greet who  (prompt)" in shown
        assert await sika(home, "call", "mine_echo", '{"text": "hi"}') == 0
        assert capsys.readouterr().out.endswith("echo hi\n")
        assert await sika(home, "call", "mine_fails") == 1
        assert "it went wrong" in capsys.readouterr().out
        assert await sika(home, "list") == 0
        lines = capsys.readouterr().out.partition("SERVER ")[2].splitlines()
        assert [line.split()[:4] for line in lines[1:]][1] == ["mine", "stdio", "fine", "19"]
        assert "failed" in lines[1]

"""`sika channels setup`: an account on a platform, tried while it is set up."""

from __future__ import annotations

import re
import stat
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from channels.cli.extend import channel_setup
from channels.cli.extend.channel_setup import Setup, set_up
from channels.cli.extend.env_file import Variables
from core.chat import platforms
from core.config.load import parse
from core.errors import Invalid
from tests.channels.discord.server import TOKEN, DiscordServer
from tests.channels.terminal.terminals import Terminal, on_terminal

pytestmark = pytest.mark.anyio
DOCS = Path(channel_setup.__file__).parents[2] / "http" / "docs"
WRONG = "wrong.bot.token"
PLATFORMS = ("slack", "telegram", "discord", "feishu", "dingtalk", "webhook")


def folder_for(server: DiscordServer, folder: Path) -> Path:
    """Returns the path of a configuration that names the local Discord."""
    address = server.settings["base_url"]
    (folder / "config.yaml").write_text(f"channels: {{discord: {{base_url: {address}}}}}\n")
    return folder / "config.yaml"


async def said(path: Path, answers: Sequence[tuple[str, str]]) -> tuple[bool, str, list[bool]]:
    """Goes through the setup of Discord with answers to questions that contain a text. Returns whether it works, what
    was shown, and which answers were secrets."""
    shown: list[str] = []
    secrets: list[bool] = []
    left = list(answers)

    async def read(question: str, default: str, secret: bool) -> str:
        shown.append(question)
        secrets.append(secret)
        text, answer = left.pop(0)
        assert text in question, (text, question)
        return answer or default

    traits = platforms.traits("discord", parse(""))
    works = await set_up(Setup("discord", traits, path, read, shown.append))
    assert left == []
    return works, "\n".join(shown), secrets


async def test_what_works_is_written_and_not_shown(tmp_path: Path) -> None:
    async with DiscordServer() as server:
        path = folder_for(server, tmp_path)
        works, shown, secrets = await said(path, [("bot_token", TOKEN), ("allowed_users", "500")])
    assert works
    assert TOKEN not in shown
    assert secrets == [True, False]
    assert "ok    the bot token is that of sika" in shown
    env = tmp_path / ".env"
    assert env.read_text() == f"DISCORD_BOT_TOKEN='{TOKEN}'\n"
    assert stat.S_IMODE(env.stat().st_mode) == 0o600
    lines = yaml.safe_load(shown[shown.index("channels:") : shown.index("Then:")])
    assert lines == {
        "channels": {"discord": {"enabled": True, "bot_token": "$DISCORD_BOT_TOKEN", "allowed_users": [500]}}
    }


async def test_what_does_not_work_is_asked_for_again(tmp_path: Path) -> None:
    async with DiscordServer() as server:
        path = folder_for(server, tmp_path)
        answers = [("bot_token", "nonsense"), ("bot_token", WRONG), ("Paste the credentials again", "yes")]
        works, shown, _ = await said(path, [*answers, ("bot_token", TOKEN), ("allowed_users", "")])
    assert works
    assert "That does not look like it" in shown
    assert "FAIL  the bot token" in shown
    assert "Reset Token" in shown
    assert "allowed_users: " not in shown


async def test_who_gives_up_leaves_nothing(tmp_path: Path) -> None:
    async with DiscordServer() as server:
        path = folder_for(server, tmp_path)
        works, shown, _ = await said(path, [("bot_token", WRONG), ("again", "no"), ("all the same", "no")])
    assert not works
    assert "nothing was written" in shown
    assert not (tmp_path / ".env").exists()


@pytest.mark.parametrize("replaced", [False, True])
async def test_what_is_there_is_kept_unless_a_person_agrees(tmp_path: Path, replaced: bool) -> None:
    before = f"# keys\nOTHER=1\nexport DISCORD_BOT_TOKEN={TOKEN if not replaced else WRONG}\nLAST=$x"
    (tmp_path / ".env").write_text(before)
    async with DiscordServer() as server:
        path = folder_for(server, tmp_path)
        if replaced:
            answers = [("Keep it", "no"), ("bot_token", TOKEN), ("allowed_users", ""), ("Replace", "yes")]
            assert (await said(path, answers))[0]
            assert (tmp_path / ".env").read_text() == f"# keys\nOTHER=1\nDISCORD_BOT_TOKEN='{TOKEN}'\nLAST=$x"
            before = (tmp_path / ".env").read_text()
        answers = [("Keep it", ""), ("allowed_users", "")]
        works, shown, _ = await said(path, answers)
    assert works
    assert TOKEN not in shown
    assert (tmp_path / ".env").read_text() == before


@pytest.mark.parametrize("platform", PLATFORMS)
def test_the_steps_of_a_platform_ask_for_all_that_it_needs(platform: str) -> None:
    traits = platforms.traits(platform, parse(""))
    asked = [step.key for step in traits.setup if step.key and not step.optional]
    assert asked == [credential.key for credential in traits.credentials]
    assert all(re.compile(step.form) for step in traits.setup if step.key)
    page = (DOCS / f"{platform}.md").read_text()
    for address in re.findall(r"https://[\w.-]+", " ".join(step.text for step in traits.setup)):
        assert address.partition("://")[2] in page, "the page says the same"
    assert f"sika channels setup {platform}" in page


def test_a_line_that_a_value_would_break_is_refused(tmp_path: Path) -> None:
    variables = Variables(tmp_path / ".env")
    for value in ("it's", "a\nB=c", "back\\slash"):
        with pytest.raises(Invalid):
            variables.set("A", value)
    assert not variables.write()


async def test_a_person_at_a_terminal(tmp_path: Path) -> None:
    async with DiscordServer() as server:
        path = folder_for(server, tmp_path)

        async def work(terminal: Terminal) -> None:
            await terminal.until("Reset Token. Copy it.")
            await terminal.prompt()
            terminal.type(f"{TOKEN}\r".encode())
            await terminal.until("the bot token is that of")
            assert TOKEN.encode() not in terminal._seen
            await terminal.prompt()
            terminal.type(b"\r")
            await terminal.until("Then: sika channels test discord")
            assert await terminal.ended() == 0

        await on_terminal(work, "channels", "setup", "discord", "--config", str(path), cwd=tmp_path)
    assert TOKEN in (tmp_path / ".env").read_text()

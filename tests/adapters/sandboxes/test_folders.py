"""A person's folder in a sandbox: what commands and file tools reach of it, and what they do not."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from adapters.sandboxes.bubblewrap import Bubblewrap, BubblewrapSandbox
from adapters.sandboxes.files.folders import Search
from adapters.sandboxes.host.sandbox import Host, HostSandbox
from core.errors import Invalid
from core.files.paths import PROJECT, Mount
from core.files.secret_names import Rules
from core.ports.sandbox import Edit, Query, SandboxSetup
from tests.adapters.sandboxes.conftest import run, settings

pytestmark = pytest.mark.anyio

CANARY = "canary-5577"
SECRETS = [
    ".env", ".ENV", ".env.production", "prod.env", ".npmrc", ".netrc", ".pypirc", ".git-credentials", "deploy/id_rsa",
    "deploy/server.pem", "deploy/tls.key", ".aws/credentials", ".ssh/config", "kubeconfig", "terraform.tfvars",
    "secrets.yaml", "config/credentials.json", "client_secret_1.json", "a/b/c/d/e/.env", ".envrc",
]  # fmt: skip
OPEN = [
    ".env.example", "secrets.py", "id_rsa.pub", "tokens.py", "env/settings.py", "password_reset.html", "README.md",
    "certs/cacert.pem", "envelope.txt",
]  # fmt: skip


def make(folder: Path, *, repository: bool = True) -> Path:
    for name in SECRETS:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"KEY={CANARY}\n")
    for name in OPEN:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"open {name}\n")
    (folder / "link").symlink_to(".env")
    (folder / "out").symlink_to("/etc/passwd")
    (folder / ".npmtoken.secret").symlink_to("config/plain")
    (folder / "config/plain").write_text(CANARY)
    (folder / ".vscode").mkdir()
    (folder / ".vscode/tasks.json").write_text("{}")
    if repository:
        git(folder, "init", "-q")
        git(folder, "add", *OPEN)
        git(folder, "commit", "-qm", "begin")
    return folder


def git(folder: Path, *words: str) -> str:
    who = ["-c", "user.name=Ada", "-c", "user.email=ada@example.org"]
    environment = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null", "HOME": str(folder)}
    done = subprocess.run(
        ["git", *who, *words], cwd=folder, env=environment, check=True, capture_output=True, text=True
    )
    return done.stdout


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "project").mkdir()
    return make(tmp_path / "project")


def mount(folder: Path, *, writable: bool = True, **rules: Any) -> Mount:
    return Mount(folder, PROJECT, writable=writable, rules=Rules(**rules))


Make = Callable[..., Awaitable[BubblewrapSandbox]]


@pytest.fixture
def sandbox(tmp_path: Path, folder: Path) -> Make:
    provider = Bubblewrap(SandboxSetup(**settings(tmp_path)))

    async def make(thread: str = "t1", **more: Any) -> BubblewrapSandbox:
        return await provider.acquire_in("ada", thread, mount(folder, **more))

    return make


@pytest.fixture
async def files(tmp_path: Path, folder: Path) -> HostSandbox:
    return await Host(SandboxSetup(**settings(tmp_path))).acquire_in("ada", "t1", mount(folder))


# ── commands ────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_commands_begin_in_the_folder_and_change_it(sandbox: Make, folder: Path) -> None:
    result = await run(await sandbox(), "pwd; cat README.md; echo new > made.txt; echo more >> README.md")
    assert result.stdout == f"{PROJECT}\nopen README.md\n", result
    assert (folder / "made.txt").read_text() == "new\n"
    assert (folder / "README.md").read_text() == "open README.md\nmore\n"


async def test_only_the_thread_sees_the_folder(tmp_path: Path, folder: Path) -> None:
    provider = Bubblewrap(SandboxSetup(**settings(tmp_path)))
    with_folder, without = await provider.acquire_in("ada", "t1", mount(folder)), await provider.acquire("ada", "t2")
    assert (await run(with_folder, "ls README.md")).exit_code == 0
    assert "No such file" in (await run(without, f"ls {PROJECT}; pwd")).stderr
    with pytest.raises(Invalid, match="not found"):
        await without.read(f"{PROJECT}/README.md")


@pytest.mark.parametrize("writable", [True, False])
async def test_no_command_reads_a_secret(sandbox: Make, writable: bool) -> None:
    jail = await sandbox(writable=writable)
    tricks = [
        "cat " + " ".join(SECRETS) + " link .npmtoken.secret config/plain",
        "grep -r canary . ; grep -ra canary /mnt /proc/self/mountinfo",
        "python3 -c \"import os; [print(open(os.path.join(d, n)).read()) for d, _, ns in os.walk('.') for n in ns "
        'if os.path.isfile(os.path.join(d, n))]"',
        "ln .env hard; cat hard; cp .env copy; cat copy; mv .env moved; cat moved; rm -f .env; cat .env",
        "mv deploy node_modules; mkdir -p venv; mv a venv/; mv config .venv; true",
        "cat node_modules/id_rsa venv/a/b/c/d/e/.env .venv/credentials.json deploy/id_rsa a/b/c/d/e/.env",
        "umount .env; mount --bind / /mnt; cat .env; tar c . | strings | grep canary; dd if=.env",
        "ln -sf ../.env deep; cat deep; cat ./deploy/../.env; cat /proc/self/cwd/.env",
        "cat /proc/1/root/mnt/project/.env",
    ]
    for number, trick in enumerate(tricks):
        result = await run(jail, trick, f"c{number}")
        assert CANARY not in result.stdout + result.stderr, (trick, result)


async def test_what_only_sounds_like_a_secret_is_read(sandbox: Make) -> None:
    result = await run(await sandbox(), "cat " + " ".join(OPEN))
    assert result.stdout == "".join(f"open {name}\n" for name in OPEN), result


async def test_a_secret_that_comes_later_is_hidden_from_the_next_command(sandbox: Make, folder: Path) -> None:
    jail = await sandbox()
    assert (await run(jail, "ls")).exit_code == 0
    (folder / "env").mkdir(exist_ok=True)
    (folder / "env/.env").write_text(CANARY)
    (folder / "new.pem").write_text(CANARY)
    assert CANARY not in (await run(jail, "cat env/.env new.pem", "c2")).stdout
    for path in (f"{PROJECT}/env/.env", "new.pem"):
        with pytest.raises(Invalid, match="hidden"):
            await jail.read(path)


async def test_a_person_shows_a_file(sandbox: Make) -> None:
    jail = await sandbox(shown=(".env", "deploy/*.pem"))
    result = await run(jail, "cat .env deploy/server.pem; cat deploy/id_rsa a/b/c/d/e/.env.x")
    assert result.stdout == f"KEY={CANARY}\n" * 2
    assert (await jail.read(f"{PROJECT}/.env")).decode() == f"KEY={CANARY}\n"


async def test_read_only_is_read_only(sandbox: Make, folder: Path) -> None:
    before = git(folder, "status", "--porcelain")
    jail = await sandbox(writable=False)
    script = (
        "echo x > new; echo x >> README.md; rm README.md; mkdir d; git commit -qam x; touch .git/x; chmod 777 .; pwd"
    )
    assert (await run(jail, script)).stdout == f"{PROJECT}\n"
    assert git(folder, "status", "--porcelain") == before
    for change in (
        jail.write("new", "x"),
        jail.edit([Edit(path="README.md", old="open", new="shut")]),
        jail.write("README.md", "x"),
    ):
        with pytest.raises(Invalid, match="read-only"):
            await change


async def test_git_works(sandbox: Make, folder: Path) -> None:
    script = """
        git log --format=%s; echo x >> README.md; git diff --stat | tail -1; git add README.md
        git -c user.name=A -c user.email=a@example.org commit -qm more && git log --format=%s | head -1
    """
    result = await run(await sandbox(), script)
    assert result.stdout == "begin\n 1 file changed, 1 insertion(+)\nmore\n", result
    assert git(folder, "log", "--format=%s") == "more\nbegin\n"


PLANTS = [
    "echo 'touch planted' > .git/hooks/post-checkout; chmod +x .git/hooks/post-checkout",
    "git config core.fsmonitor 'touch planted'; git config core.hooksPath .",
    "printf '[core]\\n\\tfsmonitor = touch planted\\n' >> .git/config",
    "rm -f .git/config; mv .git/config .git/c; printf '[core]\\n\\tfsmonitor = touch planted\\n' > .git/config",
    "mv .git .gone; mkdir .git; cp -r .gone/* .git/; printf '[core]\\n\\tfsmonitor = touch planted\\n' > .git/config",
    "rm -rf .git/hooks; mkdir -p .git/hooks; echo 'touch planted' > .git/hooks/post-index-change",
    "echo '{}  ' > .vscode/tasks.json; rm -rf .vscode; mv .vscode v",
    "printf '[core]\\n\\tfsmonitor = touch planted\\n' > shared.gitconfig",
    "printf 'touch planted' > tools/hooks/pre-commit; chmod +x tools/hooks/pre-commit; mv tools t",
    "printf '[core]\\n\\tfsmonitor = touch planted\\n' >> .git/modules/sub/config; mv sub s",
    "printf 'gitdir: ../evil\\n' > sub/.git; echo x > .git/modules/sub/hooks/pre-commit",
]


@pytest.mark.parametrize("hooks", [True, False], ids=["with a hooks folder", "without"])
async def test_nothing_that_git_or_an_editor_runs_is_changed(sandbox: Make, folder: Path, hooks: bool) -> None:
    (folder / "shared.gitconfig").write_text("[alias]\n\tst = status\n")
    (folder / "tools/hooks").mkdir(parents=True)
    git(folder, "config", "include.path", "../shared.gitconfig")
    git(folder, "config", "core.hooksPath", "tools/hooks")
    module = folder / ".git/modules/sub"
    module.mkdir(parents=True)
    (folder / "sub").mkdir()
    (folder / "sub/.git").write_text("gitdir: ../.git/modules/sub\n")
    (module / "HEAD").write_text("ref: refs/heads/main\n")
    (module / "config").write_text("[core]\n\tworktree = ../../../sub\n")
    if not hooks:
        shutil.rmtree(folder / ".git/hooks")
    watched = ["shared.gitconfig", ".git/config", ".git/modules/sub/config", "sub/.git", ".vscode/tasks.json"]
    before = {name: (folder / name).read_text() for name in watched}
    jail = await sandbox()
    for number, plant in enumerate(PLANTS):
        await run(jail, plant, f"c{number}")
    assert {name: (folder / name).read_text() for name in watched} == before
    assert not any((folder / "tools/hooks").iterdir())
    assert not any(not path.name.endswith(".sample") for path in (folder / ".git/hooks").iterdir())
    git(folder, "status")
    assert not (folder / "planted").exists()
    for path in (".git/hooks/pre-commit", ".git/config", ".vscode/tasks.json", ".idea/workspace.xml", "x/.git/config"):
        with pytest.raises(Invalid, match=r"read-only|not found"):
            await jail.write(path, "x")


async def test_the_installation_in_the_folder_is_hidden(tmp_path: Path, folder: Path) -> None:
    (folder / ".sika").mkdir()
    (folder / ".sika/log").write_text(CANARY)
    (folder / "config.yaml").write_text(CANARY)
    provider = Bubblewrap(SandboxSetup(**settings(tmp_path)))
    rules: dict[str, Any] = {"private": ((".sika",), ("config.yaml",)), "shown": ("*",)}
    jail = await provider.acquire_in("ada", "t1", mount(folder, **rules))
    result = await run(jail, "cat .sika/log config.yaml; ls -A .sika; echo x > config.yaml; echo x > .sika/x; cat .env")
    assert result.stdout == f"KEY={CANARY}\n"
    assert (folder / "config.yaml").read_text() == CANARY
    for path in (".sika/log", "config.yaml"):
        with pytest.raises(Invalid, match="hidden"):
            await jail.read(path)


async def test_too_many_secrets_end_in_a_refusal_not_in_one_that_is_seen(sandbox: Make, folder: Path) -> None:
    jail = await sandbox()
    await run(jail, "for i in $(seq 300); do mkdir -p 0/$i; touch 0/$i/x.pem; done")
    with pytest.raises(Invalid, match="more than 200 files"):
        await run(jail, "cat .env", "c2")


# ── file tools ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", [*SECRETS, "link", ".npmtoken.secret", "deploy/../.env", "./.env", ".aws", ".ssh"])
async def test_no_file_tool_reads_or_writes_a_secret(files: HostSandbox, name: str) -> None:
    for path in (f"{PROJECT}/{name}", name):
        for attempt in (files.read(path), files.version(path), files.write(path, "x"), files.list(path)):
            with pytest.raises(Invalid, match=r"hidden|'..' is not allowed"):
                await attempt


async def test_searches_pass_secrets_over(files: HostSandbox, folder: Path) -> None:
    lines = (await files.grep(PROJECT, Query(pattern="canary|open"))).found
    assert {line.split(":")[0].removeprefix(f"{PROJECT}/") for line in lines} >= {
        "README.md",
        "secrets.py",
        "tokens.py",
    }
    assert not any(CANARY in line for line in lines), lines
    paths = (await files.glob(PROJECT, "**/*", dirs=False, limit=1000)).found
    assert not {path.removeprefix(f"{PROJECT}/") for path in paths} & set(SECRETS)
    assert f"{PROJECT}/README.md" in (await files.list(PROJECT)).found
    with pytest.raises(Invalid, match=r"outside|not found"):
        await files.read("out")


async def test_relative_paths_of_file_tools_lead_into_the_folder(files: HostSandbox, folder: Path) -> None:
    await files.write("src/new.py", "x = 1\n")
    assert (folder / "src/new.py").read_text() == "x = 1\n"
    await files.edit([Edit(path=f"{PROJECT}/src/new.py", old="1", new="2")])
    assert (await files.read("src/new.py")).decode() == "x = 2\n"
    await files.write("/mnt/user-data/workspace/draft", "x")
    assert not (folder / "draft").exists()


# ── search ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_search_sees_each_change(folder: Path) -> None:
    search = Search(mount(folder))
    before = {hit.parts for hit in search.hits()}
    assert {tuple(name.split("/")) for name in SECRETS if "/" not in name} <= before
    assert ("config", "plain") in before  # where a link with the name of a secret leads
    (folder / "env/.env.local").write_text("x")
    (folder / ".npmrc").unlink()
    assert {hit.parts for hit in search.hits()} == (before | {("env", ".env.local")}) - {(".npmrc",)}

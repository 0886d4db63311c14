"""The command line as a person calls it: a process of its own."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest

from channels import cli
from channels.cli.verbs import GROUPS
from tests.support import warm

ROOT = Path(__file__).parents[3]
SECONDS = 200


def environment() -> dict[str, str]:
    names = {name: value for name, value in os.environ.items() if not name.startswith(("SIKA_", "DEER_FLOW_"))}
    return {**names, "PYTHONPATH": str(ROOT), "NO_COLOR": "1"}


def sika(*arguments: str, cwd: Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return warm.run("channels.cli", *arguments, cwd=cwd, env=environment(), stdin=stdin, timeout=SECONDS)


class Running:
    """A server in a process of its own."""

    def __init__(self, folder: Path) -> None:
        options = ("serve", "--home", str(folder / "home"), "--port", "0")
        self.process = warm.start("channels.cli", *options, cwd=folder, env=environment())
        assert self.process.stdout is not None
        self.line = self.process.stdout.readline().decode()

    def end(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        """Exit code, and what else it wrote."""
        self.process.send_signal(number)
        assert self.process.stdout is not None
        rest = self.process.stdout.readall().decode()
        return self.process.wait(SECONDS), rest


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Running]:
    running = Running(tmp_path)
    yield running
    if running.process.poll() is None:
        running.end(signal.SIGKILL)


def test_help_imports_nothing_big_and_arguments_of_verbs_nothing_that_few_of_them_use() -> None:
    script = (
        "import sys; from channels import cli; cli.parser(['--help']).format_help();"
        "print(sorted({'asyncio', 'anyio', 'msgspec'} & set(sys.modules)));"
        "cli.parser();"
        "few = 'aiohttp', 'langchain', 'langchain_core', 'langsmith', 'mcp', 'nats', 'prompt_toolkit', 'textual';"
        "print(sorted({*few} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["[]", "[]"]


def test_help_has_every_verb_in_one_of_five_groups() -> None:
    text = cli.parser([]).format_help()
    assert re.findall(r"^(\w.*):$", text, re.MULTILINE) == [*GROUPS]
    assert len(GROUPS) == 5
    verbs = [verb.name for group in GROUPS.values() for verb in group]
    assert re.findall(r"^  (\S+) ", text, re.MULTILINE) == verbs
    assert len(set(verbs)) == len(verbs)


def test_a_verb_is_imported_when_it_is_called_and_no_other_one() -> None:
    script = (
        "import sys; from channels import cli; cli.parser(['sql', '--help']);"
        "print(*(name for name in sys.modules if name.startswith('channels.cli.') and name.count('.') == 3))"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["channels.cli.look.sql"]


def test_every_file_of_a_room_is_a_verb_or_used_by_one() -> None:
    modules = {verb.module for group in GROUPS.values() for verb in group}
    shared = {"admin.accounts", "extend.channel_setup", "extend.env_file", "extend.mcp_login", "extend.mcp_serve"}
    shared |= {"run.reload"}
    files = {f"{path.parent.name}.{path.stem}" for path in (ROOT / "channels/cli").glob("[!l_]*/*.py")}
    files |= {f"look.{path.stem}" for path in (ROOT / "channels/cli/look").glob("*.py")}
    assert {name for name in files if not name.endswith("__init__")} == (modules | shared) - {"log"}


@pytest.mark.parametrize(
    "arguments",
    [
        ["fly"],
        ["serve", "--port", "x"],
        ["serve", "--port", "70000"],
        ["serve", "--actors", ","],
        ["log"],
        ["log", "show"],
        ["log", "show", "t", "--after", "-1"],
        ["log", "replay", "--all", "--since", "x"],
        ["dlq", "redrive", "x"],
        ["dlq", "discard"],
        ["chat", "one", "two"],
        ["chat", "--thread", "t", "--continue"],
        ["init", "--key-env", "A", "--key-stdin"],
    ],
)
def test_wrong_arguments_are_explained(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    assert ended.value.code == 2
    assert "usage: sika" in capsys.readouterr().err


def test_no_command_is_a_question_for_help_and_the_version_is_known(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 0
    assert "threads" in capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:
        cli.main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"sika {version('sika')}\n"


def test_every_command_has_help(capsys: pytest.CaptureFixture[str]) -> None:
    for command in (
        "serve",
        "chat",
        "init",
        "doctor",
        "log tail",
        "log verify",
        "dlq list",
        "projections rebuild",
        "config check",
    ):
        with pytest.raises(SystemExit) as ended:
            cli.main([*command.split(), "--help"])
        assert ended.value.code == 0
    assert "--home" in capsys.readouterr().out


@pytest.mark.long(keep=5)
@pytest.mark.parametrize(
    ("config", "arguments", "reason"),
    [
        ("runs: {lease_seconds: x}", ["serve"], "config.yaml: runs.lease_seconds: expected int"),
        ("a: [", ["config", "check"], "config.yaml:1"),
        ("", ["serve", "--home", "file"], "file cannot be used"),
        ("", ["serve", "--host", "192.0.2.1"], "http.host"),
        ("tools: [{name: x, use: 'my_company.tools:thing'}]", ["serve", "--port", "0"], "tools[0].use: my_company"),
        ("middlewares: [{use: 'nope:X'}]", ["serve", "--port", "0"], "middlewares[0].use: nope:X"),
        ("", ["serve", "--port", "0", "--actors", "nope"], "--actors: nope unknown"),
        ("", ["serve", "--config", "none.yaml"], "no such configuration file"),
        ("", ["chat", "--url", "http://127.0.0.1:9", "hi"], "no server answers there"),
        ("", ["projections", "rebuild"], "no server is running"),
        ("", ["log", "show", "nope"], "thread nope: nothing in the log"),
        ("", ["log", "verify", "a.b"], "thread: must be"),
        ("", ["log", "verify"], "name a thread, or --all"),
    ],
)
def test_what_is_wrong_outside_is_one_line(tmp_path: Path, config: str, arguments: list[str], reason: str) -> None:
    (tmp_path / "config.yaml").write_text(config)
    (tmp_path / "file").write_text("")
    done = sika(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith("sika: ")
    assert reason in done.stderr


def test_a_busy_port_and_a_data_directory_in_use(tmp_path: Path, server: Running) -> None:
    done = sika("serve", "--home", "home", "--port", "0", cwd=tmp_path)
    assert done.returncode == 2
    assert f"in use by sika process {server.process.pid}" in done.stderr
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = sika("serve", "--home", "other", "--port", str(taken.getsockname()[1]), cwd=tmp_path)
    assert done.returncode == 2
    assert "is in use" in done.stderr
    assert "Traceback" not in done.stderr


def test_config_check(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("runs: {lease_secnds: 5}")
    done = sika("config", "check", cwd=tmp_path)
    assert done.returncode == 0
    assert "warning: runs.lease_secnds: unknown key, did you mean lease_seconds?" in done.stdout


def test_config_upgrade_writes_only_when_told(tmp_path: Path) -> None:
    path, old = tmp_path / "config.yaml", "config_version: 9\nmax_recursion_limit: 7\n"
    path.write_text(old)
    said = sika("config", "upgrade", cwd=tmp_path)
    assert (said.returncode, path.read_text()) == (0, old)
    assert "max_recursion_limit: now runs.max_recursion_limit\n" in said.stdout
    assert said.stdout.endswith("nothing was written; --write does it\n")
    written = sika("config", "upgrade", "--write", cwd=tmp_path)
    assert written.stdout.endswith(f"written: {path}; the old file is {path}.old\n")
    assert (tmp_path / "config.yaml.old").read_text() == old
    assert sika("config", "upgrade", cwd=tmp_path).stdout == f"ok: {path} has the keys of today\n"
    path.unlink()
    missing = sika("config", "upgrade", cwd=tmp_path)
    assert (missing.returncode, missing.stderr) == (2, "sika: there is no config.yaml: everything is default\n")


def test_config_check_refuses_what_serve_refuses(tmp_path: Path) -> None:
    model = "{name: m, model: x, api_key: k, base_urll: 'http://127.0.0.1:9'}"
    (tmp_path / "config.yaml").write_text(f"http: {{host: 0.0.0.0}}\nactors: ['nope:X']\nmodels: [{model}]")
    check, serve = sika("config", "check", cwd=tmp_path), sika("serve", "--port", "0", cwd=tmp_path)
    assert (check.returncode, serve.returncode) == (2, 2)
    assert check.stderr == serve.stderr
    problems = [line.strip().removeprefix("sika: ").partition(": ")[0] for line in check.stderr.splitlines()]
    assert problems == ["http.host", "actors[0]", "models[m].base_urll"]


def test_a_server_a_talk_and_its_log(tmp_path: Path, server: Running) -> None:
    assert server.line.startswith("Sika is ready on http://127.0.0.1:")
    assert json.loads((tmp_path / "home" / "server.json").read_text())["url"] in server.line
    home = ("--home", "home")

    done = sika("chat", *home, "--thread", "t1", "run: seq 3; printf '\\033[31mred\\n'", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "▸ bash" in done.stderr
    assert "▸" not in done.stdout
    assert "\x1b" not in done.stdout + done.stderr
    assert "sika chat --thread t1" in done.stderr

    talk = sika("chat", *home, "--thread", "t1", cwd=tmp_path, stdin="list the files\n/quit\n")
    assert talk.returncode == 0, talk.stderr
    assert "▸ ls" in talk.stderr

    piped = sika("chat", *home, "--thread", "t2", "list the files", cwd=tmp_path, stdin="of\nthis pipe")
    assert piped.returncode == 0, piped.stderr
    message = r'"list the files\n\nof\nthis pipe"'
    assert message in sika("log", "show", *home, "t2", "--json", cwd=tmp_path).stdout

    shown = sika("log", "show", *home, "t1", cwd=tmp_path).stdout
    assert shown.count("■ done") == 2
    assert sika("log", "show", *home, "t1", "--events", cwd=tmp_path).stdout.count("run.completed") == 2
    assert sika("log", "show", *home, "@last", "--grep", "pipe", cwd=tmp_path).stdout.count("run.requested") == 1
    full = sika("log", "show", *home, "t1", "2", cwd=tmp_path).stdout
    assert "changes of the state" in full
    assert "run.started" in full, "what the request led to"
    threads = sika("log", "list", *home, "--since", "1d", cwd=tmp_path).stdout.splitlines()
    assert [line.split()[0] for line in threads] == ["t2", "t1", "2"]
    assert (
        json.loads(sika("log", "list", *home, "--text", "this pipe", "--json", cwd=tmp_path).stdout)["thread"] == "t2"
    )
    hits = sika("log", "find", *home, "--tool", "bash", "--type", "tool.*", cwd=tmp_path)
    assert (hits.returncode, hits.stdout.splitlines()[-1]) == (0, "2 events")
    assert sika("log", "find", *home, "no such text", cwd=tmp_path).returncode == 1
    rows = sika("sql", *home, "select thread_id, count(*) n from runs group by 1 order by 1", cwd=tmp_path)
    assert (rows.returncode, rows.stdout) == (0, "thread_id\tn\nt1\t2\nt2\t1\n")
    assert sika("sql", *home, "delete from threads", cwd=tmp_path).returncode == 2
    assert sika("log", "verify", *home, "t1", cwd=tmp_path).stdout.startswith("ok: ")
    every = sika("log", "verify", "--all", *home, cwd=tmp_path)
    assert (every.returncode, every.stdout.split(",")[0]) == (0, "ok: 2 threads")
    assert sika("log", "replay", *home, "t1", cwd=tmp_path).stdout.startswith("identical: ")
    assert json.loads(sika("log", "state", *home, "t1", "--json", cwd=tmp_path).stdout)["thread_id"] == "t1"
    opened = sika("log", "open", *home, "t1", "2", cwd=tmp_path)
    assert re.fullmatch(r"http://[^/]+/#/timeline/t1/\d+\n", opened.stdout), opened
    assert sika("dlq", "list", *home, cwd=tmp_path).returncode == 0
    [_, listed] = sika("threads", *home, cwd=tmp_path).stdout.splitlines()
    assert re.fullmatch(r"t1 +default +idle +\d+ (s|min)  run: seq 3; printf .*", listed)
    assert sika("projections", "rebuild", *home, cwd=tmp_path).returncode == 0
    examined = sika("doctor", *home, cwd=tmp_path)
    assert f"in use         by sika process {server.process.pid}, which answers" in examined.stdout

    assert server.end() == (0, "")
    assert not (tmp_path / "home" / "server.json").exists()
    offline = sika("log", "show", *home, "t1", cwd=tmp_path)
    assert offline.stdout == shown
    events = sika("log", "show", *home, "t1", "--json", cwd=tmp_path).stdout.splitlines()
    assert sika("log", "export", *home, "t1", "--out", "t1.jsonl", cwd=tmp_path).returncode == 0
    forked = sika("log", "fork", *home, "t1.jsonl", "--at", str(len(events)), "--id", "t3", cwd=tmp_path)
    assert (forked.returncode, forked.stdout.splitlines()[0]) == (0, "thread t3"), forked.stderr


def test_a_talk_without_a_server_brings_its_own(tmp_path: Path) -> None:
    done = sika("chat", "--home", "home", "list the files", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "▸ ls" in done.stderr
    assert "starting one for this talk" in done.stderr
    assert not (tmp_path / "home" / "server.json").exists()


@pytest.mark.long(keep=2)
@pytest.mark.parametrize(
    ("command", "first"), [("log show --home home t1 --json", "{"), ("chat --home home --thread t1 hello", "H")]
)
def test_a_reader_that_leaves_is_no_error(tmp_path: Path, server: Running, command: str, first: str) -> None:
    sika("chat", "--home", "home", "--thread", "t1", "list the files", cwd=tmp_path)
    script = f"{sys.executable} -m channels.cli {command} | head -c 1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=environment(), capture_output=True, text=True, check=True
    )
    assert done.stdout == f"{first}0\n"
    assert [line for line in done.stderr.splitlines() if not line.startswith("thread t1 (")] == []


def test_a_full_disk_behind_the_output_is_one_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "channels.cli", "config", "reference"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            command, cwd=tmp_path, env=environment(), stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (done.returncode, done.stderr) == (2, "sika: cannot write: No space left on device\n")


@pytest.mark.long(keep=3)
@pytest.mark.parametrize(
    ("command", "code", "says"),
    [
        ("init <&-", 2, "sika: init: --key-env or --key-stdin is missing\n"),
        ("chat --home home <&-", 0, "no server is running: starting one for this talk\n"),
        ("config check >&- 2>&-", 0, ""),
    ],
)
def test_closed_standard_streams_are_empty_ones(tmp_path: Path, command: str, code: int, says: str) -> None:
    script = f"{sys.executable} -m channels.cli {command}"
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, env=environment(), capture_output=True, text=True)
    assert (done.returncode, done.stderr.startswith(says), "Traceback" in done.stderr) == (code, True, False)


@pytest.mark.long(keep=2)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_during_the_start_ends_it(tmp_path: Path, number: int) -> None:
    async def start_and_stop() -> int:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "channels.cli", "serve", "--home", "home", "--port", "0"),
            cwd=tmp_path,
            env=environment(),
            stderr=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
        )
        while not (tmp_path / "home" / "lock").exists():  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        process.send_signal(number)
        return await asyncio.wait_for(process.wait(), 120)

    assert asyncio.run(start_and_stop()) == 0
    assert not (tmp_path / "home" / "server.json").exists()


def test_a_talk_on_a_terminal(tmp_path: Path, server: Running) -> None:
    mine, its = os.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "channels.cli", "chat", "--home", "home"],
        cwd=tmp_path,
        env={**environment(), "TERM": "dumb"},
        stdin=its,
        stdout=its,
        stderr=its,
        start_new_session=True,
    )
    os.close(its)
    seen = b""

    def until(words: str) -> None:
        nonlocal seen
        while words.encode() not in seen:
            seen += os.read(mine, 4096)
        seen = seen.partition(words.encode())[2]

    try:
        until("> ")
        os.write(mine, b"list the fi\x7files\n")
        until("▸ ls")
        until("> ")
        process.send_signal(signal.SIGINT)
        until("again Ctrl-C")
        os.write(mine, b"/help\n")
        until("/new")
        until("> ")
        process.send_signal(signal.SIGINT)
        until("again Ctrl-C")
        process.send_signal(signal.SIGINT)
        until("go on with")
        assert process.wait(SECONDS) == 0
    finally:
        process.kill()
        process.wait()
        os.close(mine)

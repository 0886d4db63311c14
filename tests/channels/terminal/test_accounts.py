"""`sika user` and `sika key` as the operator calls them, and a server that lets in whom they made."""

from __future__ import annotations

import json
import re
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from channels.cli.admin.accounts import moment
from core.errors import Invalid
from tests.channels.terminal.test_cli import Running, sika


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Running]:
    (tmp_path / "config.yaml").write_text("auth: {enabled: true}\n")
    running = Running(tmp_path)
    yield running
    if running.process.poll() is None:
        running.end(signal.SIGKILL)


def me(server: Running, key: str) -> tuple[int, dict[str, str]]:
    found = re.search(r"http://\S+", server.line)
    assert found, server.line
    request = urllib.request.Request(f"{found[0]}/api/v1/auth/me", headers={"X-Api-Key": key})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, {}


def test_from_the_first_account_to_a_revoked_key(server: Running, tmp_path: Path) -> None:
    """While a server runs, which knows at once."""

    def do(*words: str, stdin: str = "") -> CompletedProcess[str]:
        return sika(*words, "--home", str(tmp_path / "home"), cwd=tmp_path, stdin=stdin)

    made = do("user", "create", "ada@example.org", "--role", "admin", "--id", "default")
    assert (made.returncode, len(made.stdout.strip())) == (0, 18), made.stderr
    assert "password, to be changed when signing in" in made.stderr
    bob = do("user", "create", "bob@example.org", "--password-stdin", stdin="correct horse battery\n")
    assert (bob.returncode, bob.stdout) == (0, ""), "the password is known already"
    listed = do("user", "list").stdout.splitlines()
    assert listed[0].split() == ["default", "admin", "ada@example.org"]
    assert listed[1].split()[1:] == ["user", "bob@example.org"]

    key = do("key", "create", "--user", "ada@example.org", "--scopes", "threads:read,runs", "--expires", "30d")
    text = key.stdout.strip()
    assert text.startswith("sk-")
    status, who = me(server, text)
    assert (status, who["id"], who["system_role"]) == (200, "default", "admin")
    [line] = do("key", "list", "--user", "default").stdout.splitlines()
    identity = line.split()[0]
    assert "runs,threads:read  until 20" in line
    assert text.split("-", 2)[2] not in line
    assert do("key", "list", "--user", "bob@example.org").stdout == ""
    assert do("key", "revoke", identity).returncode == 0
    assert do("key", "list").stdout.strip().endswith("revoked")

    other = do("key", "create", "--user", "bob@example.org").stdout.strip()
    assert me(server, other)[0] == 200
    assert do("user", "disable", "bob@example.org").returncode == 0
    assert "disabled" in do("user", "list").stdout
    assert do("user", "enable", "bob@example.org").returncode == 0
    assert do("user", "password", "bob@example.org").stdout.strip()
    assert do("user", "role", "bob@example.org", "admin").stdout == "bob@example.org: admin\n"
    for wrong, said in (
        (("user", "create", "ada@example.org"), "already"),
        (("user", "create", "x"), "email"),
        (("user", "disable", "nobody@example.org"), "no such account"),
        (("key", "create", "--user", "default", "--scopes", "moon"), "scopes"),
        (("key", "create", "--user", "default", "--expires", "soon"), "--expires"),
        (("key", "revoke", "0"), "no such key"),
    ):
        found = do(*wrong)
        assert found.returncode == 2, wrong
        assert said in found.stderr
        assert found.stderr.count("\n") == 1, "one line"
    assert me(server, text)[0] == 401


@pytest.mark.parametrize(("text", "hours"), [("12h", 12), ("30d", 720), ("2w", 336), ("1y", 8760)])
def test_spans(text: str, hours: int) -> None:
    assert abs(moment(text) - datetime.now(UTC) - timedelta(hours=hours)) < timedelta(minutes=1)


def test_days_and_times() -> None:
    assert moment("2027-01-31") == datetime(2027, 2, 1, tzinfo=UTC)
    assert moment("2027-01-31T12:00:00+02:00") == datetime(2027, 1, 31, 10, tzinfo=UTC)
    for wrong in ("", "soon", "-1d", "1m", "99999999999d", "99999y", "2027-02-31", "9999-12-31"):
        with pytest.raises(Invalid, match="--expires"):
            moment(wrong)

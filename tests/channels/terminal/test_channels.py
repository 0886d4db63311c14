"""`sika channels`: a row for each account, and what is wrong with it."""

from __future__ import annotations

from channels.cli.extend import channels
from core.chat.port import CredentialsDead
from core.chat.status import Status


def test_a_row_for_each_account() -> None:
    shown = list(
        channels.lines(
            [
                Status(
                    "slack-work",
                    "connected",
                    connected_since="2026-11-23T08:15:00.123Z",
                    last_in="2026-11-23T09:00:01.000Z",
                    failures=2,
                    last_failure="RateLimited: slow\x1b[31m down",
                    rate_limited_until="2026-11-23T09:01:00.000Z",
                    open_deliveries=3,
                ),
                Status("telegram", "credentials dead", "Unauthorized"),
            ]
        )
    )
    assert [line.split("  ")[0] for line in shown] == ["ACCOUNT", "slack-work", "", "telegram", ""]
    assert shown[1].split() == [
        *("slack-work", "connected", "2026-11-23", "08:15:00", "2026-11-23", "09:00:01"),
        *("3", "2", "2026-11-23", "09:01:00"),
    ]
    assert shown[2].startswith("    last failure: RateLimited: slow")
    assert "\x1b" not in shown[2]
    assert shown[3].split() == ["telegram", "credentials", "dead", "?", "0"]
    assert shown[4] == "    Unauthorized"


def test_no_accounts() -> None:
    [line] = channels.lines([])
    assert "/docs/channels" in line


class Broken:
    """A platform whose check fails."""

    closed = False

    async def check(self) -> None:
        raise CredentialsDead("invalid_auth")

    async def close(self) -> None:
        self.closed = True


async def test_a_check_that_fails_is_a_finding() -> None:
    platform = Broken()
    lines, good = await channels.test("slack", platform, raw=False)  # type: ignore[arg-type]
    assert (lines, good, platform.closed) == (["FAIL  invalid_auth"], False, True)
    lines, _ = await channels.test("slack", platform, raw=True)  # type: ignore[arg-type]
    assert '"findings"' in lines[0]

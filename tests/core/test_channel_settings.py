"""Settings of chat platforms: accounts, other names, people as text or numbers, mistakes."""

from __future__ import annotations

import pytest

from core.config.load import parse, reveal
from core.errors import Invalid


def test_accounts_have_the_names_of_their_processes() -> None:
    channels = parse("""
        channels:
          slack: {enabled: true, bot_token: xoxb-1, accounts: {work: {enabled: true, bot_token: xoxb-2}}}
          telegram: {accounts: {news: {enabled: true}}}
          lark:
    """).channels
    tokens = {name: reveal(account.extra) for name, account in channels.accounts()}
    assert tokens == {
        "slack": {"bot_token": "xoxb-1"},
        "slack-work": {"bot_token": "xoxb-2"},
        "telegram-news": {},
        "feishu": {},
    }
    assert channels.account("slack-home") is None


@pytest.mark.parametrize(("text", "ids"), [("7", {"7"}), ("[7, ' U1 ', '']", {"7", "U1"}), ("", set())])
def test_people_are_named_by_text_or_number(text: str, ids: set[str]) -> None:
    settings = f"{{allowed_users: {text}, allowed_chats: {text}}}"
    account = parse(f"channels: {{telegram: {settings}}}").channels.account("telegram")
    assert account is not None
    assert set(account.people) == ids
    assert set(account.chats) == ids


@pytest.mark.parametrize("token", ["xoxb-0123456789abcdef", "12"])
def test_credentials_of_a_disabled_account_are_a_warning(token: str) -> None:
    [warning] = parse(f"channels: {{slack: {{bot_token: {token}}}}}").warnings
    assert warning == "channels: the account slack has credentials, but not `enabled: true`"
    assert parse("channels: {slack: {enabled: false, domain: x}}").warnings == ()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("channels: {lark: {}, feishu: {}}", "channels.feishu: the same platform as feishu"),
        ("channels: {slack: {on_busy: wait}}", "channels.slack.on_busy: invalid enum value 'wait'"),
        ("channels: {proceses: external}", "channels.proceses: expected object, got str"),
        ("channels: {slack: {accounts: {A: {}}}}", "channels.slack: accounts.A: a name has small letters"),
        ("channels: {sl4ck: {}}", "channels: sl4ck: the name of a platform has small letters only"),
    ],
)
def test_mistakes_are_placed(text: str, problem: str) -> None:
    with pytest.raises(Invalid, match=f"^config.yaml: {problem}"):
        parse(text)


def test_a_misspelt_key_of_a_session_is_called_as_in_the_file() -> None:
    [warning] = parse("channels: {lark: {session: {contxt: {}}}}").warnings
    assert warning.startswith("channels.lark.session.contxt: unknown key, did you mean context?")

"""Passwords, keys, sessions and the secrets of an installation."""

from __future__ import annotations

import base64
import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from argon2 import PasswordHasher

from core.config.settings import Secret
from core.errors import Invalid
from core.identity import keys, sessions
from core.identity.errors import Unauthenticated
from core.identity.installation import Installation
from core.identity.passwords import Passwords, generate, strong
from core.identity.principal import Principal
from core.identity.sessions import Session

SECRET = Secret("s" * 40)


# ── passwords ────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_hashes() -> None:
    passwords = Passwords()
    one, other = [await passwords.hash("correct horse battery") for _ in range(2)]
    assert one != other
    assert one.startswith("$argon2id$v=19$m=65536,t=3,p=4$"), "RFC 9106, second recommendation"
    assert await passwords.verify(one, "correct horse battery")
    for hashed, password in (
        (one, "correct horse batterx"),
        (one, ""),
        (None, "correct horse battery"),
        ("no hash", "x"),
        (one, "x" * 10_000),
    ):
        assert not await passwords.verify(hashed, password)


@pytest.mark.parametrize("known", [True, False])
async def test_an_unknown_user_costs_as_much_as_a_wrong_password(known: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """One verification of a hash with the same parameters, whoever is asked for."""
    verified: list[str] = []
    verify = PasswordHasher.verify

    def counted(self: PasswordHasher, hashed: str, password: str) -> bool:
        verified.append(hashed[:31])
        return bool(verify(self, hashed, password))

    monkeypatch.setattr(PasswordHasher, "verify", counted)
    passwords = Passwords()
    hashed = await passwords.hash("correct horse battery") if known else None
    for _ in range(2):
        assert not await passwords.verify(hashed, "wrong")
    assert verified == ["$argon2id$v=19$m=65536,t=3,p=4$"] * 2


def test_generated_passwords_are_good_enough() -> None:
    found = {generate() for _ in range(100)}
    assert len(found) == 100
    for password in found:
        strong(password)


WEAK = [
    *("", "short", "PASSWORD123", "aaaaaaaa", "x" * 1025, "Summer2026!", "monkey123", "liverpool", "P@ssw0rd2026"),
    *("qwerty12345", "ada@example.org", "Example.org1", "sika1234"),
]


@pytest.mark.parametrize("password", WEAK)
def test_weak_passwords_are_refused_without_being_repeated(password: str) -> None:
    with pytest.raises(Invalid, match=r"^password: ") as caught:
        strong(password, "ada@example.org")
    assert not password or password not in str(caught.value)


# ── keys ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_keys() -> None:
    identity, digest, key = keys.make()
    presented = keys.parse(key.reveal())
    assert presented is not None
    assert presented.id == identity
    assert presented.matches(digest)
    assert not presented.matches("")
    assert not presented.matches(keys.make()[1])
    assert key.reveal().split("-", 2)[2] not in repr(presented) + repr(key) + digest


@pytest.mark.parametrize(
    "change",
    [
        lambda key: "",
        lambda key: key[3:],
        lambda key: key.upper(),
        lambda key: key + "\n",
        lambda key: " " + key,
        lambda key: key[:-1] + "\u00e9",
        lambda key: key[:-1] + "=",
    ],
)
def test_what_is_no_key(change: Callable[[str], str]) -> None:
    assert keys.parse(change(keys.make()[2].reveal())) is None


@pytest.mark.parametrize(
    ("scopes", "asked", "may"),
    [
        (None, "threads:read", True),
        (None, "admin", True),
        (frozenset({"threads:read"}), "threads:read", True),
        (frozenset({"threads:read"}), "threads:write", False),
        (frozenset({"threads"}), "threads:write", True),
        (frozenset({"threads"}), "runs:create", False),
        (frozenset({"thread"}), "threads:read", False),
        (frozenset({"threads:read"}), "", True),
        (frozenset({"threads:read"}), "threads", False),
        (frozenset(), "threads:read", False),
    ],
)
def test_what_a_key_may_do(scopes: frozenset[str] | None, asked: str, may: bool) -> None:
    assert Principal("ada", scopes=scopes).may(asked) == may


# ── sessions ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_sessions() -> None:
    session = Session("ada", 3, 1000, 2000)
    token = sessions.sign(session, SECRET)
    assert sessions.read(token, SECRET, Session, now=1999) == session
    for now, secret, code in ((2000, SECRET, "token_expired"), (1999, Secret("x" * 40), "token_invalid")):
        with pytest.raises(Unauthenticated) as caught:
            sessions.read(token, secret, Session, now=now)
        assert caught.value.code == code
        assert token not in str(caught.value)


# ── installation ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_secrets_are_made_once_and_private(tmp_path: Path) -> None:
    one, other = Installation(tmp_path / "a", {}), Installation(tmp_path / "a", {})
    assert one.sessions == other.sessions != one.internal
    assert one.webhooks == other.webhooks != one.internal
    assert one.derived("csrf") == other.derived("csrf") != one.derived("oidc")
    folder = tmp_path / "a" / "secrets"
    assert {file.name for file in folder.iterdir()} == {"jwt_secret", "internal_token", "webhook_secret"}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()} == {0o600}
    assert Installation(tmp_path / "b", {}).sessions != one.sessions
    assert one.sessions.reveal() not in repr(one.sessions) + repr(vars(one))


def test_processes_that_start_at_once_agree(tmp_path: Path) -> None:
    found: list[Secret] = []
    barrier = threading.Barrier(8)

    def start() -> None:
        barrier.wait()
        found.append(Installation(tmp_path, {}).sessions)

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len(set(found)) == 1
    assert os.listdir(tmp_path / "secrets") == ["jwt_secret"]


@pytest.mark.parametrize("name", ["SIKA_JWT_SECRET", "AUTH_JWT_SECRET"])
def test_the_environment_comes_first(tmp_path: Path, name: str) -> None:
    assert Installation(tmp_path, {name: "e" * 32}).sessions == Secret("e" * 32)
    assert not (tmp_path / "secrets").exists()
    with pytest.raises(Invalid, match=rf"^{name}: .*32 characters") as caught:
        Installation(tmp_path, {name: "too short"}).sessions  # noqa: B018
    assert "too short" not in str(caught.value)


def test_a_secret_that_others_can_read_is_none(tmp_path: Path) -> None:
    Installation(tmp_path, {}).sessions  # noqa: B018
    file = tmp_path / "secrets" / "jwt_secret"
    file.chmod(0o644)
    with pytest.raises(Invalid, match="others can read it"):
        Installation(tmp_path, {}).sessions  # noqa: B018
    file.chmod(0o600)
    file.write_text("")
    with pytest.raises(Invalid, match="32 characters"):
        Installation(tmp_path, {}).sessions  # noqa: B018


def test_tokens_carry_what_the_contract_says() -> None:
    token = sessions.sign(Session("ada", 3, 1000, 2000), SECRET)
    head, body = (msgspec.json.decode(base64.urlsafe_b64decode(part + "===")) for part in token.split(".")[:2])
    assert head["alg"] == "HS256"
    assert body == {"sub": "ada", "ver": 3, "iat": 1000, "exp": 2000}

"""Sealed secrets."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from core.config.redaction import redactor
from core.errors import Invalid
from core.identity.seal import Seal, Unsealable

OLD, NEW = "old-" * 10, "new-" * 10


def test_a_sealed_text_opens_in_every_process_of_the_installation(tmp_path: Path) -> None:
    sealed = Seal(tmp_path).seal("gho_a-token-of-somebody", "mcp/alice")
    assert "gho" not in sealed
    assert Seal(tmp_path).open(sealed, "mcp/alice") == "gho_a-token-of-somebody"
    assert redactor.known("x gho_a-token-of-somebody x") == "x *** x"
    assert Seal(tmp_path).seal("a", "p") != Seal(tmp_path).seal("a", "p"), "a nonce of its own"
    assert stat.S_IMODE((tmp_path / "secrets" / "seal_key").stat().st_mode) == 0o600


def test_the_key_rotates(tmp_path: Path) -> None:
    old, both, new = (Seal(tmp_path, {"SIKA_SEAL_KEY": key}) for key in (OLD, f"{NEW} {OLD}", NEW))
    sealed = old.seal("secret")
    assert both.open(sealed) == "secret"
    assert new.open(both.seal("secret")) == "secret"
    with pytest.raises(Unsealable, match="is not in secrets/seal_key"):
        new.open(sealed)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda sealed: sealed[:-6] + "AAAAAA", "damaged"),
        (lambda sealed: sealed[:-30], "damaged"),
        (lambda sealed: sealed + "é", "damaged"),
        (lambda sealed: "v2" + sealed[2:], "not a sealed value"),
        (lambda sealed: "", "not a sealed value"),
        (lambda sealed: "v1.0badc0de." + sealed.rpartition(".")[2], "0badc0de, which is not in"),
    ],
)
def test_a_foreign_or_damaged_value(change: object, reason: str, tmp_path: Path) -> None:
    seal = Seal(tmp_path)
    assert callable(change)
    with pytest.raises(Unsealable, match=reason):
        seal.open(change(seal.seal("secret", "mcp/alice")), "mcp/alice")


def test_a_value_of_another_purpose(tmp_path: Path) -> None:
    seal = Seal(tmp_path)
    with pytest.raises(Unsealable, match="another purpose"):
        seal.open(seal.seal("secret", "mcp/alice"), "mcp/bob")


def test_a_short_key(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="SIKA_SEAL_KEY: must have at least 32 characters"):
        Seal(tmp_path, {"SIKA_SEAL_KEY": "short"}).seal("secret")

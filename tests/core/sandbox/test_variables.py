"""Variables of a thread's commands: which are taken, which are sealed, and who can read them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.config.redaction import redactor
from core.errors import Invalid
from core.events import VariableSet
from core.identity.seal import Seal
from core.sandbox.variables import MAX_VALUE, looks_secret, opened, variable_set


def variable(seal: Seal, name: str, value: str, *, secret: bool = False, thread: str = "t") -> VariableSet:
    return variable_set(seal, thread, name, value, secret=secret, by="ada")


REFUSED = ("", "1A", "A-B", "A B", "A=B", "Ä", "A\n", "A" * 101, "SIKA_CALL", "DEERFLOW_CHANNEL_USER_ID")


@pytest.mark.parametrize("name", REFUSED)
def test_names_that_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(Invalid, match="name: "):
        variable(Seal(tmp_path), name, "x")


@pytest.mark.parametrize("value", ["", "a\0b", "x" * (MAX_VALUE + 1), "ä" * (MAX_VALUE // 2 + 1)])
def test_values_that_are_refused(tmp_path: Path, value: str) -> None:
    with pytest.raises(Invalid, match="value: "):
        variable(Seal(tmp_path), "A", value)


@pytest.mark.parametrize(
    ("name", "value", "secret"),
    [
        ("API_KEY", "hunter4", True),
        ("GITHUB_TOKEN", "anything", True),
        ("DB_PASS", "hunter2", True),
        ("GITHUB_PAT", "hunter3", True),
        ("DATABASE_URL", "postgres://ada:hunter22@db/x", True),
        ("HEADER", "Authorization: Bearer abcdefghijklmnop1234", True),
        ("WORD", "sk-proj-abcdefghijklmnopqrstuvwxyz0123456789", True),
        ("PYTHONPATH", "/mnt/user-data/workspace/src", False),
        ("DEBUG", "1", False),
        ("LANG", "de_DE.UTF-8", False),
        ("DATABASE_URL", "postgres://db/x", False),
        ("PATH_TO", "/a/b/c", False),
    ],
)
def test_what_looks_like_a_secret_is_sealed(tmp_path: Path, name: str, value: str, secret: bool) -> None:
    fact = variable(Seal(tmp_path), name, value)
    assert looks_secret(name, value) == secret == bool(fact.sealed)
    assert fact.value == ("" if secret else value)
    assert value not in fact.sealed


def test_a_secret_is_opened_where_it_was_set_and_nowhere_else(tmp_path: Path) -> None:
    seal, value = Seal(tmp_path), "correct-horse-battery"
    fact = variable(seal, "A", value, secret=True)
    assert redactor.known(f"it is {value}.") == "it is ***."
    plain = variable(seal, "B", "two words\nand 'lines'")
    assert opened(seal, "t", {"A": fact, "B": plain}) == {"A": value, "B": plain.value}
    assert opened(seal, "other", {"A": fact, "B": plain}) == {"B": plain.value}
    assert opened(seal, "t", {"C": fact}) == {}
    assert opened(Seal(tmp_path / "other"), "t", {"A": fact}) == {}


@given(st.text(), st.text(), st.booleans())
def test_any_text_is_taken_as_it_is_or_refused(name: str, value: str, secret: bool) -> None:
    seal = Seal(Path("/nowhere"), {"SIKA_SEAL_KEY": "a key of the test that is long enough"})
    try:
        fact = variable(seal, name, value, secret=secret)
    except Invalid:
        return
    assert opened(seal, "t", {name: fact}) == {name: value}

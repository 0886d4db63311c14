"""`sika config reference`."""

from __future__ import annotations

import pytest

from channels import cli
from channels.cli.run.config import lines
from core.config.reference import all_keys
from core.errors import Invalid


def test_a_key_is_explained() -> None:
    assert list(lines("http.port")) == [
        "http.port: integer ≥ 0 and ≤ 65535, default: 2026 [restart]",
        "    Port to listen on; 0 takes a free one.",
    ]


def test_all_keys_are_shown() -> None:
    shown = [line.partition(":")[0] for line in lines("") if not line.startswith(" ")]
    assert shown == [key.path for key in all_keys()]


def test_a_misspelt_key_is_advised() -> None:
    with pytest.raises(Invalid, match=r"^modles: no such key; did you mean models\?$"):
        list(lines("modles"))


def test_the_command_prints_a_key(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["config", "reference", "limits.exempt_admins"]) == 0
    assert capsys.readouterr().out.startswith("limits.exempt_admins: true or false, default: true\n")

"""What the model is told about a command that starts something and does not wait for it."""

from __future__ import annotations

import pytest

from adapters.tools.bash import leaves_work


@pytest.mark.parametrize(
    ("command", "leaves"),
    [
        ("python3 -m http.server &", True),
        ("python3 -m http.server >log 2>&1 & echo started", True),
        ("(sleep 9 &); true", True),
        ("sleep 1 &\nsleep 2 &", True),
        ("sleep 1 & wait", False),
        ("make && make install", False),
        ("make >log 2>&1", False),
        ("make &>log", False),
        ("curl 'http://localhost/?a=1&b=2'", False),
        ('echo "a & b"', False),
        ("echo a\\&b", False),
        ("cat <<E\nit's\nE", False),
        ("cat >a.c <<'E'\nint f(int a) { return a & 1; }\nE\ngcc a.c", False),
        ("# one & two\nls", False),
        ("", False),
    ],
)
def test_commands(command: str, leaves: bool) -> None:
    assert leaves_work(command) is leaves

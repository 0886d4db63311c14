"""The file `.env` beside a configuration: variables are added or replaced, all else stays as it was."""

from __future__ import annotations

import os
import re
from pathlib import Path

import dotenv

from core import reasons
from core.errors import Invalid


class Variables:
    """The variables of a `.env` file. Raises `Invalid` if it cannot be read or written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._new: dict[str, str] = {}
        try:
            self._text = path.read_text(encoding="utf-8") if path.exists() else ""
            self._present = dotenv.dotenv_values(path, interpolate=False)
        except (OSError, UnicodeDecodeError) as error:
            raise Invalid(f"{path}: {reasons.of_file(error)}") from None

    def get(self, name: str) -> str | None:
        """Returns the value of a variable; None if the file does not have it."""
        return self._new.get(name, self._present.get(name))

    def set(self, name: str, value: str) -> None:
        """Gives a variable a value, which `write` writes. Raises `Invalid` for one that a line cannot have."""
        if not value.isprintable() or set(value) & set("'\\"):
            raise Invalid(f"{name}: it has characters that credentials do not have")
        if self._present.get(name) != value:
            self._new[name] = value

    def write(self) -> bool:
        """Writes the file, closed to other users. Returns False if there is nothing new."""
        if not self._new:
            return False
        text = self._text
        for name, value in self._new.items():
            line = f"{name}='{value}'"
            text, replaced = re.subn(rf"(?m)^[ \t]*(export[ \t]+)?{re.escape(name)}[ \t]*=.*$", lambda _: line, text)  # noqa: B023
            if not replaced:
                text += f"{'' if not text or text.endswith(chr(10)) else chr(10)}{line}\n"
        draft = self.path.with_name(f"{self.path.name}.new")
        try:
            with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
                draft.chmod(0o600)
                file.write(text)
            draft.replace(self.path)
        except OSError as error:
            raise Invalid(f"{self.path}: {error.strerror}") from None
        return True

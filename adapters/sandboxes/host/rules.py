"""DeerFlow's rules for paths in commands on the host: they catch a model's mistakes, and are no security boundary."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from core.files.paths import ACP, USER_DATA

SYSTEM = ("/bin", "/usr/bin", "/usr/sbin", "/sbin", "/usr/local/bin", "/opt/homebrew/bin", "/dev")
_URL = re.compile(r"\b(?!file:)[a-zA-Z][a-zA-Z0-9+.-]*://\S*")
_ABSOLUTE = re.compile(r"(?<![\w./:\\$}*?)\]~-])/[^\s\"'`;|&<>(){}$*?\[\]\\,]*")
_UP = re.compile(r"(?<![^\s\"'`=:/;|&<>(),])\.\.(?![^\s\"'`/;|&<>(),])")
_CD_INSIDE = re.compile(r"(?:\$\(|`)\s*(?:cd|pushd)\b")
_SEPARATORS = frozenset("();<>|&\n")
_FILES = "ls cat rm cp mv find grep tree du stat head tail chmod chown touch mkdir tar rsync"
_FILE_COMMANDS = frozenset(_FILES.split())


def refuse(command: str, roots: Sequence[str]) -> str | None:
    """Returns the reason why a command may not run on the host, or None. `roots` are further virtual paths it may
    use."""
    if "file://" in command.lower():
        return "file:// is not allowed"
    text = _URL.sub(" ", command)
    if _UP.search(text):
        return "'..' is not allowed in paths"
    if _CD_INSIDE.search(text):
        return "cd inside a command substitution is not allowed"
    try:
        commands = _commands(text)
    except ValueError as error:
        return f"cannot be read: {str(error).lower()}"
    for words in commands:
        if reason := _refuse_words(words, roots):
            return reason
    for path in _ABSOLUTE.findall(text):
        if path.strip("/") and not _allowed(path, (*roots, *SYSTEM)):
            return f"{path} is outside of the directories of this thread"
    return None


def _commands(text: str) -> list[list[str]]:
    """Returns the words of each simple command, quotes removed."""
    lexer = shlex.shlex(text.replace("\n", " ; "), posix=True, punctuation_chars="();<>|&")
    lexer.whitespace_split = True
    lexer.commenters = ""
    commands: list[list[str]] = [[]]
    for word in lexer:
        if set(word) <= _SEPARATORS:
            commands.append([])
        else:
            commands[-1].append(word)
    return [words for words in commands if words]


def _refuse_words(words: Sequence[str], roots: Sequence[str]) -> str | None:
    name, arguments = words[0], words[1:]
    if name in ("cd", "pushd"):
        target = next((word for word in arguments if not re.fullmatch(r"-[LPe@n]+|--", word)), "")
        if not target or target == "-" or target[0] in "~$" or (target[0] == "/" and not _allowed(target, roots)):
            return f"{name} may only go to directories of this thread"
    if name in _FILE_COMMANDS and any(word and not word.strip("/") for word in arguments):
        return f"{name} may not be used on /"
    return None


def _allowed(path: str, roots: Sequence[str]) -> bool:
    return any(path == root or path.startswith(f"{root}/") for root in (USER_DATA, ACP, *roots))

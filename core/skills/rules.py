"""Fixed rules for the content of skills: what no honest skill needs. They come before the check by a model, and cannot
be persuaded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from core.control import neutralised
from core.skills.format import FILE
from core.skills.trees import files

MOST_TEXT = 400_000
"""Characters of text that are checked; a skill with more is refused."""
SCRIPTS = frozenset((".py", ".sh", ".bash", ".zsh", ".js", ".mjs", ".cjs", ".ts", ".pl", ".rb", ".php", ".ps1", ".lua"))
TEXTS = frozenset((".md", ".txt", ".rst", ".json", ".yaml", ".yml", ".toml", ".html", ".htm", ".css", ".xml", ".j2"))
_PROGRAMS = (
    b"\x7fELF",
    b"MZ",
    b"\xca\xfe\xba\xbe",
    b"\xfe\xed\xfa",
    b"\xcf\xfa\xed\xfe",
    b"\xce\xfa\xed\xfe",
    b"\0asm",
)
_HEAD = 8
_UNSEEN = re.compile("[\u200b\u2060-\u2064\u202a-\u202e\u2066-\u2069\U000e0000-\U000e0fff]")
_DOWNLOAD = r"(?:curl|wget|fetch)\b[^\n|;]{0,300}"
_COMMANDS = {
    "runs what it downloads": rf"{_DOWNLOAD}\|\s*(?:sudo\s+)?(?:env\s+)?(?:ba|z|da|k)?sh\b|{_DOWNLOAD}\|\s*python"
    r"|\b(?:ba|z|da)?sh\s+(?:-c\s+)?[\"']?\$\(\s*(?:curl|wget)|<\(\s*(?:curl|wget)",
    "runs encoded text": r"base64\s+(?:-d|-D|--decode)[^\n]{0,300}\|\s*(?:ba|z|da)?sh\b"
    r"|exec\s*\(\s*(?:zlib|base64|codecs)\b"
    r"|exec\s*\(\s*__import__|eval\s*\(\s*(?:atob|base64|Buffer\.from)|marshal\.loads",
    "opens a shell to somewhere": r"/dev/(?:tcp|udp)/|\bn(?:c|cat)\b[^\n]{0,300}\s-[a-z]{0,9}e\b|\bpty\.spawn\s*\(",
    "sends variables of the environment": r"\b(?:env|printenv|set)\s*\|[^\n]{0,300}(?:curl|wget|nc)\b"
    r"|(?:curl|wget)\b[^\n]{0,300}\$\(\s*(?:env|printenv|cat\s+[^)]{0,100}(?:\.ssh|\.aws|passwd|shadow))"
    r"|requests\.(?:post|put)\([^\n]{0,300}os\.environ|urlopen\([^\n]{0,300}os\.environ",
    "reads keys of the machine": r"~/\.ssh|\.ssh/id_|\bid_rsa\b|\.aws/credentials|/etc/shadow"
    r"|/proc/[^\s/]{1,20}/environ"
    r"|169\.254\.169\.254|metadata\.google\.internal",
    "destroys files": r"\brm\s+-[a-z]{0,9}r[a-z]{0,9}\s+(?:--no-preserve-root\s+)?[\"']?(?:/|~|\$HOME)[\"']?(?:[\s*]|$)"
    r"|\bmkfs\b|\bdd\b[^\n]{0,300}of=/dev/|:\(\)\s*\{\s*:\|:&\s*\}",
    "mines": r"stratum\+tcp|\bxmrig\b",
}
_INJECTIONS = {
    "tells agents to leave their rules": r"(?:ignore|disregard|forget|override)\s+(?:all\s+|any\s+|the\s+|your\s+)*"
    r"(?:previous|prior|above|earlier|system|safety)\s+(?:\w+\s+)?(?:instructions?|rules?|prompts?|guidelines?|messages?)",
    "hides things from the person": r"(?:do\s+not|don't|never)\s+(?:tell|inform|mention|show|reveal)[^.\n]{0,40}"
    r"(?:the\s+)?(?:user|person|human)\b|without\s+(?:telling|informing|asking)\s+the\s+(?:user|person|human)",
    "asks for secrets": r"(?:send|post|upload|exfiltrate|transmit)[^.\n]{0,60}(?:api[ _-]?keys?|passwords?|credentials|"
    r"secrets?|tokens|environment\s+variables)[^.\n]{0,60}https?://",
}
_RULES = {name: re.compile(pattern, re.IGNORECASE) for name, pattern in {**_COMMANDS, **_INJECTIONS}.items()}


class Finding(NamedTuple):
    """A rule that a file breaks."""

    path: str
    rule: str

    def __str__(self) -> str:
        return f"{self.path}: {self.rule}"


class Material(NamedTuple):
    """The texts of a skill by path, and whether it has scripts."""

    texts: dict[str, str]
    scripts: bool
    findings: list[Finding]
    total: int


def material(folder: Path) -> Material:
    """Reads the texts of a skill, and applies the rules to all of its files. Blocks: call it in a thread."""
    texts, findings, total, scripts = dict[str, str](), list[Finding](), 0, False
    for file in files(folder):
        path = file.relative_to(folder).as_posix()
        with open(file, "rb") as opened:
            head = opened.read(_HEAD)
        if head.startswith(_PROGRAMS) or file.suffix in (".pyc", ".so", ".dll", ".exe", ".jar"):
            findings.append(Finding(path, "is a program that nobody can read"))
            continue
        script = _is_script(file, path, head)
        scripts = scripts or script
        if not script and file.suffix.lower() not in TEXTS:
            continue
        total += file.stat().st_size
        if total > 4 * MOST_TEXT:
            break
        try:
            texts[path] = file.read_bytes().decode()
        except UnicodeDecodeError:
            findings.append(Finding(path, "is not UTF-8"))
            continue
        findings += (Finding(path, rule) for rule in broken(texts[path], instructions=path == FILE))
    return Material(texts, scripts, findings, total)


def broken(text: str, *, instructions: bool) -> Iterator[str]:
    """Yields the rules that a text breaks."""
    plain = text.replace("\\\n", " ")
    yield from (name for name, pattern in _RULES.items() if pattern.search(plain))
    if _UNSEEN.search(text):
        yield "has characters that people do not see"
    if instructions and neutralised(text) != text:
        yield "has control tags of the server or of models"


def _is_script(file: Path, path: str, head: bytes) -> bool:
    return path.startswith("scripts/") or head.startswith(b"#!") or file.suffix.lower() in SCRIPTS

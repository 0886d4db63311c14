"""Judges shell commands that run on this machine unconfined: some are refused, some run with a warning.

It catches mistakes, and is no security boundary. Commands in a sandbox are not judged: it confines them all.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, NamedTuple, cast

import structlog
from langchain.agents.middleware import AgentMiddleware
from langchain_core.messages import BaseMessage
from langgraph.prebuilt.tool_node import ToolCallRequest

from actors.agent.messages.content import messages_of, with_messages
from actors.agent.run.attempt import Attempt, ToolHandler, ToolResult, error_result

log = structlog.get_logger("sika.command_audit")

TOOL = "bash"
MAX_CHARACTERS = 100_000
"""Limit of a command's length, as of the sandbox."""
LOGGED_CHARACTERS = 200
"""Limit of a rejected command in the log (DeerFlow's middleware SandboxAudit)."""


class Verdict(NamedTuple):
    """The judgement of a command. `reasons` names the matching families; `rejected` means not examined."""

    level: Literal["pass", "warn", "block"]
    reasons: tuple[str, ...] = ()
    rejected: bool = False


class Family(NamedTuple):
    """Commands that are dangerous in the same way. `pattern` matches normalised text."""

    name: str
    pattern: re.Pattern[str]


# ── the families ────────────────────────────────────────────────────────────────────────────────────────────────────
# Every search takes linear time: patterns begin at a separator or a rare word, and skip no further than the next one.
# A group is repeated in an atomic group, not possessively: before Python 3.11.5 that matches too much (gh-106052).

_WITHIN = r"[^;&|\n]"
_ALONE = r"(?![\w.-])"
_SHELL = r"(?:ba|z|da|k|a|c|tc)?sh"
_LED = r"(?>(?:(?:sudo|env|exec|nohup|command|time|-{1,2}[\w-]+|\w+=[^\s;&|`(]*) )*)(?:[\w./-]*/)?"
"""Prefixes of a program's name: programs that run it, assignments, its directory."""
_INTO = r"(?:>{1,2}\|?|(?<![\w.-])tee(?>(?: -{1,2}[\w-]+)*))\s?[\"']?"
_DOTFILES = r"\.(?:bashrc|bash_profile|bash_login|bash_logout|bash_aliases|profile|zshrc|zprofile|zshenv|zlogin)"
_HOMES = r"(?:~|\$\{?HOME\}?|/home|/root)/*"
_ROOT = rf" [\"']?(?:{_HOMES}|/+)(?:\*|\.\.?)?(?=[\s;&|)\"'`}}]|\Z)"
_COMMAND_BEGINS = r"(?:\A|[;&|(\n`]\s?|(?<![\w.-])(?:then|do|else|if|while|until|!|exec|env|nohup|time|xargs) )"
_FETCHES = rf"{_LED}(?:curl|wget|base64){_ALONE}"
_RUNS = rf"(?:eval|source|\.|{_SHELL}|python[\d.]*|perl|ruby|node|php)"
_DEVICE = r" [\"']?of=[\"']?/dev/(?!null(?![\w/])|std(?:out|err)(?![\w/])|shm/)"


def _command(word: str, *parts: str) -> str:
    """Returns the pattern of a simple command with this word, followed by all of these parts in any order."""
    after = "".join(f"(?={_WITHIN}*?{part})" for part in parts)
    return rf"(?:\A|[;&|\n])(?>{_WITHIN}*?(?<![\w.-])(?:{word}){_ALONE}){after}"


def _families(*rows: tuple[str, str]) -> tuple[Family, ...]:
    return tuple(Family(name, re.compile(pattern, re.DOTALL)) for name, pattern in rows)


HIGH = _families(
    ("recursive deletion of a root or home directory", _command("rm", r" (?:-[a-qs-zA-QS-Z]*[rR]|--r)", _ROOT)),
    ("raw copy to a device", _command("dd", _DEVICE)),
    ("making a file system", _command(r"mkfs(?:\.(?:ext[234]|xfs|btrfs|v?fat|msdos|exfat|ntfs|f2fs|minix))?", " ")),
    ("reading the shadow file", r"/etc/g?shadow(?![\w.])"),
    ("writing into a system directory", rf"{_INTO}/+(?:etc|(?:usr/(?:local/)?)?s?bin)/"),
    (
        "running what a download or a decoder prints, by a pipe",
        rf"(?:\A|[;&\n])(?>[^;&\n]*?(?<![\w.-])(?:curl|wget|base64){_ALONE})"
        rf"(?:[^;&|\n]|\|(?!\|)&?)*?\|(?!\|)&?\s?{_LED}{_SHELL}{_ALONE}",
    ),
    (
        "running what a download or a decoder prints, by a substitution",
        rf"(?:{_COMMAND_BEGINS}|(?<![\w/.-]){_RUNS}(?>(?: -[\w-]+)*) )[\"']?(?:[$<]\((?!\()\s?|`){_FETCHES}",
    ),
    ("writing a start-up file of the shell", rf"{_INTO}[^\s;&|<>\"']*{_DOTFILES}{_ALONE}"),
    ("reading the environment of a process", r"/proc/[^\s/;&|]+/(?:task/[^\s/;&|]+/)?environ"),
    (
        "changing what programs load",
        rf"{_COMMAND_BEGINS}(?>(?:(?:export|env|sudo|-\w+|(?!LD_PRELOAD)\w+=[^\s;&|`(]*) )*)LD_PRELOAD\+?=(?!=)",
    ),
    ("network device of bash", r"/dev/(?:tcp|udp)/"),
    ("fork bomb", r"(?<![\w:.])([\w:.]{1,40}) ?(?:\( ?\)\s?)?\{(?>[^{}]*?(?<![\w:.])\1 ?\| ?\1 ?&)"),
    (
        "endless loop of background jobs",
        r"(?<![\w.-])while (?:true(?!\w)|:)(?>(?:(?!\b(?:while|done)\b).)*)(?:(?<=[^&]&)|(?<=[^&]&\s))done\b",
    ),
)
"""Never run, as in DeerFlow."""

MEDIUM = _families(
    ("access for everybody", _command("chmod", r" (?:[0-7]?777|a\+rwx)(?![\w./-])")),
    ("installing Python packages", r"(?<![\w.-])pip[\d.]*(?>(?: -\S+)*) install(?![\w-])"),
    ("installing system packages", r"(?<![\w.-])apt(?:-get)?(?>(?: -\S+)*) install(?![\w-])"),
    ("becoming another user", rf"{_COMMAND_BEGINS}(?:[\w./-]*/)?(?:sudo|su){_ALONE}"),
    ("changing where programs are found", r"(?<![\w-])PATH\+?=(?!=)"),
)
"""Run, with a warning, as in DeerFlow."""


# ── judging ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def judge(command: str) -> Verdict:
    """Judges a command as a whole, its simple commands, and the words of each as the shell would split them."""
    if reason := _rejected(command):
        return Verdict("block", (reason,), rejected=True)
    whole = without_texts(command)
    parts = split(whole)
    texts = list(dict.fromkeys(map(normalised, [whole, *parts, *map(_words, parts)])))
    if high := tuple(_matching(HIGH, texts)):
        return Verdict("block", high)
    if medium := tuple(_matching(MEDIUM, texts)):
        return Verdict("warn", medium)
    return Verdict("pass")


def _rejected(command: str) -> str | None:
    if not command.strip():
        return "the command is empty"
    if len(command) > MAX_CHARACTERS:
        return f"the command is longer than {MAX_CHARACTERS} characters"
    return "the command contains a NUL byte" if "\0" in command else None


def _words(part: str) -> str:
    """Returns the words of a simple command without quotes. What only a shell can read stays as it is."""
    try:
        return " ".join(shlex.split(part))
    except ValueError:
        return part


def _matching(families: Iterable[Family], texts: Sequence[str]) -> Iterator[str]:
    return (family.name for family in families if any(family.pattern.search(text) for text in texts))


_SPACES = re.compile(r"[^\S\n]+")
_NEWLINES = re.compile(r" ?\n[ \n]*")


def normalised(text: str) -> str:
    """Collapses runs of spaces into one space, and runs of newlines into one newline."""
    return _NEWLINES.sub("\n", _SPACES.sub(" ", text.replace("\\\n", " "))).strip()


_MARK = re.compile(
    r"""(?P<kept>\\.|'[^']*+'|"(?>(?:\\.|[^"\\])*)"|[<>]&|&>|>\||<<<)"""
    r"""|(?P<here><<-?[ \t]*+\\?['"]?(?P<mark>[A-Za-z_][\w.-]*)['"]?)"""
    r"""|(?P<comment>(?<![^\s;&|(])\#[^\n]*+)"""
    r"""|(?P<end>&&|\|\||\|&|[;&|\n])"""
    r"""|(?P<open>['"])""",
    re.DOTALL,
)


def split(command: str) -> list[str]:
    """Splits a command into simple commands, without comments and here-documents. An open quote prevents splitting."""
    parts: list[str] = []
    marks: list[str] = []
    part, position = "", 0
    while hit := _MARK.search(command, position):
        part, position = part + command[position : hit.start()], hit.end()
        match hit.lastgroup:
            case "open":
                return [command]
            case "end":
                parts.append(part)
                part = ""
                if hit.group() == "\n":
                    position, marks = _after(command, position, marks), []
            case "kept" | "here":
                part += hit.group()
                marks += [hit["mark"]] if hit["mark"] else []
    parts.append(part + command[position:])
    return [stripped for part in parts if (stripped := part.strip())]


_READS_COMMANDS = re.compile(rf"(?<![\w.-])(?:{_SHELL}|eval|source){_ALONE}")


def without_texts(command: str) -> str:
    """Returns a command without the here-documents of lines in which no shell could run them."""
    parts: list[str] = []
    marks: list[str] = []
    start = position = 0
    line = 0
    while hit := _MARK.search(command, position):
        position = hit.end()
        if hit["here"]:
            marks.append(hit["mark"])
        elif hit.lastgroup == "open":
            break
        elif hit.group() == "\n":
            if marks and not _READS_COMMANDS.search(command, line, position):
                parts.append(command[start:position])
                start = position = _after(command, position, marks)
            line, marks = position, []
    return "".join([*parts, command[start:]])


def _after(command: str, position: int, marks: Sequence[str]) -> int:
    """Returns the position after the here-documents with these marks, which begin at `position`."""
    for mark in marks:
        line = None
        while line != mark and position < len(command):
            end = command.find("\n", position)
            end = len(command) if end < 0 else end
            line, position = command[position:end].strip("\t"), end + 1
    return position


# ── the policy ──────────────────────────────────────────────────────────────────────────────────────────────────────


class CommandAudit(AgentMiddleware[Any, Attempt, Any]):
    """Judges commands of the tool `bash` before they run (DeerFlow's middleware SandboxAudit)."""

    name = "command_audit"

    async def awrap_tool_call(self, request: ToolCallRequest, handler: ToolHandler) -> ToolResult:
        call = request.tool_call
        command = call["args"].get("command") if call["name"] == TOOL else None
        if not isinstance(command, str):
            return await handler(request)
        attempt, call_id = cast(Attempt, request.runtime.context), str(call["id"])
        verdict = judge(command)
        _log(attempt, command, verdict)
        if verdict.level == "pass" or (verdict.level == "block" and attempt.begun(call_id)):
            return await handler(request)
        reasons = "; ".join(verdict.reasons)
        if verdict.level == "block":
            attempt.decide(self.name, "blocked", reasons, call_id=call_id)
            return error_result(call, f"the command was not run: {reasons}. Find a safer way to do it.")
        attempt.decide(self.name, "warned", reasons, call_id=call_id)
        return _warned(await handler(request), reasons)


def _log(attempt: Attempt, command: str, verdict: Verdict) -> None:
    text = command[:LOGGED_CHARACTERS] if verdict.rejected else command
    write = log.info if verdict.level == "pass" else log.warning
    write(
        "command", thread=attempt.thread, run=attempt.run, command=text, verdict=verdict.level, reasons=verdict.reasons
    )


def _warned(result: ToolResult, reasons: str) -> ToolResult:
    line = f"Warning: this command is of a risky kind ({reasons}). Be sure that it is needed."
    messages = messages_of(result)
    return with_messages(result, messages, [_with_line(message, line) for message in messages])


def _with_line(message: BaseMessage, line: str) -> BaseMessage:
    content = message.content
    added = f"{content}\n{line}" if isinstance(content, str) else [*content, {"type": "text", "text": line}]
    return message.model_copy(update={"content": added})

"""The command line, where actors, adapters and channels meet for a person. `verbs` lists the verbs; the rooms have
a file for each, with its arguments and its work. It is imported when called, so that `sika --help` costs nothing.
"""

from __future__ import annotations

import argparse
import errno
import io
import os
import sys
from collections.abc import Sequence

from channels.cli.common import INTERRUPTED, OK, WRONG, log_to_stderr
from channels.cli.verbs import GROUPS, Command, Parser, Verb, installed
from channels.terminal.output import guard_terminals
from core import collector

_FULL = (errno.ENOSPC, errno.EDQUOT)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command, and returns its exit code. Expected errors are one line on stderr, never a traceback."""
    _open_streams()
    _hear_interrupts()
    collector.relax()
    words = sys.argv[1:] if arguments is None else [*arguments]
    try:
        top = parser(words)
    except KeyboardInterrupt:
        return INTERRUPTED
    options = top.parse_args(words)
    if options.command is None:
        top.print_help()
        return OK
    import anyio

    from core.errors import SikaError, ungrouped

    try:
        with ungrouped():
            return anyio.run(_quietly, options, backend_options={"use_uvloop": options.serves and _has_uvloop()})
    except SikaError as error:
        print(f"sika: {error}", file=sys.stderr)
        return WRONG
    except KeyboardInterrupt:
        return INTERRUPTED
    except (OSError, BaseExceptionGroup) as error:
        lost = _output_lost(error)
        if lost is None:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is still buffered cannot be written either
        if isinstance(lost, BrokenPipeError):  # `sika log show … | head`: the reader is gone
            return OK
        print(f"sika: cannot write: {lost.strerror}", file=sys.stderr)
        return WRONG


def _output_lost(error: BaseException) -> OSError | None:
    """Returns the error of an output whose reader is gone, or whose disk is full; None if there is another error."""
    if isinstance(error, BaseExceptionGroup):
        errors = [_output_lost(part) for part in error.exceptions]
        return None if None in errors else errors[0]
    if isinstance(error, OSError) and (isinstance(error, BrokenPipeError) or error.errno in _FULL):
        return error
    return None


def _open_streams() -> None:
    """Opens standard streams that the caller closed: the next files would get their numbers, and their text. Terminals
    get no control characters of untrusted text.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    guard_terminals()


def _hear_interrupts() -> None:
    """Restores Ctrl-C on a terminal, also if a script that started the command ignores SIGINT."""
    import signal

    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN and sys.stdin.isatty():
        signal.signal(signal.SIGINT, signal.default_int_handler)


async def _quietly(options: argparse.Namespace) -> int:
    """Runs a command with the log on stderr: of servers and accounts from `info`, of other commands only errors."""
    log_to_stderr(options.log_level)
    command: Command = options.command
    try:
        code = await command(options)
    finally:
        await _close_models()
    sys.stdout.flush()
    return code


async def _close_models() -> None:
    """Closes the connections to providers of models, which belong to this event loop, if the command asked one."""
    if factory := sys.modules.get("adapters.models.factory"):
        await factory.close()


class _Version(argparse.Action):
    """Reads the version only on `--version`: that takes longer than `--help` may."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib.metadata import version

        print(f"sika {version('sika')}")
        parser.exit()


def _has_uvloop() -> bool:
    """It makes servers faster. Textual sets a task factory that it cannot use on some releases of Python."""
    from importlib.util import find_spec

    return find_spec("uvloop") is not None


def parser(words: Sequence[str] | None = None) -> Parser:
    """Returns the parser: with the arguments of the verb that `words` begin with, or of all."""
    top = _Top(prog="sika", description="A super-agent server.")
    top.add_argument("--version", action=_Version, nargs=0, help="print the version")
    top.set_defaults(command=None, log_level="error", serves=False)
    top.words = words
    top.installed = installed(words)
    top.verbs([*(verb for verbs in GROUPS.values() for verb in verbs), *top.installed])
    return top


class _Top(Parser):
    """The parser of `sika`, whose help shows the verbs by what they are for."""

    installed: Sequence[Verb] = ()
    """Verbs of installed packages."""

    def format_help(self) -> str:
        lines = ["usage: sika [--version] COMMAND …", "", str(self.description)]
        groups = {**GROUPS, "of installed packages": self.installed} if self.installed else GROUPS
        for title, verbs in groups.items():
            lines += ["", f"{title}:", *(f"  {verb.name:<12} {verb.text}" for verb in verbs)]
        return "\n".join([*lines, "", "`sika COMMAND --help` explains one.", ""])

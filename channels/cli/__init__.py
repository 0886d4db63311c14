"""The command line. Each command imports what it needs when it is called, so that `sika --help` costs nothing."""

from __future__ import annotations

import argparse
import errno
import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from channels.cli.accounts import account_commands
from channels.cli.agent import agent_commands
from channels.cli.channel import channel_commands
from channels.cli.chat import chat_commands
from channels.cli.common import INTERRUPTED, OK, WRONG, Command, log_to_stderr
from channels.cli.doctor import doctor_command
from channels.cli.eval import eval_commands
from channels.cli.log import log_commands
from channels.cli.mcp import mcp_commands
from channels.cli.operate import operate_commands
from channels.cli.plugins import extend_commands
from channels.cli.provisioner import provisioner_command
from channels.cli.serve import serve_command
from channels.cli.setup import init_command, setup_commands
from channels.cli.skill import skill_commands
from channels.terminal.output import guard_terminals
from core import collector

_FULL = (errno.ENOSPC, errno.EDQUOT)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command, and returns its exit code. Expected errors are one line on stderr, never a traceback."""
    _open_streams()
    top = parser()
    options = top.parse_args(arguments)
    if options.command is None:
        top.print_help()
        return OK
    _hear_interrupts()
    collector.relax()
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


def parser() -> argparse.ArgumentParser:
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--home", metavar="DIR", help="data directory (default: $SIKA_HOME, or .sika)")
    common.add_argument("--config", type=Path, metavar="FILE", help="default: $SIKA_CONFIG, or config.yaml")
    common.add_argument("--nats", metavar="URL", help="a NATS of yours instead of the one that comes along")
    top = argparse.ArgumentParser(prog="sika", description="A super-agent server.")
    top.add_argument("--version", action=_Version, nargs=0, help="print the version")
    top.set_defaults(command=None, log_level="error", serves=False)
    commands = top.add_subparsers(metavar="COMMAND")

    def add(
        name: str,
        command: Command | None,
        text: str,
        to: argparse._SubParsersAction[argparse.ArgumentParser] = commands,
    ) -> argparse.ArgumentParser:
        subparser = to.add_parser(name, help=text, description=text, parents=[common] if command else [])
        subparser.set_defaults(command=command)
        return subparser

    for adds_commands in _GROUPS:
        adds_commands(add)
    return top


_GROUPS = (
    serve_command,
    chat_commands,
    init_command,
    doctor_command,
    log_commands,
    eval_commands,
    operate_commands,
    mcp_commands,
    channel_commands,
    account_commands,
    agent_commands,
    skill_commands,
    setup_commands,
    extend_commands,
    provisioner_command,
)
"""In the order of `sika --help`."""

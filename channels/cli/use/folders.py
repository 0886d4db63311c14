"""`sika folders`: the folders that you let the agent work on."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from channels.cli.common import OK, options_of
from channels.cli.verbs import Parser
from channels.client.here import Access, Consent, Consents, Here
from channels.terminal.table import table
from channels.terminal.text import one_line
from core.errors import NotFound


def arguments(parser: Parser) -> None:
    parser.runs(_folders)
    allow = "agree to a folder, as the question of `sika chat --here` does"
    parser.add_argument("--allow", metavar="PATH", help=allow)
    parser.add_argument("--read-only", action="store_true", help="with --allow: to reading only")
    parser.add_argument("--forget", metavar="PATH", help="be asked again")


async def _folders(arguments: argparse.Namespace) -> int:
    arguments.here = True
    settle_home(arguments)
    consents = Consents(options_of(arguments).home)
    if arguments.allow:
        access: Access = "read-only" if arguments.read_only else "read-write"
        consents.agree(Here(os.path.realpath(arguments.allow), access))
    if arguments.forget and not consents.forget(path := os.path.realpath(arguments.forget)):
        raise NotFound(f"{path}: not among the folders")
    for line in table(_cells(path, consent) for path, consent in sorted(consents.all().items())):
        print(line)
    return OK


def _cells(path: str, consent: Consent) -> Sequence[str]:
    shown = f"shows {', '.join(consent.show)}" if consent.show else ""
    return consent.access, consent.at[:10], one_line(path, 500), one_line(shown, 500)


def settle_home(arguments: argparse.Namespace) -> None:
    """Lets work on a folder of the person's use an installation outside of it: `~/.sika`, if none is named or here.

    A server that starts in the folder would keep its data there, and read its configuration from there.
    """
    named = ("SIKA_HOME", "DEER_FLOW_HOME", "DEER_FLOW_PROJECT_ROOT")
    if not arguments.here or arguments.home or any(map(os.environ.get, named)) or Path(".sika").exists():
        return
    os.environ["DEER_FLOW_PROJECT_ROOT"] = str(Path.home() / ".sika")

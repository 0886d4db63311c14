"""`sika projections`: the read models."""

from __future__ import annotations

import argparse

from channels.cli.common import OK, client_of
from channels.cli.verbs import Parser


def arguments(parser: Parser) -> None:
    parser.below()("rebuild", _projections_rebuild, "let the running server build them again from the log")


async def _projections_rebuild(arguments: argparse.Namespace) -> int:
    async with client_of(arguments, "without one, its views.db may simply be deleted") as client:
        await client.rebuild_projections()
    print("rebuilding")
    return OK

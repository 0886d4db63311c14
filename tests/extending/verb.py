"""Counts to a number."""

from __future__ import annotations

import argparse

from channels.cli.verbs import Parser


def arguments(parser: Parser) -> None:
    parser.runs(_count)
    parser.add_argument("number", type=int)


async def _count(arguments: argparse.Namespace) -> int:
    print("counted", arguments.number)
    return 0

"""Say a word."""

from __future__ import annotations

import argparse

from sika.cli import OK, Parser


def arguments(parser: Parser) -> None:
    parser.runs(_say)
    parser.add_argument("word")


async def _say(arguments: argparse.Namespace) -> int:
    print(arguments.word)
    return OK

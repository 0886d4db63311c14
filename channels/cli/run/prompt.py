"""`sika prompt`: the system prompt."""

from __future__ import annotations

import argparse
import sys

from channels.cli.common import OK, options_of
from channels.cli.verbs import Parser
from core.events import RunRequested


def arguments(parser: Parser) -> None:
    show = parser.below()("show", _prompt_show, "what a run would get, and on standard error its hash")
    show.add_argument("--agent", metavar="NAME", help="of this custom agent")
    show.add_argument("--user", default="default", metavar="ID", help="whose agent that is (default: default)")
    show.add_argument("--bootstrap", action="store_true", help="of the agent that makes agents")
    show.add_argument("--unattended", action="store_true", help="of a run that nobody watches")


async def _prompt_show(arguments: argparse.Namespace) -> int:
    from actors.agent.setup.prompt import short_hash
    from actors.wiring import compose

    context = {
        "agent_name": arguments.agent,
        "is_bootstrap": arguments.bootstrap,
        "unattended": arguments.unattended,
    }
    options = options_of(arguments)
    async with compose.attach(options) as system:
        plan = await compose.plan(system, RunRequested(context=context), arguments.user, options)
    print(plan.prompt)
    print(f"hash: {short_hash(plan.prompt)}", file=sys.stderr)
    return OK

"""The commands around the configuration: `sika init`, `sika config` and `sika prompt`."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from channels.cli.common import FAILED, OK, Add, options_of


def init_command(add: Add) -> None:
    init = add("init", _init, "write a first config.yaml: asks for a provider and a key, and tries them")
    names = "openai, deepseek, openrouter, groq, mistral, ollama, anthropic, google, bedrock, azure, custom"
    init.add_argument("--provider", metavar="NAME", help=names)
    init.add_argument("--base-url", metavar="URL", help="of an OpenAI-compatible endpoint")
    init.add_argument("--model", metavar="NAME", help="as the provider calls it")
    key = init.add_mutually_exclusive_group()
    key.add_argument("--key-env", metavar="NAME", help="an environment variable that has the key")
    key.add_argument("--key-stdin", action="store_true", help="read the key from standard input")
    init.add_argument("--no-call", action="store_true", help="do not try a call, which may cost money")


def setup_commands(add: Add) -> None:
    """Adds the groups `prompt` and `config`."""
    prompts = add("prompt", None, "the system prompt").add_subparsers(required=True, metavar="WHAT")
    subparser = add("show", _prompt_show, "what a run would get, and on standard error its hash", prompts)
    subparser.add_argument("--agent", metavar="NAME", help="of this custom agent")
    subparser.add_argument("--user", default="default", metavar="ID", help="whose agent that is (default: default)")
    subparser.add_argument("--bootstrap", action="store_true", help="of the agent that makes agents")
    subparser.add_argument("--unattended", action="store_true", help="of a run that nobody watches")

    config = add("config", None, "the configuration file").add_subparsers(required=True, metavar="WHAT")
    add("check", _config_check, "look for mistakes", config)
    upgrade = add(
        "upgrade", _config_upgrade, "write the file with the keys of today; without --write, say what", config
    )
    upgrade.add_argument("--write", action="store_true", help="change the file, and keep the old one beside it")
    reference = add("reference", _config_reference, "explain the keys: type, default, meaning", config)
    reference.add_argument("key", nargs="?", default="", help="a key, a section, or a part of a name (default: all)")


async def _init(arguments: argparse.Namespace) -> int:
    from channels.cli.run import init
    from channels.terminal.console.prompt import ask

    path = Path(arguments.config or os.environ.get("SIKA_CONFIG") or "config.yaml").expanduser().absolute()
    if path.exists():
        raise init.refusal(path)
    init.read_variables(path.with_name(".env"))
    key = sys.stdin.readline().strip() if arguments.key_stdin else ""
    variable = arguments.key_env or ""
    wishes = init.Wishes(arguments.provider or "", arguments.base_url or "", arguments.model or "", variable, key)
    read = ask if sys.stdin.isatty() and not arguments.key_stdin else None
    choice = await init.choose(wishes, read)
    works = arguments.no_call or await _try(init.written(choice), choice.variable, choice.key) == OK
    if not works and (read is None or await read("Write it all the same (yes, no)?", "no", False) != "yes"):
        print("nothing was written", file=sys.stderr)
        return FAILED
    for file in init.write(path, choice):
        print(f"written: {file}")
    print("next: sika serve" if path.parent == Path.cwd() else f"next: cd {path.parent}, and there: sika serve")
    return OK


async def _try(text: str, variable: str, key: str) -> int:
    """Tries one call of the model of a configuration that is not written yet."""
    from functools import partial

    from adapters.models.configured import build
    from channels.cli.run import doctor
    from channels.terminal.text import style_of
    from core.config.load import parse

    [model] = parse(text, environ={**os.environ, variable: key}).models
    check = partial(doctor.model, model, lambda _: build(model), call=True)
    return await doctor.examine([("model", check)], print, style_of(sys.stdout))


async def _config_check(arguments: argparse.Namespace) -> int:
    from actors.wiring import compose, names
    from core.config.load import ConfigSource, find
    from core.errors import Invalid

    source = ConfigSource(arguments.config)
    config = source.current()
    for warning in config.warnings:
        print(f"warning: {warning}")
    if problems := compose.problems(config):
        raise Invalid("\n  ".join(problems))
    for remark in names.remarks(config, source.project):
        print(f"warning: {remark}")
    print(f"ok: {find(arguments.config) or 'no config.yaml, everything is default'}")
    return OK


async def _config_upgrade(arguments: argparse.Namespace) -> int:
    from core.config.load import find
    from core.config.upgrade import upgrade_file
    from core.errors import Invalid

    path = find(arguments.config)
    if path is None:
        raise Invalid("there is no config.yaml: everything is default")
    changes, backup = upgrade_file(path, write=arguments.write)
    for change in changes:
        print(change)
    if not changes:
        print(f"ok: {path} has the keys of today")
    else:
        print(f"written: {path}; the old file is {backup}" if backup else "nothing was written; --write does it")
    return OK


async def _config_reference(arguments: argparse.Namespace) -> int:
    from channels.cli.run.reference import lines

    for line in lines(arguments.key):
        print(line)
    return OK


async def _prompt_show(arguments: argparse.Namespace) -> int:
    from actors.lead.setup.prompt import short_hash
    from actors.wiring import compose
    from core.events import RunRequested

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

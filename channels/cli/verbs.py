"""The verbs of the command line: which there are, in which group of the help, and how one declares its arguments.

A verb is a module with `arguments(parser)`, which is imported when the verb is called and no sooner. To add one, write
its file and its line in `GROUPS`. Those of installed packages are entry points.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from core.plugins import Plugin

Command = Callable[[argparse.Namespace], Awaitable[int]]


class Below(Protocol):
    """Adds a verb below another one: its name, what it runs, its line of help, and defaults of arguments."""

    def __call__(self, name: str, command: Command, text: str, **defaults: Any) -> Parser: ...


class Verb(NamedTuple):
    """A verb: its name, its line of help, and its module."""

    name: str
    text: str
    module: str

    def declare(self, parser: Parser) -> None:
        """Gives a parser the verb's arguments."""
        import_module(f"channels.cli.{self.module}").arguments(parser)


class Installed(Verb):
    """A verb of an installed package; `module` is that of its entry point."""

    def declare(self, parser: Parser) -> None:
        """Gives a parser the verb's arguments. Ends the command, and says why, if the verb cannot be used."""
        from core import plugins

        plugin = next(each for each in plugins.examined(plugins.VERBS, describe) if each.name == self.name)
        if plugin.problem:
            parser.error(f"{plugin.place}: {plugin.problem}")
        parser.description = _sentence(plugin.value)
        plugin.value.arguments(parser)


class Parser(argparse.ArgumentParser):
    """The parser of a verb."""

    words: Sequence[str] | None = None
    """The words of the command that follow the verb; None: all verbs get their arguments."""

    def runs(self, command: Command, **defaults: Any) -> None:
        """Sets the command that the verb runs, and adds the options that all have."""
        self.add_argument("--home", metavar="DIR", help="data directory (default: $SIKA_HOME, or .sika)")
        self.add_argument("--config", type=Path, metavar="FILE", help="default: $SIKA_CONFIG, or config.yaml")
        self.add_argument("--nats", metavar="URL", help="a NATS of yours instead of the one that comes along")
        self.set_defaults(command=command, **defaults)

    def below(self, required: bool = True) -> Below:
        """Returns a function that adds a verb below this one."""
        commands = self.add_subparsers(required=required, metavar="WHAT", parser_class=Parser)

        def add(name: str, command: Command, text: str, **defaults: Any) -> Parser:
            parser = commands.add_parser(name, help=text, description=text)
            parser.runs(command, **defaults)
            return parser

        return add

    def verbs(self, verbs: Sequence[Verb], required: bool = False) -> None:
        """Adds verbs. If there are `words`, only the one that they begin with gets its arguments."""
        commands = self.add_subparsers(required=required, metavar="COMMAND", parser_class=Parser)
        for verb in verbs:
            parser = commands.add_parser(verb.name, help=verb.text, description=verb.text)
            if self.words is None or self.words[:1] == [verb.name]:
                parser.words = self.words and self.words[1:]
                verb.declare(parser)


GROUPS: Mapping[str, Sequence[Verb]] = {
    "talk to the agent": (
        Verb("chat", "talk to the agent", "use.chat"),
        Verb("threads", "the latest threads: id, owner, status, age, title or first words", "use.threads"),
        Verb("folders", "the folders that you let the agent work on", "use.folders"),
        Verb("acp", "be an agent of an editor (Agent Client Protocol on standard input and output)", "use.acp"),
    ),
    "run a server": (
        Verb("serve", "run a server", "run.serve"),
        Verb("init", "write a first config.yaml: asks for a provider and a key, and tries them", "run.init"),
        Verb("doctor", "check this machine and the configuration", "run.doctor"),
        Verb("config", "the configuration file", "run.config"),
        Verb("prompt", "the system prompt", "run.prompt"),
    ),
    "extend it": (
        Verb("agent", "custom agents", "extend.agent"),
        Verb("skill", "skills: instructions for the agent", "extend.skill"),
        Verb("mcp", "the Model Context Protocol", "extend.mcp"),
        Verb("channels", "the accounts of chat platforms: their state, and what they do", "extend.channels"),
        Verb("channel", "serve an account of a chat platform; `sika serve` starts these itself", "run.channel"),
        Verb("plugins", "what installed packages add, and why some of it is left out", "extend.plugins"),
        Verb("new", "write the package of a plug-in: a skeleton that works, with its test", "extend.new"),
        Verb("asyncapi", "print the AsyncAPI document of the bus, for actors in other languages", "extend.asyncapi"),
    ),
    "see what was": (
        Verb("log", "look into a thread's log", "log"),
        Verb("eval", "evaluate recorded threads: other models and prompts, and checks of the results", "look.eval"),
        Verb("sql", "read-only SQL on the read models: threads, runs, usage, metadata, messages", "look.sql"),
    ),
    "administer it": (
        Verb("user", "accounts of people", "admin.user"),
        Verb("key", "API keys", "admin.key"),
        Verb("actors", "what runs where: position, lag, work, errors and durations of each actor", "admin.actors"),
        Verb("dlq", "dead letters: what could not be processed", "admin.dlq"),
        Verb("projections", "the read models", "admin.projections"),
        Verb("cluster", "a NATS cluster: what no server lowers by itself", "admin.cluster"),
        Verb(
            "provisioner",
            "start a pod of Kubernetes for each sandbox (sandbox.provider: provisioner)",
            "admin.provisioner",
        ),
    ),
}
"""The groups of the help."""
OURS = frozenset(verb.name for verbs in GROUPS.values() for verb in verbs)
_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


def installed(words: Sequence[str] | None) -> Sequence[Verb]:
    """Returns the verbs of installed packages, and imports none; not where `words` begin with one of ours."""
    if words is None or (words and words[0] in OURS):
        return ()
    from importlib.metadata import entry_points

    entries = {entry.name: entry for entry in entry_points(group="sika.verbs") if entry.name not in OURS}
    packages = {name: entry.dist.name if entry.dist else "?" for name, entry in sorted(entries.items())}
    return [Installed(name, f"of the package {package}", entries[name].value) for name, package in packages.items()]


def describe(plugin: Plugin) -> str:
    """Returns the command of an installed verb, and its sentence. Raises `Invalid` if it cannot be one."""
    from core.errors import Invalid

    if plugin.name in OURS:
        raise Invalid(f"the name {plugin.name} is taken by one of ours")
    if not _NAME.fullmatch(plugin.name):
        raise Invalid("its name is a word of the command line: small letters, digits and dashes are expected")
    if not callable(getattr(plugin.value, "arguments", None)):
        raise Invalid("a module with arguments(parser) is expected")
    plugin.value.arguments(Parser())
    return f"sika {plugin.name}: {_sentence(plugin.value)}"


def _sentence(module: object) -> str:
    return (module.__doc__ or "").strip().partition("\n")[0]

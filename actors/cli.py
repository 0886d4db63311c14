"""The command line. Each command imports what it needs when it is called, so that `sika --help` costs nothing."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from actors.cli_common import FAILED, INTERRUPTED, OK, WRONG, Command, count, options_of
from actors.cli_eval import eval_commands
from actors.cli_log import log_commands
from actors.cli_provisioner import provisioner_command

if TYPE_CHECKING:
    import anyio

    from actors.compose import Options
    from channels.client.aio import AsyncSikaClient
    from channels.terminal.doctor import Check, Finding
    from core.chat.account import Accounts
    from core.config.settings import Config
    from core.identity.directory import Directory
    from core.mcp.servers import Directory as Servers
    from core.runtime.system import System
    from core.skills.library import Library

GRACE_SECONDS = 25.0
"""Limit of a server's drain after SIGTERM: orchestrators kill after 30 seconds."""
LEAVE_SECONDS = 2.0
"""Limit of the process's remaining life after that."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command, and returns its exit code. Expected errors are one line on stderr, never a traceback."""
    top = parser()
    options = top.parse_args(arguments)
    if options.command is None:
        top.print_help()
        return OK
    _hear_interrupts()
    import anyio

    from core.errors import SikaError, ungrouped

    try:
        with ungrouped():
            return anyio.run(_quietly, options, backend_options={"use_uvloop": _has_uvloop()})
    except SikaError as error:
        print(f"sika: {error}", file=sys.stderr)
        return WRONG
    except KeyboardInterrupt:
        return INTERRUPTED
    except (BrokenPipeError, BaseExceptionGroup) as error:
        if isinstance(error, BaseExceptionGroup) and error.split(BrokenPipeError)[1] is not None:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # `sika log show … | head`: the reader is gone
        return OK


def _hear_interrupts() -> None:
    """Restores Ctrl-C on a terminal, also if a script that started the command ignores SIGINT."""
    import signal

    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN and sys.stdin is not None and sys.stdin.isatty():
        signal.signal(signal.SIGINT, signal.default_int_handler)


async def _quietly(options: argparse.Namespace) -> int:
    """Runs a command with the log on stderr: of servers and accounts from `info`, of other commands only errors."""
    _log_to_stderr("info" if options.command in (_serve, _channel) else "error")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    command: Command = options.command
    code = await command(options)
    sys.stdout.flush()
    return code


class _Version(argparse.Action):
    """Reads the version only on `--version`: that takes longer than `--help` may."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib.metadata import version

        print(f"sika {version('sika')}")
        parser.exit()


def parser() -> argparse.ArgumentParser:
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--home", metavar="DIR", help="data directory (default: $SIKA_HOME, or .sika)")
    common.add_argument("--config", type=Path, metavar="FILE", help="default: $SIKA_CONFIG, or config.yaml")
    common.add_argument("--nats", metavar="URL", help="a NATS of yours instead of the one that comes along")
    top = argparse.ArgumentParser(prog="sika", description="A super-agent server.")
    top.add_argument("--version", action=_Version, nargs=0, help="print the version")
    top.set_defaults(command=None)
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

    serve = add("serve", _serve, "run a server")
    serve.add_argument("--host", help="address to listen on (default: 127.0.0.1)")
    serve.add_argument("--port", type=_port, help="default: 2026; 0 picks a free one")
    serve.add_argument("--actors", type=_names, metavar="A,B", help="only these actors (default: all)")
    serve.add_argument("--reload", action="store_true", help="for development: start again when the code changes")

    chat = add("chat", _chat, "talk to the agent")
    chat.add_argument("message", nargs="?", help="one message; without it, a conversation")
    thread = chat.add_mutually_exclusive_group()
    thread.add_argument("--thread", metavar="ID", help="go on with this thread, or begin one of this name")
    thread.add_argument("--continue", dest="latest", action="store_true", help="go on with the latest thread")
    chat.add_argument("--url", help="a server elsewhere")
    chat.add_argument("--plan", action="store_true", help="let the agent keep a list of steps")

    acp = add("acp", _acp, "be an agent of an editor (Agent Client Protocol on standard input and output)")
    acp.add_argument("--url", help="a server elsewhere")

    init = add("init", _init, "write a first config.yaml: asks for a provider and a key, and tries them")
    init.add_argument("--provider", metavar="NAME", help="openai, deepseek, openrouter, groq, mistral, ollama, custom")
    init.add_argument("--base-url", metavar="URL", help="of an OpenAI-compatible endpoint")
    init.add_argument("--model", metavar="NAME", help="as the provider calls it")
    key = init.add_mutually_exclusive_group()
    key.add_argument("--key-env", metavar="NAME", help="an environment variable that has the key")
    key.add_argument("--key-stdin", action="store_true", help="read the key from standard input")
    init.add_argument("--no-call", action="store_true", help="do not try a call, which may cost money")

    threads = add("threads", _threads, "the latest threads: id, owner, status, age, title or first words")
    threads.add_argument("--user", metavar="ID", help="only of this user")
    threads.add_argument("--limit", type=count, default=20, metavar="N", help="default: 20")

    doctor = add("doctor", _doctor, "check this machine and the configuration")
    doctor.add_argument("--port", type=_port, help="the port that a server would listen on (default: as configured)")
    doctor.add_argument("--call", action="store_true", help="ask each model one short question, which may cost money")

    log_commands(add)
    eval_commands(add)
    provisioner_command(add)

    running = add("actors", _actors, "what runs where: position, lag, work, errors and durations of each actor")
    running.add_argument("--json", action="store_true")

    new = add("new", _new, "write the package of a plug-in: a skeleton that works, with its test")
    new.add_argument("kind", choices=("actor", "tool", "policy", "skill", "channel"))
    new.add_argument("name", help="small letters, digits and dashes")
    new.add_argument("--dir", type=Path, default=Path(), metavar="DIR", help="where the package's folder is made")

    add("asyncapi", _asyncapi, "print the AsyncAPI document of the bus, for actors in other languages")

    extensions = add("plugins", _plugins, "what installed packages add, and why some of it is left out")
    extensions.add_argument("--json", action="store_true")

    dlq = add("dlq", None, "dead letters: what could not be processed").add_subparsers(required=True, metavar="WHAT")
    add("list", _dlq_list, "the letters and their reasons", dlq)
    again = add("redrive", _dlq_redrive, "wake their actors again, and delete the letters", dlq)
    again.add_argument("letters", nargs="*", type=count, metavar="SEQ", help="only these (default: all)")

    mcp = add("mcp", None, "the Model Context Protocol").add_subparsers(required=True, metavar="WHAT")
    serving = add("serve", _mcp_serve, "offer the running server's conversations on standard input and output", mcp)
    serving.add_argument("--url", help="a server elsewhere")
    subparser = add("login", _mcp_login, "log in to an MCP server with an account of yours", mcp)
    subparser.add_argument("server", help="its name in the configuration")
    subparser.add_argument("--register", action="store_true", help="as a new client: it has forgotten the last one")
    subparser.add_argument("--no-browser", action="store_true", help="only print the address")
    add("logout", _mcp_logout, "give your access to an MCP server up", mcp).add_argument("server")
    add("list", _mcp_list, "the MCP servers, and what is wrong with them", mcp)
    adding = add("add", _mcp_add, "add an MCP server to extensions_config.json beside the configuration", mcp)
    adding.add_argument("server", help="its name: its tools begin with it")
    adding.add_argument(
        "program", nargs=argparse.REMAINDER, metavar="COMMAND", help="of a stdio server, with its arguments"
    )
    adding.add_argument("--url", help="of a server that is reached over HTTP")
    adding.add_argument("--sse", action="store_true", help="by the older transport")
    adding.add_argument("--env", action="append", default=[], metavar="NAME=VALUE", help="$NAME as value is resolved")
    adding.add_argument("--header", action="append", default=[], metavar="NAME:VALUE")
    adding.add_argument("--trusted", action="store_true", help="run it on this machine without a sandbox")
    testing = add("test", _mcp_test, "list servers anew, and say why one cannot be listed", mcp)
    testing.add_argument("server", nargs="*", help="default: all that are enabled")
    add("tools", _mcp_tools, "the tools that servers offer", mcp).add_argument("server", nargs="?")
    calling = add("call", _mcp_call, "call a tool", mcp)
    calling.add_argument("tool", help="its name as `sika mcp tools` shows it")
    calling.add_argument("arguments", nargs="?", default="{}", help="a JSON object")

    channel = add("channel", _channel, "serve an account of a chat platform; `sika serve` starts these itself")
    channel.add_argument("platform", help="slack, telegram, feishu or dingtalk")
    channel.add_argument("--account", metavar="NAME", help="one of channels.<platform>.accounts")
    channel.add_argument("--supervised", metavar="HOLDER", default="", help=argparse.SUPPRESS)

    channels = add("channels", _channels, "the accounts of chat platforms: their state, and what they do")
    channels.add_argument("--json", action="store_true")
    trial = channels.add_subparsers(metavar="WHAT")
    subparser = add("test", _channels_test, "ask a platform about an account's credentials and permissions", trial)
    subparser.add_argument("platform", help="slack, telegram, feishu or dingtalk")
    subparser.add_argument("--account", metavar="NAME", help="one of channels.<platform>.accounts")
    subparser.add_argument("--json", action="store_true")

    users = add("user", None, "accounts of people").add_subparsers(required=True, metavar="WHAT")
    subparser = add("create", _user_create, "make an account; prints a password to be changed if none is given", users)
    subparser.add_argument("email")
    subparser.add_argument("--role", choices=("user", "admin"), default="user")
    subparser.add_argument("--id", help="give it the things of this user, as `default`: those made without accounts")
    subparser.add_argument("--password-stdin", action="store_true", help="read the password from standard input")
    add("list", _user_list, "the accounts", users)
    subparser = add("password", _user_password, "set another password; all sessions end", users)
    subparser.add_argument("user", help="address or id")
    subparser.add_argument("--password-stdin", action="store_true", help="read the password from standard input")
    subparser = add("role", _user_role, "make somebody an administrator, or no longer", users)
    subparser.add_argument("user", help="address or id")
    subparser.add_argument("role", choices=("user", "admin"))
    subparser = add("disable", _user_disable, "end their sessions and keys, and let them in no more", users)
    subparser.add_argument("user", help="address or id")
    subparser = add("enable", _user_enable, "let them in again", users)
    subparser.add_argument("user", help="address or id")

    keys = add("key", None, "API keys").add_subparsers(required=True, metavar="WHAT")
    subparser = add("create", _key_create, "make a key; it is shown once", keys)
    subparser.add_argument("--user", required=True, help="address or id")
    subparser.add_argument(
        "--scopes", type=_names, metavar="A,B", help="as threads:read,runs (default: all the user may do)"
    )
    subparser.add_argument("--expires", metavar="WHEN", help="as 30d, 12h, or 2027-01-31 (default: never)")
    subparser = add("list", _key_list, "the keys", keys)
    subparser.add_argument("--user", help="address or id: only theirs")
    add("revoke", _key_revoke, "make a key worthless", keys).add_argument("key", help="its id")

    agents = add("agent", None, "custom agents").add_subparsers(required=True, metavar="WHAT")
    for name, text in (
        ("list", "the agents"),
        ("show", "an agent's definition"),
        ("export", "print an agent as one file"),
        ("import", "make agents of a file, or of DeerFlow's folders"),
        ("history", "an agent's versions, the newest first"),
        ("rollback", "make an agent what it was in a version"),
    ):
        subparser = add(name, _agent, text, agents)
        subparser.set_defaults(verb=name)
        subparser.add_argument("--user", default="default", metavar="ID", help="whose (default: default)")
        if name in ("show", "export", "history", "rollback"):
            subparser.add_argument("name")
        if name == "rollback":
            subparser.add_argument("version", type=count)
        if name == "import":
            subparser.add_argument("path", type=Path)
            subparser.add_argument("--name", help="call it so")
            subparser.add_argument("--replace", action="store_true", help="replace an agent of that name")

    views = add("projections", None, "the read models").add_subparsers(required=True, metavar="WHAT")
    add("rebuild", _projections_rebuild, "let the running server build them again from the log", views)

    prompts = add("prompt", None, "the system prompt").add_subparsers(required=True, metavar="WHAT")
    subparser = add("show", _prompt_show, "what a run would get, and on standard error its hash", prompts)
    subparser.add_argument("--agent", metavar="NAME", help="of this custom agent")
    subparser.add_argument("--user", default="default", metavar="ID", help="whose agent that is (default: default)")
    subparser.add_argument("--bootstrap", action="store_true", help="of the agent that makes agents")
    subparser.add_argument("--plan", action="store_true", help="with a list of steps")

    skills = add("skill", None, "skills: instructions for the agent").add_subparsers(required=True, metavar="WHAT")
    for name, command, text, argument in (
        ("list", _skill_list, "the skills, and why others are not used", ""),
        ("show", _skill_show, "the instructions of a skill", "name"),
        ("install", _skill_install, "install a folder or a .skill archive for a user, after a check", "source"),
        ("enable", _skill_enable, "let agents use a skill", "name"),
        ("disable", _skill_disable, "let agents use a skill no longer", "name"),
        ("new", _skill_new, "write a skill to begin with", "name"),
        ("check", _skill_check, "look for what keeps a folder or an archive from being installed", "source"),
        ("test", _skill_test, "parse its scripts and run its tests/ in a sandbox", "source"),
    ):
        subparser = add(name, command, text, skills)
        if argument:
            subparser.add_argument(argument, type=Path if argument == "source" else str)
        if name == "new":
            subparser.add_argument("--to", type=Path, default=Path(), metavar="DIR", help="default: here")
        elif argument != "source" or name == "install":
            subparser.add_argument("--user", default="default", metavar="ID", help="default: default")

    config = add("config", None, "the configuration file").add_subparsers(required=True, metavar="WHAT")
    add("check", _config_check, "look for mistakes", config)
    reference = add("reference", _config_reference, "explain the keys: type, default, meaning", config)
    reference.add_argument("key", nargs="?", default="", help="a key, a section, or a part of a name (default: all)")
    return top


# ── serve and chat ──────────────────────────────────────────────────────────────────────────────────────────────────


async def _serve(arguments: argparse.Namespace) -> int:
    import anyio

    from actors import compose
    from core.config.load import load

    if arguments.reload:
        return await _reload(arguments)
    _log_to_stderr(load(arguments.config).log_level)
    with anyio.CancelScope() as starting:
        stop = _on_signals(starting)
        async with compose.serve(options_of(arguments)) as url:
            starting.shield = True  # from here on nothing is cancelled: leaving the block drains
            print(f"Sika is ready on {url} (Ctrl-C stops it)", flush=True)
            await stop.wait()
    _end_within(LEAVE_SECONDS, OK, "threads do not end")
    return OK


async def _reload(arguments: argparse.Namespace) -> int:
    import anyio

    from channels.terminal import reload
    from core.config.load import find, load

    config = load(arguments.config)
    command = [part for part in sys.argv[1:] if not (part.startswith("--r") and "--reload".startswith(part))]
    with anyio.CancelScope() as serving:
        _on_signals(serving)
        await reload.serve(command, reload.watched(find(arguments.config) or Path("config.yaml"), config))
    return OK


def _end_within(seconds: float, code: int, reason: str) -> None:
    """Kills the process after this time, even if threads of libraries still run."""
    import threading
    import time

    def end() -> None:
        import structlog

        time.sleep(seconds)
        names = [thread.name for thread in threading.enumerate() if thread.is_alive() and not thread.daemon]
        structlog.get_logger("sika").error("ending without them", reason=reason, seconds=seconds, threads=names)
        os._exit(code)

    threading.Thread(target=end, name="end", daemon=True).start()


def _on_signals(starting: anyio.CancelScope, seconds: float = GRACE_SECONDS) -> anyio.Event:
    """Handles signals: the first SIGINT or SIGTERM cancels the start or sets the event, the second ends the process, as
    does the end of `seconds`."""
    import asyncio
    import signal

    import anyio

    stop = anyio.Event()

    def received(number: int) -> None:
        if stop.is_set():
            os._exit(128 + number)
        stop.set()
        _end_within(seconds, FAILED, "not drained in time")
        if not starting.shield:
            starting.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, received, number)
    return stop


async def _chat(arguments: argparse.Namespace) -> int:
    from dataclasses import replace

    from channels.client.servers import announced, healthy
    from channels.terminal.prompt import piped
    from core.errors import Unavailable

    options = options_of(arguments)
    terminal = sys.stdin is None or sys.stdin.isatty()
    text = "" if terminal or arguments.message is None else await piped()
    if arguments.url:
        if not await healthy(arguments.url.rstrip("/")):
            raise Unavailable(f"{arguments.url}: no server answers there")
        return await _talk(arguments, text, arguments.url, lambda: None)
    url = announced(options.home)
    if url is not None and await healthy(url):
        return await _talk(arguments, text, url, lambda: announced(options.home))
    print("no server is running: starting one for this talk", file=sys.stderr)
    from actors import compose

    async with compose.serve(replace(options, port=0)) as url:
        return await _talk(arguments, text, url, lambda: None)


async def _talk(arguments: argparse.Namespace, piped: str, url: str, locate: Callable[[], str | None]) -> int:
    from functools import partial

    from channels.client.aio import AsyncSikaClient
    from channels.client.errors import ClientError
    from channels.terminal.chat import API_KEY, COMMANDS, Chat, explained
    from channels.terminal.files import host_path
    from channels.terminal.interrupts import interrupts
    from channels.terminal.prompt import Piped, Prompt
    from channels.terminal.screen import Screen
    from core.errors import SikaError

    def shown(thread: str, path: str) -> str:
        return f"{url}/api/threads/{thread}/artifacts{path}" if arguments.url else host_path(home, thread, path)

    home = options_of(arguments).home
    key = os.environ.get(API_KEY) or None
    connect = partial(AsyncSikaClient, url=url, api_key=key, locate=locate, plan_mode=arguments.plan)
    try:
        with interrupts() as pressed:
            screen = Screen(sys.stdout, sys.stderr)
            thread, latest = arguments.thread, arguments.latest
            async with Chat(connect, pressed, screen, thread=thread, latest=latest, locate=shown) as chat:
                if arguments.message is not None:
                    return await chat.once(arguments.message, piped)
                history = home / "chat_history" if home.is_dir() else None
                lines = Prompt(history, COMMANDS, chat.threads) if sys.stdin.isatty() else Piped()
                return await chat.converse(lines, url)
    except ClientError as error:
        raise SikaError(explained(error)) from error


async def _acp(arguments: argparse.Namespace) -> int:
    from dataclasses import replace

    from actors import compose
    from channels.acp.agent import serve
    from channels.client.aio import AsyncSikaClient
    from channels.client.errors import ClientError
    from channels.client.servers import announced, healthy
    from channels.terminal.chat import API_KEY, explained
    from core.errors import SikaError

    options = options_of(arguments)
    url = arguments.url or announced(options.home)

    async def talk(url: str, locate: Callable[[], str | None]) -> int:
        key = os.environ.get(API_KEY) or None
        try:
            async with AsyncSikaClient(url=url, api_key=key, locate=locate, plan_mode=True) as client:
                await serve(client)
        except ClientError as error:
            raise SikaError(explained(error)) from error
        return OK

    if arguments.url:
        return await talk(arguments.url, lambda: None)
    if url is not None and await healthy(url):
        return await talk(url, lambda: announced(options.home))
    async with compose.serve(replace(options, port=0)) as url:
        return await talk(url, lambda: None)


async def _threads(arguments: argparse.Namespace) -> int:
    from datetime import UTC, datetime

    import anyio.to_thread

    from channels.terminal.text import age, one_line
    from core.views.overview import newest

    home = options_of(arguments).home
    now = datetime.now(UTC)
    for thread in await anyio.to_thread.run_sync(newest, home, arguments.user, arguments.limit):
        facts = f"{one_line(thread.user, 36):<10} {thread.status:<11} {age(thread.updated_at, now):>6}"
        print(f"{thread.thread_id:<36}  {facts}  {one_line(thread.title, 60) or '(empty)'}")
    return OK


# ── init, doctor and config ───────────────────────────────────────────────────────────────────────────────────────────


async def _init(arguments: argparse.Namespace) -> int:
    from channels.terminal import init
    from channels.terminal.prompt import ask

    path = Path(arguments.config or os.environ.get("SIKA_CONFIG") or "config.yaml").expanduser().absolute()
    if path.exists():
        raise init.refusal(path)
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
    from channels.terminal import doctor
    from channels.terminal.text import style_of
    from core.config.load import parse

    [model] = parse(text, environ={**os.environ, variable: key}).models
    check = partial(doctor.model, model, lambda _: build(model), call=True)
    return await doctor.examine([("model", check)], print, style_of(sys.stdout))


async def _doctor(arguments: argparse.Namespace) -> int:
    from dataclasses import replace
    from functools import partial
    from urllib.parse import urlsplit

    from actors import compose
    from channels.client.servers import announced, healthy
    from channels.terminal import doctor
    from channels.terminal.text import style_of
    from core.config.load import load
    from core.errors import Invalid

    options = options_of(arguments)
    checks: list[tuple[str, Check]] = [
        ("Python", doctor.python),
        ("configuration", partial(doctor.configuration, options.config, options.home)),
        ("data directory", partial(doctor.disk, options.home)),
    ]
    url = announced(options.home)
    running = url if url is not None and await healthy(url) else None
    if running:
        checks.append(("server", partial(doctor.server, running)))
    try:
        config = load(options.config)
    except Invalid:  # reported by the check; checks that need the configuration are impossible
        return await doctor.examine(checks, print, style_of(sys.stdout))
    checks.append(("loading", partial(doctor.loading, partial(compose.problems, config))))
    external = options.nats or config.nats.url
    address = compose.running_server(options.home) if running else None
    if external is None and address is not None and doctor.lock_holder(options.home) is None:
        external = address.nats  # its server was started with --nats, or with another configuration
        options = replace(options, nats=external)
    checks.append(("NATS", partial(_cluster, options, config)) if external else ("nats-server", doctor.nats_server))
    port = arguments.port
    if port is None:
        port = urlsplit(running).port if running else config.http.port
    checks += [
        ("port", partial(doctor.port, options.home, config.http.host, port or config.http.port)),
        ("sandbox", partial(_sandbox, options, config)),
        ("sandbox", partial(_strength, options, config)),
        ("plug-ins", partial(_plugged, config)),
        *_models(options, config, arguments.call),
    ]
    return await doctor.examine(checks, print, style_of(sys.stdout))


async def _cluster(options: Options, config: Config) -> list[Finding]:
    from actors import compose
    from channels.terminal import cluster

    async with compose.endpoint(options, config) as endpoint:
        return await cluster.examine(endpoint)


async def _plugged(config: Config) -> list[Finding]:
    import anyio.to_thread

    from actors import compose
    from channels.terminal import plugins
    from core.errors import Invalid

    try:
        listed = await anyio.to_thread.run_sync(compose.plugins_of, config, abandon_on_cancel=True)
    except Invalid:
        return []  # of what the configuration names: the check of what can be loaded says it
    return plugins.findings([plugin.listed() for plugin in listed])


async def _sandbox(options: Options, config: Config) -> list[Finding]:
    """Checks the sandbox provider that a server would use."""
    from actors import compose
    from channels.terminal.doctor import Finding
    from core.errors import Invalid, Unavailable

    settings = config.sandbox
    stronger: Mapping[str, str] = {}
    try:
        if settings.provider == "auto":
            provider, stronger = await compose.strongest_sandbox(options.home, config)
        else:
            provider = await compose.sandbox_provider(options.home, config)
        problem = await provider.check()
    except (Unavailable, Invalid) as error:
        return [Finding("sandbox", "fail", str(error))]
    if stronger and provider.name == "host" and not settings.allow_host_bash:
        text = f"{', '.join(stronger)} does not work here: the agent has file tools, but cannot run commands"
        return [Finding("sandbox", "warn", text, " ".join(stronger.values()))]
    if problem:
        return [Finding("sandbox", "fail", f"{provider.name} does not work", problem)]
    if provider.name == "host" and settings.allow_host_bash:
        text = "host: commands run unconfined as this user"
        return [Finding("sandbox", "warn", text, "choose sandbox.provider: bubblewrap unless you trust every prompt")]
    if provider.name == "host":
        return [Finding("sandbox", "ok", "host, file tools only")]
    because = f", as {', '.join(stronger)} does not work here" if stronger else ""
    chosen = ", the strongest that works here" if settings.provider == "auto" else ""
    return [Finding("sandbox", "ok", provider.name + chosen + because, " ".join(stronger.values()))]


async def _strength(options: Options, config: Config) -> list[Finding]:
    """Returns which limits of the sandbox are in force, and its gaps. Whether it works is for `_sandbox`."""
    from actors import compose
    from channels.terminal.doctor import Finding
    from core.errors import Invalid, Unavailable
    from core.ports.sandbox import Explains

    try:
        provider = await compose.sandbox_provider(options.home, config)
    except (Unavailable, Invalid):
        return []
    if not isinstance(provider, Explains):
        return []
    weak = [Finding("sandbox", "warn", weakness) for weakness in provider.weaknesses()]
    return [Finding("sandbox", "ok", provider.strength()), *weak]


def _models(options: Options, config: Config, call: bool) -> list[tuple[str, Check]]:
    from functools import partial

    from channels.terminal import doctor
    from core.config.load import ConfigSource

    if not config.models:
        return [("model", doctor.demo)]
    from adapters.models.configured import Configured

    build = partial(Configured(ConfigSource(options.config)).get, thinking=False, reasoning_effort=None)
    return [("model", partial(doctor.model, model, build, call=call)) for model in config.models]


async def _config_check(arguments: argparse.Namespace) -> int:
    from actors import compose
    from core.config.load import find, load
    from core.errors import Invalid

    config = load(arguments.config)
    for warning in config.warnings:
        print(f"warning: {warning}")
    if problems := compose.problems(config):
        raise Invalid("\n  ".join(problems))
    print(f"ok: {find(arguments.config) or 'no config.yaml, everything is default'}")
    return OK


async def _config_reference(arguments: argparse.Namespace) -> int:
    from channels.terminal.reference import lines

    for line in lines(arguments.key):
        print(line)
    return OK


async def _prompt_show(arguments: argparse.Namespace) -> int:
    from actors import compose
    from actors.lead.policies.todos import Todos
    from actors.lead.setup.prompt import short_hash
    from core.events import RunRequested

    context = {
        "agent_name": arguments.agent,
        "is_bootstrap": arguments.bootstrap,
        "is_plan_mode": arguments.plan,
    }
    options = options_of(arguments)
    async with compose.attach(options) as system:
        plan = await compose.plan(system, RunRequested(context=context), arguments.user, options)
    prompt = "\n\n".join([plan.prompt, *([Todos().system_prompt] if plan.todos else [])])
    print(prompt)
    print(f"hash: {short_hash(prompt)}", file=sys.stderr)
    if plan.todos:
        print(f"hash without the list of steps, as run.started has it: {short_hash(plan.prompt)}", file=sys.stderr)
    return OK


# ── actors, dlq and projections ─────────────────────────────────────────────────────────────────────────────────────


async def _actors(arguments: argparse.Namespace) -> int:
    import msgspec

    from actors import compose
    from channels.terminal import actors
    from core.runtime.vitals import overview

    async with compose.attach(options_of(arguments)) as system:
        report = await overview(system.bus, await system.log.last())
    print(msgspec.json.encode(report).decode() if arguments.json else "\n".join(actors.lines(report)))
    return OK


async def _new(arguments: argparse.Namespace) -> int:
    from channels.terminal import new

    print(new.write(arguments.kind, arguments.name, arguments.dir))
    print("next: pip install -e that folder, sika plugins, and pytest in it", file=sys.stderr)
    return OK


async def _asyncapi(arguments: argparse.Namespace) -> int:
    from importlib.metadata import version

    import anyio.to_thread
    import msgspec

    from actors import compose
    from core.config.load import load
    from core.runtime.asyncapi import document

    config = load(arguments.config)
    await anyio.to_thread.run_sync(compose.plugins_of, config, abandon_on_cancel=True)  # imports all event types
    print(msgspec.json.format(msgspec.json.encode(document(version("sika"), config.nats.prefix))).decode())
    return OK


async def _plugins(arguments: argparse.Namespace) -> int:
    import anyio.to_thread
    import msgspec
    from rich.console import Console

    from actors import compose
    from channels.terminal import plugins
    from core.config.load import load

    config = load(arguments.config)
    listed = [p.listed() for p in await anyio.to_thread.run_sync(compose.plugins_of, config, abandon_on_cancel=True)]
    if arguments.json:
        print(msgspec.json.encode(listed).decode())
    elif listed:
        Console(soft_wrap=not sys.stdout.isatty()).print(plugins.table(listed))
    else:
        print("no plug-ins: no installed package has an entry point of a group sika.*", file=sys.stderr)
    return FAILED if any(plugin.problem for plugin in listed) else OK


async def _dlq_list(arguments: argparse.Namespace) -> int:
    from actors import compose
    from channels.terminal import dlq

    count = 0
    async with compose.attach(options_of(arguments)) as system:
        async for letter in dlq.letters(system.bus):
            count += 1
            print(letter.line())
    print(f"{count} dead letters" if count else "no dead letters", file=sys.stderr)
    return OK


async def _dlq_redrive(arguments: argparse.Namespace) -> int:
    from actors import compose
    from channels.terminal import dlq

    async with compose.attach(options_of(arguments)) as system:
        sent = await dlq.redrive(system.bus, system.queue, arguments.letters)
    for letter in sent:
        print(letter.line())
    print(f"{len(sent)} sent again", file=sys.stderr)
    return FAILED if set(arguments.letters) - {letter.seq for letter in sent} else OK


async def _mcp_serve(arguments: argparse.Namespace) -> int:
    from channels.client.servers import announced
    from channels.terminal import mcp_serve
    from channels.terminal.chat import API_KEY
    from core.errors import Unavailable

    home, url = options_of(arguments).home, (arguments.url or "").rstrip("/")
    locate = (lambda: url) if url else (lambda: announced(home))
    if locate() is None:
        raise Unavailable(f"no server is running in {home}; start one with `sika serve`, or name one with --url")
    await mcp_serve.serve(locate, os.environ.get(API_KEY) or None)
    return OK


async def _mcp_login(arguments: argparse.Namespace) -> int:
    from channels.terminal import mcp_login

    async with _client(arguments) as client:
        browser = not arguments.no_browser and sys.stdout.isatty()
        await mcp_login.login(client, arguments.server, sys.stdout, register=arguments.register, browser=browser)
    return OK


async def _mcp_logout(arguments: argparse.Namespace) -> int:
    from channels.terminal import mcp_login

    async with _client(arguments) as client:
        await mcp_login.logout(client, arguments.server, sys.stdout)
    return OK


@asynccontextmanager
async def _mcp(arguments: argparse.Namespace) -> AsyncIterator[tuple[System, Servers]]:
    """The running system, and its MCP servers."""
    from actors import compose
    from core.config.load import ConfigSource
    from core.mcp.servers import Directory as Servers
    from core.seal import Seal

    options = options_of(arguments)
    async with compose.attach(options) as system:
        yield system, Servers(system.log, ConfigSource(options.config).current, Seal(options.home))


async def _mcp_list(arguments: argparse.Namespace) -> int:
    from channels.terminal import mcp

    async with _mcp(arguments) as (_, servers):
        print("\n".join(await mcp.servers(servers)))
    return OK


async def _mcp_add(arguments: argparse.Namespace) -> int:
    from channels.terminal import mcp
    from core.config import extensions, load

    config = load.find(arguments.config)
    folder = config.parent if config else Path.cwd()
    file = extensions.find(folder, os.environ) or folder / extensions.NAMES[0]
    if arguments.url:
        transport = "sse" if arguments.sse else "http"
        settings = {"type": transport, "url": arguments.url, "headers": mcp.pairs(arguments.header, ":")}
    else:
        program = [*arguments.program[arguments.program[:1] == ["--"] :], ""]
        settings = {"command": program[0], "args": program[1:-1], "env": mcp.pairs(arguments.env, "=")}
    mcp.add(file, arguments.server, settings | ({"trusted": True} if arguments.trusted else {}))
    print(f"{arguments.server} is in {file}; `sika mcp test {arguments.server}` tries it")
    return OK


async def _mcp_test(arguments: argparse.Namespace) -> int:
    from channels.terminal import mcp

    async with _mcp(arguments) as (system, servers):
        lines, good = await mcp.test(servers, system.call, arguments.server, mcp.USER)
    print("\n".join(lines))
    return OK if good else FAILED


async def _mcp_tools(arguments: argparse.Namespace) -> int:
    from channels.terminal import mcp

    async with _mcp(arguments) as (_, servers):
        print("\n".join(await mcp.tools(servers, arguments.server)))
    return OK


async def _mcp_call(arguments: argparse.Namespace) -> int:
    from channels.terminal import mcp

    async with _mcp(arguments) as (system, servers):
        text, good = await mcp.call(servers, system.call, arguments.tool, arguments.arguments, mcp.USER)
    print(text)
    return OK if good else FAILED


# ── chat platforms ──────────────────────────────────────────────────────────────────────────────────────────────────


async def _channel(arguments: argparse.Namespace) -> int:
    import anyio

    from actors import accounts
    from core.config.load import ConfigSource, home

    folder, source = home(arguments.home), ConfigSource(arguments.config)
    _log_to_stderr(source.current().log_level)
    name = accounts.named(arguments.platform, arguments.account)
    with anyio.CancelScope() as serving:
        if arguments.supervised:
            endpoint = await accounts.linked(source.current(), lambda: _end(serving))
        else:
            endpoint = accounts.endpoint(folder, source.current(), arguments.nats)
        _on_signals(serving, accounts.STOP_SECONDS)
        await accounts.serve(name, folder, source, endpoint, arguments.supervised)
    _end_within(LEAVE_SECONDS, OK, "threads do not end")
    return OK


def _end(serving: anyio.CancelScope) -> None:
    """Ends the process of an account, whose server is gone."""
    from actors import accounts

    _end_within(accounts.STOP_SECONDS, FAILED, "not ended in time")
    serving.cancel()


@asynccontextmanager
async def _accounts(arguments: argparse.Namespace) -> AsyncIterator[tuple[System, Accounts, Config]]:
    """The running system, and its accounts of chat platforms."""
    from actors import compose
    from core.chat.account import Accounts
    from core.config.load import ConfigSource
    from core.seal import Seal

    options = options_of(arguments)
    source = ConfigSource(options.config)
    async with compose.attach(options) as system:
        yield system, Accounts(system.log, source.current, Seal(options.home)), source.current()


async def _channels(arguments: argparse.Namespace) -> int:
    import msgspec

    from channels.terminal import channels
    from core.chat.status import statuses

    async with _accounts(arguments) as (system, accounts, _):
        enabled = {name: account.settings.enabled for name, account in (await accounts.all()).items()}
        found = await statuses(system.bus, enabled)
    if arguments.json:
        print(msgspec.json.format(msgspec.json.encode(found)).decode())
    else:
        print("\n".join(channels.lines(found)))
    return OK


async def _channels_test(arguments: argparse.Namespace) -> int:
    from actors import accounts as process
    from channels.terminal import channels
    from core.chat import platforms

    name = process.named(arguments.platform, arguments.account)
    async with _accounts(arguments) as (_, accounts, config):
        account = await process.existing(accounts, name)
    lines, good = await channels.test(name, platforms.connect(account, config), raw=arguments.json)
    print("\n".join(lines))
    return OK if good else FAILED


@asynccontextmanager
async def _client(
    arguments: argparse.Namespace, hint: str = "start one with `sika serve`"
) -> AsyncIterator[AsyncSikaClient]:
    """A client of the running server; its errors are lines for people."""
    from channels.client.aio import AsyncSikaClient
    from channels.client.errors import ClientError
    from channels.client.servers import announced, healthy
    from channels.terminal.chat import API_KEY, explained
    from core.errors import SikaError, Unavailable

    home = options_of(arguments).home
    url = announced(home)
    if url is None or not await healthy(url):
        raise Unavailable(f"no server is running in {home}; {hint}")
    try:
        async with AsyncSikaClient(url=url, api_key=os.environ.get(API_KEY) or None) as client:
            yield client
    except ClientError as error:
        raise SikaError(explained(error)) from error


async def _projections_rebuild(arguments: argparse.Namespace) -> int:
    async with _client(arguments, "without one, its views.db may simply be deleted") as client:
        await client.rebuild_projections()
    print("rebuilding")
    return OK


# ── accounts ────────────────────────────────────────────────────────────────────────────────────────────────────────


@asynccontextmanager
async def _directory(arguments: argparse.Namespace) -> AsyncIterator[Directory]:
    from actors import compose
    from core.identity.directory import Directory
    from core.identity.installation import Installation

    options = options_of(arguments)
    async with compose.attach(options) as system:
        yield Directory(system.log, Installation(options.home))


def _read_password(arguments: argparse.Namespace) -> str | None:
    return sys.stdin.readline().rstrip("\r\n") if arguments.password_stdin else None


def _show_password(generated: str | None) -> None:
    """Prints a generated password, alone on standard output; the explanation goes to stderr."""
    if generated is not None:
        print("password, to be changed when signing in; it is not shown again:", file=sys.stderr)
        print(generated)


async def _user_create(arguments: argparse.Namespace) -> int:
    from channels.terminal import accounts

    password = _read_password(arguments)
    async with _directory(arguments) as directory:
        account, generated = await accounts.create(
            directory, arguments.email, password, role=arguments.role, user=arguments.id
        )
    print(f"{account.id}  {account.role}  {account.email}", file=sys.stderr)
    _show_password(generated)
    return OK


async def _user_list(arguments: argparse.Namespace) -> int:
    from channels.terminal import accounts

    async with _directory(arguments) as directory:
        for line in accounts.people(await directory.accounts()):
            print(line)
    return OK


async def _user_password(arguments: argparse.Namespace) -> int:
    from channels.terminal import accounts

    password = _read_password(arguments)
    async with _directory(arguments) as directory:
        account, generated = await accounts.set_password(directory, arguments.user, password)
    print(f"{account.email}: all sessions have ended", file=sys.stderr)
    _show_password(generated)
    return OK


async def _user_role(arguments: argparse.Namespace) -> int:
    async with _directory(arguments) as directory:
        account = await directory.appoint(arguments.user, arguments.role, actor="cli")
    print(f"{account.email}: {account.role}")
    return OK


async def _user_disable(arguments: argparse.Namespace) -> int:
    async with _directory(arguments) as directory:
        account = await directory.disable(arguments.user, actor="cli")
    print(f"{account.email}: disabled")
    return OK


async def _user_enable(arguments: argparse.Namespace) -> int:
    async with _directory(arguments) as directory:
        account = await directory.enable(arguments.user, actor="cli")
    print(f"{account.email}: enabled")
    return OK


async def _key_create(arguments: argparse.Namespace) -> int:
    from channels.terminal import accounts

    expires = None if arguments.expires is None else accounts.moment(arguments.expires)
    async with _directory(arguments) as directory:
        key, text = await directory.create_key(arguments.user, arguments.scopes, expires, actor=accounts.ACTOR)
    print(f"key {key.id}; it is not shown again:", file=sys.stderr)
    print(text.reveal())
    return OK


async def _key_list(arguments: argparse.Namespace) -> int:
    from channels.terminal import accounts

    async with _directory(arguments) as directory:
        for line in accounts.keys(await directory.accounts(), arguments.user):
            print(line)
    return OK


async def _key_revoke(arguments: argparse.Namespace) -> int:
    async with _directory(arguments) as directory:
        await directory.revoke_key(arguments.key, actor="cli")
    print(f"{arguments.key}: revoked")
    return OK


async def _agent(arguments: argparse.Namespace) -> int:
    from actors import compose
    from channels.terminal.agents import ACTOR, Shelf
    from core.config.load import load
    from core.user.agents import Rosters

    def warn(text: str) -> None:
        print(f"warning: {text}", file=sys.stderr)

    options = options_of(arguments)
    async with compose.attach(options) as system:
        shelf = Shelf(Rosters(system.log, actor=ACTOR), arguments.user, load(options.config), warn)
        match arguments.verb:
            case "list":
                lines = await shelf.list()
            case "show":
                lines = await shelf.show(arguments.name)
            case "export":
                lines = [await shelf.export(arguments.name)]
            case "import":
                lines = await shelf.take(arguments.path, arguments.name, replace=arguments.replace)
            case "history":
                lines = await shelf.history(arguments.name)
            case _:
                lines = await shelf.rollback(arguments.name, arguments.version)
    print("\n".join(lines))
    return OK


# ── parts ───────────────────────────────────────────────────────────────────────────────────────────────────────────


# ── skills ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@asynccontextmanager
async def _library(arguments: argparse.Namespace) -> AsyncIterator[Library]:
    from actors import compose
    from core.config.load import ConfigSource

    options = options_of(arguments)
    async with compose.attach(options) as system:
        yield compose.library(system.log, ConfigSource(options.config), options.home)


async def _skill_list(arguments: argparse.Namespace) -> int:
    from channels.terminal import skill

    async with _library(arguments) as library:
        for line in skill.lines(await library.of(arguments.user)):
            print(line)
    return OK


async def _skill_show(arguments: argparse.Namespace) -> int:
    async with _library(arguments) as library:
        skill = await library.get(arguments.user, arguments.name)
    print(f"{skill.folder} ({'on' if skill.enabled else 'off'}), for agents {skill.path}", file=sys.stderr)
    print(skill.text())
    return OK


async def _skill_install(arguments: argparse.Namespace) -> int:
    from actors.skills.writer import Writer
    from adapters.models.configured import Configured
    from channels.terminal import skill
    from core.config.load import ConfigSource

    async with _library(arguments) as library:
        source = ConfigSource(options_of(arguments).config)
        writer = Writer(library, Configured(source), source, actor=skill.ACTOR)
        print(await writer.install(arguments.user, arguments.source, skill.taken))
    return OK


async def _skill_enable(arguments: argparse.Namespace) -> int:
    return await _skill_switch(arguments, True)


async def _skill_disable(arguments: argparse.Namespace) -> int:
    return await _skill_switch(arguments, False)


async def _skill_switch(arguments: argparse.Namespace, enabled: bool) -> int:
    from channels.terminal import skill

    async with _library(arguments) as library:
        known = await library.get(arguments.user, arguments.name)
        await library.switch(arguments.user, known, enabled, actor=skill.ACTOR)
    return OK


async def _skill_new(arguments: argparse.Namespace) -> int:
    from channels.terminal import skill

    print(skill.create(arguments.name, arguments.to))
    return OK


async def _skill_check(arguments: argparse.Namespace) -> int:
    from channels.terminal import skill

    wrong, remarks = skill.report(arguments.source)
    for line in wrong:
        print(line)
    for line in remarks:
        print(f"remark: {line}")
    return FAILED if wrong else OK


async def _skill_test(arguments: argparse.Namespace) -> int:
    from actors import compose
    from channels.terminal import skill
    from core.config.load import ConfigSource
    from core.skills.folders import Folders
    from core.skills.library import folders_of

    source = ConfigSource(options_of(arguments).config)
    failed, others = False, Folders(folders_of(source.current(), source.project)).scan().skills.values()
    async for title, problem in skill.test(arguments.source, compose.test_sandbox(source.current()), list(others)):
        failed = failed or bool(problem)
        print(f"{'FAILED' if problem else 'ok'}  {title}" + (f"\n{problem}" if problem else ""))
    return FAILED if failed else OK


def _log_to_stderr(level: str) -> None:
    from core.observe import logs

    logs.configure(level, sys.stderr)


def _has_uvloop() -> bool:
    from importlib.util import find_spec

    return find_spec("uvloop") is not None


def _port(text: str) -> int:
    if text.isdecimal() and int(text) <= 65535:
        return int(text)
    raise argparse.ArgumentTypeError(f"a port is a number from 0 to 65535, got {text!r}")


def _names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if not names:
        raise argparse.ArgumentTypeError("name at least one actor")
    return names

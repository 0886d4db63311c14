"""`sika init`: asks for a provider and a key, and writes a first `config.yaml`, with the key in `.env` beside it."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import dotenv

from channels.cli.common import FAILED, OK
from channels.cli.verbs import Parser
from channels.terminal.console.lines import ask
from channels.terminal.text import style_of
from core import reasons
from core.config.load import parse
from core.config.model_providers import ADDRESSES, CUSTOM, NO_KEY, PROVIDERS
from core.errors import Invalid, Refused


def arguments(parser: Parser) -> None:
    parser.runs(_init)
    names = "openai, deepseek, openrouter, groq, mistral, ollama, anthropic, google, bedrock, azure, custom"
    parser.add_argument("--provider", metavar="NAME", help=names)
    parser.add_argument("--base-url", metavar="URL", help="of an OpenAI-compatible endpoint")
    parser.add_argument("--model", metavar="NAME", help="as the provider calls it")
    key = parser.add_mutually_exclusive_group()
    key.add_argument("--key-env", metavar="NAME", help="an environment variable that has the key")
    key.add_argument("--key-stdin", action="store_true", help="read the key from standard input")
    parser.add_argument("--no-call", action="store_true", help="do not try a call, which may cost money")


async def _init(arguments: argparse.Namespace) -> int:
    path = Path(arguments.config or os.environ.get("SIKA_CONFIG") or "config.yaml").expanduser().absolute()
    if path.exists():
        raise refusal(path)
    read_variables(path.with_name(".env"))
    key = sys.stdin.readline().strip() if arguments.key_stdin else ""
    variable = arguments.key_env or ""
    wishes = Wishes(arguments.provider or "", arguments.base_url or "", arguments.model or "", variable, key)
    read = ask if sys.stdin.isatty() and not arguments.key_stdin else None
    choice = await choose(wishes, read)
    works = arguments.no_call or await _try(written(choice), choice.variable, choice.key) == OK
    if not works and (read is None or await read("Write it all the same (yes, no)?", "no", False) != "yes"):
        print("nothing was written", file=sys.stderr)
        return FAILED
    for file in write(path, choice):
        print(f"written: {file}")
    print("next: sika serve" if path.parent == Path.cwd() else f"next: cd {path.parent}, and there: sika serve")
    return OK


async def _try(text: str, variable: str, key: str) -> int:
    """Tries one call of the model of a configuration that is not written yet."""
    from adapters.models.configured import build
    from channels.cli import checks as doctor

    [model] = parse(text, environ={**os.environ, variable: key}).models
    check = partial(doctor.model, model, lambda _: build(model), call=True)
    return await doctor.examine([("model", check)], print, style_of(sys.stdout))


_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

Read = Callable[[str, str, bool], Awaitable[str]]
"""Prompts a person: question, default answer, and whether the answer is a secret."""


class Wishes(NamedTuple):
    """Options of the command line. `variable` has the key already; without it, `key` goes into `.env`."""

    provider: str = ""
    base_url: str = ""
    model: str = ""
    variable: str = ""
    key: str = ""


class Choice(NamedTuple):
    """A model and its key. Without a `variable` there is no key; `stored`: the variable comes from elsewhere."""

    model: str
    base_url: str | None
    use: str
    variable: str
    key: str
    stored: bool


def read_variables(path: Path) -> None:
    """Brings the variables of a `.env` file into the environment, where they override nothing. Raises `Invalid`."""
    try:
        dotenv.load_dotenv(path, interpolate=False)
    except (OSError, UnicodeDecodeError) as error:
        raise Invalid(f"{path}: {reasons.of_file(error)}") from None


async def choose(wishes: Wishes, read: Read | None) -> Choice:
    """Completes the options by prompts. Raises `Invalid` for a wrong option, or a missing one without prompts."""

    async def ask(value: str, flag: str, question: str, default: str = "", *, secret: bool = False) -> str:
        if not value and read is None and default:
            return default
        if not value and read is None:
            raise Invalid(f"init: {flag} is missing")
        return value or (await read(question, default, secret) if read is not None else "").strip() or default

    name = await ask(wishes.provider, "--provider", f"Provider ({', '.join(PROVIDERS)})", "openai")
    if name not in PROVIDERS:
        raise Invalid(f"--provider: {name} unknown; there are: {', '.join(PROVIDERS)}")
    provider = PROVIDERS[name]
    base_url = wishes.base_url or provider.base_url
    if name in ADDRESSES:
        base_url = await ask(wishes.base_url, "--base-url", f"Base URL (as {ADDRESSES[name]})")
    if base_url is not None:
        base_url = _address(base_url)
    model = await ask(wishes.model, "--model", "Model, as the provider calls it", provider.example)
    if not model:
        raise Invalid("init: --model is missing")
    if wishes.variable:
        return Choice(model, base_url, provider.use, wishes.variable, _from_environment(wishes.variable), True)
    key = wishes.key
    if provider.variable and not key and (read is not None or name != CUSTOM):
        flag = "--key-env or --key-stdin"
        key = await ask(key, flag, "API key (empty if it needs none)" if name == CUSTOM else "API key", secret=True)
    return Choice(model, base_url, provider.use, provider.variable if key else "", _valid_key(key), False)


def written(choice: Choice) -> str:
    """Returns the content of the configuration file."""
    lines = [f"    model: {json.dumps(choice.model)}"]
    if choice.use:
        lines.append(f"    use: {choice.use}")
    if choice.variable or not choice.use:
        lines.append(f"    api_key: ${choice.variable}" if choice.variable else f"    api_key: {NO_KEY}")
    if choice.base_url:
        lines.append(f"    base_url: {json.dumps(choice.base_url)}")
    return TEMPLATE.replace("    model:\n", "\n".join(lines) + "\n")


def write(path: Path, choice: Choice) -> list[Path]:
    """Writes the file, and the key into `.env` beside it; returns the files. Raises `Refused` rather than overwrite."""
    files = [path]
    if choice.variable and not choice.stored and _store(path.with_name(".env"), choice):
        files.append(path.with_name(".env"))
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(written(choice))
    except FileExistsError:
        raise refusal(path) from None
    except OSError as error:
        raise Invalid(f"{path}: {error.strerror}") from None
    return files


def refusal(path: Path) -> Refused:
    return Refused(f"{path}: is there already; remove it, or name another file with --config")


def _store(path: Path, choice: Choice) -> bool:
    """Adds the key to `.env`, closed to other users; returns False if it was there."""
    try:
        present = dotenv.dotenv_values(path, interpolate=False).get(choice.variable)
        if present == choice.key:
            return False
        if present is not None:
            raise Refused(f"{path}: {choice.variable} is there already, with another value; --key-env uses that one")
        before = path.read_bytes() if path.exists() else b""
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as file:
            path.chmod(0o600)
            file.write((b"\n" if before and not before.endswith(b"\n") else b"") + _line(choice))
    except OSError as error:
        raise Invalid(f"{path}: {error.strerror}") from None
    return True


def _line(choice: Choice) -> bytes:
    return f"{choice.variable}='{choice.key}'\n".encode()


def _address(url: str) -> str:
    with suppress(ValueError):  # of brackets, and of the port
        parts = urlsplit(url)
        if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0:
            return url.rstrip("/")
    raise Invalid(f"--base-url: an http(s) address is expected, got {url!r}")


def _from_environment(variable: str) -> str:
    if not _NAME.fullmatch(variable):
        raise Invalid(f"--key-env: {variable!r} is no name of a variable")
    if not os.environ.get(variable):
        raise Invalid(f"--key-env: the environment variable {variable} is not set")
    return os.environ[variable]


def _valid_key(key: str) -> str:
    if not (key.isascii() and key.isprintable()) or set(key) & set(" '\\"):
        raise Invalid("the API key has characters that keys do not have")
    return key


TEMPLATE = """\
# Written by `sika init`. `sika config reference` explains every key, `sika config check` looks for mistakes.
# Changes take effect with the next message; those of `http`, `auth` and `sandbox` when the server is started again.

models:                           # the first one is the default
  - name: main                    # how clients call it
    model:
    # supports_vision: true       # lets the agent look at images
    # supports_thinking: true

# http:
#   port: 2026

# auth:
#   enabled: true                 # accounts: `sika user create you@example.org`

# approvals:                      # tool calls that wait for a person
#   - tool: bash
#     text: It runs a command.

sandbox:
  provider: auto                  # bubblewrap where it works; else the agent has file tools, but no commands
"""

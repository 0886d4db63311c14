"""`sika channels setup`: leads to an account on a chat platform, tries it, and keeps its credentials in `.env`."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from channels.cli.common import FAILED, OK
from channels.cli.extend.env_file import Variables
from channels.terminal.console.lines import ask
from core.chat import platforms
from core.chat.account import Account
from core.chat.check import checked
from core.chat.port import Finding, Step, Traits
from core.config.channels import AccountSettings
from core.config.load import parse
from core.config.settings import Config
from core.errors import Invalid, Refused, SikaError

Read = Callable[[str, str, bool], Awaitable[str]]
"""Prompts a person: question, default answer, and whether the answer is a secret."""
NOWHERE = "this asks questions: call it in a terminal, or follow the page /docs/{platform} on your server"


class Setup(NamedTuple):
    """An account that is set up, and the file of its configuration."""

    account: str
    traits: Traits
    path: Path
    read: Read
    show: Callable[[str], None]

    def variable(self, key: str) -> str:
        """Returns the variable of a credential: `SLACK_BOT_TOKEN`, `SLACK_WORK_BOT_TOKEN`."""
        return f"{self.account}_{key}".replace("-", "_").upper()

    def is_secret(self, key: str) -> bool:
        return any(each.key == key and each.secret for each in self.traits.credentials)


async def command(arguments: argparse.Namespace) -> int:
    if not sys.stdin.isatty():
        raise Refused(NOWHERE.format(platform=arguments.platform))
    path = Path(arguments.config or os.environ.get("SIKA_CONFIG") or "config.yaml").expanduser().absolute()
    account = f"{arguments.platform}-{arguments.account}" if arguments.account else arguments.platform
    traits = platforms.traits(arguments.platform, _config(path, {}) or parse(""))
    return OK if await set_up(Setup(account, traits, path, ask, print)) else FAILED


async def set_up(setup: Setup) -> bool:
    """Goes through the steps, tries the account, and writes `.env`. Returns whether it works."""
    variables = Variables(setup.path.with_name(".env"))
    setup.show(f"{setup.traits.title}: the page /docs/{setup.traits.name} on your server says the same, and more.")
    steps = setup.traits.setup or [Step(each.label, each.key) for each in setup.traits.credentials]
    values: dict[str, str] = {}
    works = False
    for number, step in enumerate(steps, 1):
        setup.show(f"\n{number}. {step.text}")
        if not step.key:
            continue
        if value := await _value(setup, step, variables):
            values[step.key] = value
        if step.key == setup.traits.credentials[-1].key:
            works = await _tried_until(setup, steps, values)
            if not works and not await _agrees(setup, "Go on all the same"):
                setup.show("nothing was written")
                return False
    await _keep(setup, variables, values)
    return works


async def _tried_until(setup: Setup, steps: Sequence[Step], values: dict[str, str]) -> bool:
    """Tries the credentials, and asks for them again until they work or the person gives up."""
    own = {each.key for each in setup.traits.credentials}
    while not (works := await _tried(setup, values)) and await _agrees(setup, "Paste the credentials again"):
        for step in steps:
            if step.key in own:
                values[step.key] = await _pasted(setup, step)
    return works


async def _value(setup: Setup, step: Step, variables: Variables) -> str:
    """Returns what a person pastes, or what is there already if they keep it."""
    present = variables.get(setup.variable(step.key))
    if present and await _agrees(setup, f"{setup.variable(step.key)} is there already. Keep it", default=True):
        return present
    return await _pasted(setup, step)


async def _pasted(setup: Setup, step: Step) -> str:
    while True:
        question = f"{step.key} (empty: without)" if step.optional else step.key
        value = (await setup.read(question, "", setup.is_secret(step.key))).strip()
        if (not value and step.optional) or (value and re.fullmatch(step.form or r"[^\s'\\]+", value)):
            return value
        setup.show(f"That does not look like it: {step.form or 'one word'} is expected.")


async def _agrees(setup: Setup, question: str, *, default: bool = False) -> bool:
    answer = await setup.read(f"{question} (yes, no)?", "yes" if default else "no", False)
    return answer.strip().lower() in ("yes", "y")


async def _tried(setup: Setup, values: Mapping[str, str]) -> bool:
    """Asks the platform about the credentials. Shows its findings, and returns whether all are well."""
    setup.show(f"\n{setup.traits.title} is asked …")
    for finding in (findings := await _findings(setup, values)):
        setup.show(f"{'ok  ' if finding.ok else 'FAIL'}  {finding.what}")
        if finding.advice:
            setup.show(f"      {finding.advice}")
    return all(finding.ok for finding in findings)


async def _findings(setup: Setup, values: Mapping[str, str]) -> Sequence[Finding]:
    config = _config(setup.path, {setup.variable(key): value for key, value in values.items()}) or parse("")
    known = config.channels.account(setup.account) or AccountSettings()
    own = {key: value for key, value in values.items() if key not in AccountSettings.__struct_fields__}
    account = Account(setup.account, msgspec.structs.replace(known, enabled=True), {**known.extra, **own})
    try:
        platform = platforms.connect(account, config)
    except SikaError as error:
        return [Finding(False, str(error))]
    try:
        return await checked(platform)
    finally:
        await platform.close()


async def _keep(setup: Setup, variables: Variables, values: Mapping[str, str]) -> None:
    """Writes the credentials, and shows the lines of the configuration."""
    for credential in setup.traits.credentials:
        name, value = setup.variable(credential.key), values[credential.key]
        if variables.get(name) not in (None, value) and not await _agrees(setup, f"Replace {name}"):
            setup.show(f"kept as it was: {name}")
            continue
        variables.set(name, value)
    if variables.write():
        setup.show(f"\nwritten: {variables.path}")
    setup.show(f"\nThese lines belong into {setup.path}:\n\n{_lines(setup, values)}")
    setup.show(f"Then: sika channels test {setup.traits.name}, and sika serve")


def _lines(setup: Setup, values: Mapping[str, str]) -> str:
    """Returns the section of the account."""
    platform, _, name = setup.account.partition("-")
    head = ["channels:", f"  {platform}:", *(["    accounts:", f"      {name}:"] if name else [])]
    indent = " " * (8 if name else 4)
    own = {each.key for each in setup.traits.credentials}
    keys = [f"{key}: ${setup.variable(key)}" for key in values if key in own]
    others = {key: value for key, value in values.items() if key not in own}
    keys += [f"{key}: [{value}]" if key == "allowed_users" else f"{key}: {value}" for key, value in others.items()]
    return "\n".join([*head, *(f"{indent}{line}" for line in ("enabled: true", *keys)), ""])


def _config(path: Path, variables: Mapping[str, str]) -> Config | None:
    """Returns the configuration with these variables; None if there is none, or it cannot be read yet."""
    try:
        return parse(path.read_text(), path.name, {**os.environ, **variables})
    except (OSError, UnicodeDecodeError, Invalid):
        return None

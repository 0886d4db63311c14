"""Chat platforms: where their code is, which settings they know, and their connection. Imports no SDK before `connect`.

A platform is a package with two modules. `traits` has `TRAITS` (`core.chat.port.Traits`) and, if it knows settings
besides its credentials, their keys as `OPTIONS`. `platform` has `connect(settings)`, which returns a
`core.chat.port.Platform`. Those of this repository are in `channels/<platform>`; the setting `channels.<name>.use`
names the package of another one.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import channels
from core.chat.account import Account, platform_of
from core.chat.port import Platform, Traits
from core.config.channels import AccountSettings
from core.config.redaction import redactor
from core.config.settings import Config
from core.errors import Invalid


def names() -> list[str]:
    """Returns the platforms of this repository."""
    return sorted(path.parent.name for path in Path(channels.__file__).parent.glob("*/traits.py"))


def traits(platform: str, config: Config) -> Traits:
    """Returns what is true of a platform. Raises `Invalid` for one that is not there."""
    module = _module(platform, "traits", config)
    found = getattr(module, "TRAITS", None)
    if not isinstance(found, Traits):
        raise Invalid(f"channels.{platform}: {module.__name__} has no TRAITS")
    return found


def connect(account: Account, config: Config) -> Platform:
    """Returns an account's connection, not made yet. Raises `Invalid` if credentials or the SDK are missing."""
    known = traits(account.platform, config)
    if account.problem:
        raise Invalid(f"{account.name}: {account.problem}")
    if wrong := list(_mistakes(account.name, account.values, config)):
        raise Invalid("; ".join(wrong))
    if missing := [each for each in known.credentials if not account.values.get(each.key)]:
        keys = ", ".join(f"{each.key} ({each.label})" for each in missing)
        raise Invalid(f"{_place(account.name)}: missing: {keys}")
    for each in known.credentials:
        if each.secret:
            redactor.add(str(account.values[each.key]))
    try:
        module = _module(account.platform, "platform", config)
    except ModuleNotFoundError as error:
        raise Invalid(
            f"{account.name}: the Python package {error.name} is not installed; pip install 'sika[{account.platform}]'"
        ) from None
    platform: Platform = module.connect(account.values)
    return platform


def problems(config: Config) -> Iterator[str]:
    """Yields what is wrong with the settings of accounts: unknown platforms and keys."""
    for name, settings in config.channels.accounts():
        try:
            traits(platform_of(name), config)
        except Invalid as error:
            yield str(error)
        else:
            yield from _mistakes(name, settings.extra, config)


def _mistakes(account: str, values: Mapping[str, Any], config: Config) -> Iterator[str]:
    """Yields the keys that the platform does not know."""
    module = _module(platform_of(account), "traits", config)
    known = [*(each.key for each in module.TRAITS.credentials), *getattr(module, "OPTIONS", ())]
    for key in values:
        if key not in known:
            own = sorted({*AccountSettings.__struct_fields__, "accounts"} - {"extra"})
            yield f"{_place(account)}.{key}: unknown key; there are: {', '.join([*known, *own])}"


def _place(account: str) -> str:
    """Returns the path of an account in the configuration."""
    platform, _, name = account.partition("-")
    return f"channels.{platform}.accounts.{name}" if name else f"channels.{platform}"


def _module(platform: str, name: str, config: Config) -> Any:
    settings = config.channels.platforms.get(platform)
    package = settings.use if settings is not None and settings.use else None
    if package is None and platform not in names():
        raise Invalid(f"channels.{platform}: there is no such platform; there are: {', '.join(names())}")
    package = package or f"channels.{platform}"
    try:
        return importlib.import_module(f"{package}.{name}")
    except ModuleNotFoundError as error:
        if error.name is not None and package.startswith(error.name):
            raise Invalid(f"channels.{platform}.use: there is no Python package {package} with {name}.py") from None
        raise

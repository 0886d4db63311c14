"""Chat platforms by name: what is true of them, the settings they know, their connection. Only `connect` imports
an SDK.

A platform is a package with two modules. `traits` has `TRAITS` (`core.chat.port.Traits`) and, if it knows settings
besides its credentials, their keys as `OPTIONS`. `platform` has `connect(settings)`, which returns a
`core.chat.port.Platform`. Those of this repository are in `channels/<platform>`; the setting `channels.<name>.use`
names the package of another one, or the single module that has all of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from core.chat.account import Account, platform_of
from core.chat.port import Platform, Traits
from core.config.channels import AccountSettings
from core.config.load import reveal
from core.config.redaction import redactor
from core.config.settings import Config
from core.errors import Invalid


def names() -> list[str]:
    """Returns the platforms of this repository."""
    package = find_spec("channels")
    folders = package.submodule_search_locations if package is not None else None
    return sorted(path.parent.name for folder in folders or () for path in Path(folder).glob("*/traits.py"))


def traits(platform: str, config: Config) -> Traits:
    """Returns what is true of a platform. Raises `Invalid` for one that is not there."""
    module = _module(platform, "traits", config)
    declared = getattr(module, "TRAITS", None)
    if not isinstance(declared, Traits):
        raise Invalid(f"channels.{platform}: {module.__name__} has no TRAITS")
    return declared


def connect(account: Account, config: Config) -> Platform:
    """Returns an account's connection, not made yet. Raises `Invalid` if credentials or the SDK are missing."""
    known = traits(account.platform, config)
    if account.problem:
        raise Invalid(f"{account.name}: {account.problem}")
    if wrong := list(_mistakes(account.name, account.values, config)):
        raise Invalid("; ".join(wrong))
    values = reveal(account.values)
    if missing := [each for each in known.credentials if not values.get(each.key)]:
        keys = ", ".join(f"{each.key} ({each.label})" for each in missing)
        raise Invalid(f"{place_of(account.name)}: missing: {keys}")
    for each in known.credentials:
        if each.secret:
            redactor.add(str(values[each.key]))
    try:
        module = _module(account.platform, "platform", config)
    except ModuleNotFoundError as error:
        raise Invalid(
            f"{account.name}: the Python package {error.name} is not installed; pip install 'sika[{account.platform}]'"
        ) from None
    platform: Platform = module.connect(values)
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
    if (options := getattr(module, "OPTIONS", None)) is None:
        return
    known = [*(each.key for each in module.TRAITS.credentials), *options]
    for key in values:
        if key not in known:
            own = sorted({*AccountSettings.__struct_fields__, "accounts"} - {"extra"})
            yield f"{place_of(account)}.{key}: unknown key; there are: {', '.join([*known, *own])}"


def place_of(account: str) -> str:
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
        whole = import_module(package)
        return import_module(f"{package}.{name}") if hasattr(whole, "__path__") else whole
    except ModuleNotFoundError as error:
        if error.name is not None and package.startswith(error.name):
            raise Invalid(f"channels.{platform}.use: there is no Python package {package} with {name}.py") from None
        raise

"""Chat platforms by name: what is true of them, the settings they know, their connection. Only `connect` imports
an SDK.

A platform is a package with two modules. `traits` has `TRAITS` (`core.chat.port.Traits`) and, if it knows settings
besides its credentials, their keys as `OPTIONS`. `platform` has `connect(settings)`, which returns a
`core.chat.port.Platform`. A single module may have all of it. Those of this repository are in `channels/<platform>`.
Others are entry points of installed packages (`core.plugins.CHANNELS`), or named by the setting `channels.<name>.use`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from core import plugins
from core.chat.account import Account, platform_of
from core.chat.port import Platform, Traits
from core.config.channels import PLATFORM, AccountSettings
from core.config.load import reveal
from core.config.redaction import redactor
from core.config.settings import Config
from core.errors import Invalid
from core.plugins import Plugin


def names() -> Sequence[str]:
    """Returns the platforms of this repository and of installed packages."""
    return sorted({*_own(), *plugins.names(plugins.CHANNELS)})


def describe(plugin: Plugin) -> str:
    """Returns the configuration's name of an installed platform, and its title. Raises `Invalid` if it is none."""
    if plugin.name in _own():
        raise Invalid(f"the name {plugin.name} is taken by channels.{plugin.name}")
    if not PLATFORM.fullmatch(plugin.name):
        raise Invalid("its name is that of the platform: small letters only are expected")
    return f"channels.{plugin.name}: {_declared(_part(_named(plugin.value), 'traits')).title}"


def traits(platform: str, config: Config) -> Traits:
    """Returns what is true of a platform. Raises `Invalid` for one that is not there."""
    return _declared(_module(platform, "traits", config))


def prepare(platform: str, config: Config) -> None:
    """Imports a platform with its SDK, which takes seconds: in a thread, and before others wait for `connect`, which
    says what is wrong."""
    with suppress(Exception):
        _module(platform, "platform", config)


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
        raise Invalid(f"{account.name}: {_not_installed(account.platform, error)}") from None
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


def _not_installed(platform: str, error: ModuleNotFoundError) -> str:
    if platform in _own():
        return f"the Python package {error.name} is not installed; pip install 'sika[{platform}]'"
    return plugins.missing(error.name or str(error))


def _own() -> Sequence[str]:
    package = find_spec("channels")
    folders = package.submodule_search_locations if package is not None else None
    return [path.parent.name for folder in folders or () for path in Path(folder).glob("*/traits.py")]


def _declared(module: ModuleType) -> Traits:
    declared = getattr(module, "TRAITS", None)
    if not isinstance(declared, Traits):
        raise Invalid(f"{module.__name__} has no TRAITS")
    return declared


def _module(platform: str, name: str, config: Config) -> ModuleType:
    settings = config.channels.platforms.get(platform)
    if settings is not None and settings.use:
        return _part(settings.use, name, f"channels.{platform}.use: ")
    if platform in _own():
        return _part(f"channels.{platform}", name)
    module = plugins.configured_object(plugins.CHANNELS, platform)
    if module is None:
        raise Invalid(f"channels.{platform}: there is no such platform; there are: {', '.join(names())}")
    return _part(_named(module), name, f"channels.{platform}: ")


def _named(module: object) -> str:
    if not isinstance(module, ModuleType):
        raise Invalid("not a module; one with TRAITS and connect is expected")
    return module.__name__


def _part(package: str, name: str, place: str = "") -> ModuleType:
    """Returns a module of a package, or the single module that has all of it. Raises `Invalid` if there is none."""
    try:
        whole = import_module(package)
        return import_module(f"{package}.{name}") if hasattr(whole, "__path__") else whole
    except ModuleNotFoundError as error:
        if error.name is not None and f"{package}.{name}.".startswith(f"{error.name}."):
            raise Invalid(f"{place}there is no Python package {package} with {name}.py") from None
        raise

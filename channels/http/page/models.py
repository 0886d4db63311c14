"""Models beside the configuration file, for administrators: added, tried by a real call, chosen for roles."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

import msgspec

from channels.http.endpoints.call import Call
from channels.http.endpoints.endpoint import Routes
from channels.http.server.live import ACTOR, Trial
from channels.http.server.routes import API
from core.config.load import Additions, Written
from core.config.model_providers import ADDRESSES, PROVIDERS
from core.config.redaction import redactor
from core.config.settings import ROLES, Config, Model
from core.errors import Invalid, NotFound, Refused
from core.models.added import Added, AddedModel

_NAME = r"^[\w.:@ -]+$"
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=80, pattern=_NAME)]


class ModelEntry(msgspec.Struct):
    """`source`: `file` (with the `line` of its name) decides it, or `event`: added here, and may be changed.
    `provider`: of an added one. `key`: it has an API key, which is never shown.
    """

    name: str
    model: str
    source: Literal["file", "event"]
    line: int | None
    provider: str | None
    base_url: str | None
    display_name: str | None
    supports_vision: bool
    supports_thinking: bool
    key: bool


class RoleEntry(msgspec.Struct):
    """`models`: the first that works answers; none: the default. `source`: `file` decides it."""

    role: str
    models: list[str]
    source: Literal["file", "event", "default"]


class ProviderEntry(msgspec.Struct):
    """A provider that models can be added of. `base_url`: its address, or with `own_address` an example of one."""

    name: str
    base_url: str | None
    own_address: bool
    needs_key: bool
    example: str


class ModelSettings(msgspec.Struct):
    """`default`: the model of runs that name none; null: the demo model."""

    models: list[ModelEntry]
    roles: list[RoleEntry]
    providers: list[ProviderEntry]
    default: str | None


class ModelBody(msgspec.Struct):
    """`provider`: one of the providers. `base_url`: null for the provider's own. `api_key`: null keeps the present one
    if the address stays; "" for none.
    """

    model: Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
    provider: str
    base_url: Annotated[str, msgspec.Meta(max_length=500, pattern=r"^https?://[^\s/$.?#][^\s]*$")] | None = None
    api_key: Annotated[str, msgspec.Meta(max_length=4000)] | None = None
    display_name: Annotated[str, msgspec.Meta(max_length=80)] | None = None
    supports_vision: bool = False
    supports_thinking: bool = False


class NamedBody(ModelBody, kw_only=True):
    name: Name


class RoleBody(msgspec.Struct):
    models: Annotated[list[str], msgspec.Meta(max_length=20)]


ROUTES = Routes(mounts=API, tag="models", role="admin")


@ROUTES("GET", "/model-settings", "admin")
async def get(call: Call) -> ModelSettings:
    """The models with where they come from, the roles, and the providers that models can be added of."""
    return await _settings(call)


@ROUTES("POST", "/model-settings/try", "admin", errors=(409,))
async def try_call(call: Call, body: NamedBody) -> Trial:
    """Call a model as it would be added: one short question, which may cost money. Nothing is stored."""
    models = call.services.models
    added = models.trial(_model(body.name, body), body.api_key, await models.state())
    return await _tried(call, added)


@ROUTES("PUT", "/model-settings/roles/{role}", "admin", errors=(409,))
async def choose(call: Call, role: str, body: RoleBody) -> ModelSettings:
    """Choose the models of a role: the first that works answers, that of `lead` is the default. None: no choice."""
    await call.services.models.choose(role, body.models, call.config, by=call.user, actor=ACTOR)
    return await _settings(call)


@ROUTES("PUT", "/model-settings/models/{name}", "admin", errors=(409,))
async def put(call: Call, name: str, body: ModelBody) -> ModelSettings:
    """Add a model beside the configuration file, or change one that was added. Its key is sealed and never shown."""
    if len(name) > 80 or not re.fullmatch(_NAME, name):
        raise Invalid(f"name: at most 80 letters, digits, spaces and . : @ _ - are expected, got {name[:80]!r}")
    await call.services.models.put(_model(name, body), body.api_key, call.config, by=call.user, actor=ACTOR)
    return await _settings(call)


@ROUTES("DELETE", "/model-settings/models/{name}", "admin", errors=(404,))
async def remove(call: Call, name: str) -> ModelSettings:
    """Remove a model that was added."""
    await call.services.models.remove(name, by=call.user, actor=ACTOR)
    return await _settings(call)


@ROUTES("POST", "/model-settings/models/{name}/try", "admin", errors=(404, 409))
async def try_present(call: Call, name: str) -> Trial:
    """Call a model as it is configured: one short question, which may cost money."""
    model = next((model for model in call.config.models if model.name == name), None)
    if model is None:
        raise NotFound(f"Model {name[:80]!r} not found")
    return await _tried(call, model)


async def _tried(call: Call, model: Additions | Model) -> Trial:
    if call.services.try_model is None:
        raise Refused("only a server that `sika serve` starts calls models")
    return await call.services.try_model(model)


def _model(name: str, body: ModelBody) -> AddedModel:
    provider = PROVIDERS.get(body.provider)
    if provider is None:
        raise Invalid(f"provider: {body.provider[:40]!r} unknown; there are: {', '.join(PROVIDERS)}")
    if body.provider in ADDRESSES and not body.base_url:
        raise Invalid(f"base_url: the address is needed, as {ADDRESSES[body.provider]}")
    fields = {key: value for key, value in msgspec.structs.asdict(body).items() if key not in ("api_key", "name")}
    fields["display_name"] = body.display_name or None
    return AddedModel(name=name, **fields)


async def _settings(call: Call) -> ModelSettings:
    config, added = call.config, await call.services.models.state()
    written = call.services.written()
    names = [model.name for model in config.models]
    lead = config.model_roles.get("lead", ())
    return ModelSettings(
        [_entry(model, index, added, written) for index, model in enumerate(config.models)],
        [_role(role, config, added) for role in ROLES],
        [_provider(name) for name in PROVIDERS],
        next(iter((*lead, *names)), None),
    )


def _entry(model: Model, index: int, added: Added, written: Mapping[str, Written]) -> ModelEntry:
    place = written.get(f"models[{index}].name")
    own = added.models.get(model.name) if place is None else None
    url = model.extra.get("base_url")
    return redactor.struct(
        ModelEntry(
            model.name,
            model.model,
            "event" if own else "file",
            place.line if place else None,
            own.provider if own else None,
            str(url) if url else None,
            model.display_name,
            model.supports_vision,
            model.supports_thinking,
            bool(own.api_key if own else model.extra.get("api_key")),
        )
    )


def _provider(name: str) -> ProviderEntry:
    about = PROVIDERS[name]
    address = about.base_url or ADDRESSES.get(name)
    return ProviderEntry(name, address, name in ADDRESSES, bool(about.variable), about.example)


def _role(role: str, config: Config, added: Added) -> RoleEntry:
    chosen: Sequence[str] = config.model_roles.get(role, ())
    source: Literal["file", "event", "default"] = "default"
    if chosen:
        source = "event" if list(chosen) == [n for n in added.roles.get(role, ()) if n in chosen] else "file"
    return RoleEntry(role, list(chosen), source)

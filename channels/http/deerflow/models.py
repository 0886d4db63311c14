"""The models that clients may name, as the configuration has them."""

from __future__ import annotations

import msgspec

from channels.http.call import Call
from channels.http.endpoint import Routes
from channels.http.errors import BadRequest
from channels.http.routes import API
from channels.http.run_request import DEMO, model_names
from core.config import settings
from core.config.load import Config
from core.config.redaction import redactor
from core.errors import NotFound


class Model(msgspec.Struct):
    """`name` is what clients say, `model` what the provider calls it."""

    name: str
    model: str
    display_name: str | None
    description: str | None
    supports_thinking: bool
    supports_reasoning_effort: bool


class Enabled(msgspec.Struct):
    enabled: bool


class Models(msgspec.Struct):
    models: list[Model]
    token_usage: Enabled


_DEMO = Model(DEMO, DEMO, "Demo", "Offline; knows a few phrases. Used when no model is configured.", False, False)
"""The model that answers when the configuration has none."""


ROUTES = Routes(mounts=API)


@ROUTES("GET", "/models")
async def get_list(call: Call) -> Models:
    """The models that can be named in a run's context; the first is the default."""
    return Models(known(call.config), Enabled(call.config.token_usage.enabled))


@ROUTES("GET", "/models/{name:.+}", errors=(404,))
async def get(call: Call, name: str) -> Model:
    """One model."""
    for model in known(call.config):
        if model.name == name:
            return model
    raise NotFound(f"Model {name[:80]!r} not found")


def known(config: Config) -> list[Model]:
    return [_model(entry) for entry in config.models] or [_DEMO]


def check_name(config: Config, name: str | None) -> None:
    """Tells whether a model is one that clients may name. Raises `BadRequest`, with those there are."""
    names = model_names(config)
    if name is not None and name not in names:
        raise BadRequest(f"model_name: no model {name[:80]!r}; there are: {', '.join(names)}")


def _model(entry: settings.Model) -> Model:
    """A model's name may be an address with a key."""
    return redactor.struct(_as_configured(entry))


def _as_configured(entry: settings.Model) -> Model:
    return Model(
        entry.name,
        entry.model,
        entry.display_name,
        entry.description,
        entry.supports_thinking,
        entry.supports_reasoning_effort,
    )

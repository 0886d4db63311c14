"""The models that clients may name, as the configuration has them."""

from __future__ import annotations

from typing import Literal

import msgspec

from channels.http.endpoints.call import Call
from channels.http.endpoints.endpoint import Routes
from channels.http.runs.run_request import DEMO, model_names
from channels.http.server.errors import BadRequest
from channels.http.server.routes import API
from core.config import settings
from core.config.load import Config
from core.config.redaction import redactor
from core.config.windows import window_of
from core.errors import NotFound
from core.views.model_failures import model_failures


class Price(msgspec.Struct):
    """Prices of a million tokens. `cache_read`: of input that the provider had in its cache."""

    currency: str
    input: float
    output: float
    cache_read: float


class Thinking(msgspec.Struct):
    """What can be chosen of a model's thinking. `modes`: what a run has by `thinking_enabled`; with one there is no
    choice. `efforts`: values of `reasoning_effort`; none if that is not looked at.
    """

    modes: list[Literal["off", "on"]]
    efforts: list[Literal["low", "medium", "high"]]


class ModelFailure(msgspec.Struct):
    """A failed call of a model that has not answered since. `at`: when, in UTC. `reason`: `quota`, `auth`, `transient`,
    `busy` or `generic`. `text`: the provider's words, without the model's address; null for who is no administrator, as
    they may quote other users' conversations.
    """

    at: str
    reason: str
    text: str | None


class Model(msgspec.Struct):
    """`name` is what clients say, `model` what the provider calls it. `context_window`: tokens that fit in a request,
    null where nobody knows. `price`: null where none is configured. `last_failure`: null for a model that answers.
    """

    name: str
    model: str
    display_name: str | None
    description: str | None
    supports_thinking: bool
    supports_reasoning_effort: bool
    supports_vision: bool = False
    context_window: int | None = None
    price: Price | None = None
    thinking: Thinking = msgspec.field(default_factory=lambda: Thinking(["off"], []))
    last_failure: ModelFailure | None = None


class Enabled(msgspec.Struct):
    enabled: bool


class Models(msgspec.Struct):
    """`problem`: why the configuration as it is now is not in force; administrators see it."""

    models: list[Model]
    token_usage: Enabled
    problem: str | None = None


_DEMO = Model(DEMO, DEMO, "Demo", "Offline; knows a few phrases. Used when no model is configured.", False, False)
"""The model that answers when the configuration has none."""


ROUTES = Routes(mounts=API)


@ROUTES("GET", "/models")
async def get_list(call: Call) -> Models:
    """The models that can be named in a run's context; the first is the default."""
    problem = call.services.problem() if call.principal.is_admin else None
    return Models(await _with_failures(call), Enabled(call.config.token_usage.enabled), problem)


@ROUTES("GET", "/models/{name:.+}", errors=(404,))
async def get(call: Call, name: str) -> Model:
    """One model."""
    for model in await _with_failures(call):
        if model.name == name:
            return model
    raise NotFound(f"Model {name[:80]!r} not found")


async def _with_failures(call: Call) -> list[Model]:
    failures = {
        name: ModelFailure(failure.at, failure.reason, failure.text if call.principal.is_admin else None)
        for name, failure in (await model_failures(call.services.views)).items()
    }
    return [msgspec.structs.replace(model, last_failure=failures.get(model.name)) for model in known(call.config)]


def known(config: Config) -> list[Model]:
    return [_model(config, entry) for entry in config.models] or [_DEMO]


def check_name(config: Config, name: str | None) -> None:
    """Tells whether a model is one that clients may name. Raises `BadRequest`, with those there are."""
    names = model_names(config)
    if name is not None and name not in names:
        raise BadRequest(f"model_name: no model {name[:80]!r}; there are: {', '.join(names)}")


def _model(config: Config, entry: settings.Model) -> Model:
    """A model's name may be an address with a key."""
    return redactor.struct(_as_configured(config, entry))


def _as_configured(config: Config, entry: settings.Model) -> Model:
    window = window_of(config, entry.name)
    return Model(
        entry.name,
        entry.model,
        entry.display_name,
        entry.description,
        entry.supports_thinking,
        entry.supports_reasoning_effort,
        entry.supports_vision,
        None if window.source == "assumed" else window.tokens,
        _price(entry.pricing) if entry.pricing else None,
        Thinking(_modes(entry), ["low", "medium", "high"] if entry.supports_reasoning_effort else []),
    )


def _modes(entry: settings.Model) -> list[Literal["off", "on"]]:
    """Returns the modes of a model: one that thinks and has no settings for it thinks in every run."""
    if not entry.supports_thinking:
        return ["off"]
    switched = (entry.when_thinking_enabled, entry.when_thinking_disabled, entry.thinking)
    return ["on"] if all(settings is None for settings in switched) else ["off", "on"]


def _price(pricing: settings.Pricing) -> Price:
    cached = pricing.input_per_million if pricing.cache_read_per_million is None else pricing.cache_read_per_million
    return Price(pricing.currency, pricing.input_per_million, pricing.output_per_million, cached)
